package engine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"kvasir/engine"
	"kvasir/wire/seal"
)

func home(t *testing.T) engine.Home { return engine.Home(filepath.Join(t.TempDir(), "home")) }

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestHomeKeepsTheTokenForFriends(t *testing.T) {
	h := home(t)
	root := must[seal.Key](t)(h.NewRoot())
	hub := seal.HubID(seal.NewKey().Public())
	first := must[seal.Join](t)(h.StandingToken(root, "gw.example", hub))
	if again := must[seal.Join](t)(h.StandingToken(root, "gw.example", hub)); again.URL() != first.URL() {
		t.Error("a second start makes another token")
	}
	limited := must[seal.Join](t)(h.CreateToken(root, "gw.example", seal.Token{Role: seal.Worker, Hub: hub, Uses: 1}))
	if known, err := h.Revoke(first.Token.ID); err != nil || !known {
		t.Fatal(err)
	}
	next := must[seal.Join](t)(h.StandingToken(root, "gw.example", hub))
	if next.URL() == first.URL() || next.URL() == limited.URL() {
		t.Error("a token that is revoked or limited is handed out")
	}
	list := must[[]engine.TokenNote](t)(h.Tokens())
	if len(list) != 3 || !list[0].Revoked || list[1].Revoked || list[1].Token.Uses != 1 {
		t.Errorf("list of tokens: %+v", list)
	}
	if _, err := h.CreateToken(root, "no host", seal.Token{Role: seal.Worker}); !errors.Is(err, seal.ErrBadJoin) {
		t.Errorf("a host with a space: %v", err)
	}
}

func TestHomeTakesOnlyGrantsThatFit(t *testing.T) {
	own, rented := home(t), home(t)
	root := must[seal.Key](t)(own.NewRoot())
	key := must[seal.Key](t)(rented.Key(seal.Gateway))
	if _, err := rented.Root(seal.PublicKey{}); !errors.Is(err, engine.ErrNoRoot) {
		t.Errorf("root of a home without one: %v", err)
	}
	if _, err := rented.Grant(seal.Gateway, key.Public(), root.Public(), seal.Grant{}); !errors.Is(err, engine.ErrNotGranted) {
		t.Errorf("no grant: %v", err)
	}
	other := must[seal.Grant](t)(own.Grant(seal.Gateway, seal.NewKey().Public(), root.Public(), seal.Grant{}))
	if _, err := rented.Grant(seal.Gateway, key.Public(), root.Public(), other); !errors.Is(err, seal.ErrWrongKey) {
		t.Errorf("grant of another key: %v", err)
	}
	role := must[seal.Grant](t)(own.Grant(seal.Backbone, key.Public(), root.Public(), seal.Grant{}))
	if _, err := rented.Grant(seal.Gateway, key.Public(), root.Public(), role); !errors.Is(err, seal.ErrWrongRole) {
		t.Errorf("grant of another role: %v", err)
	}
	g := must[seal.Grant](t)(own.Grant(seal.Gateway, key.Public(), root.Public(), seal.Grant{}))
	if _, err := rented.Grant(seal.Gateway, key.Public(), seal.NewKey().Public(), g); !errors.Is(err, seal.ErrNotRoot) {
		t.Errorf("grant of another root: %v", err)
	}
	must[seal.Grant](t)(rented.Grant(seal.Gateway, key.Public(), root.Public(), g))
	must[seal.PublicKey](t)(rented.Root(root.Public()))
	if kept := must[seal.PublicKey](t)(rented.Root(seal.PublicKey{})); kept != root.Public() {
		t.Error("the root was not kept")
	}
	if kept := must[seal.Grant](t)(rented.Grant(seal.Gateway, key.Public(), root.Public(), seal.Grant{})); kept.String() != g.String() {
		t.Error("the grant was not kept")
	}
}

func TestTokenStoreOutlivesTheProcess(t *testing.T) {
	h, ctx := home(t), context.Background()
	root := must[seal.Key](t)(h.NewRoot())
	token := must[seal.Join](t)(h.CreateToken(root, "gw", seal.Token{Role: seal.Worker, Uses: 1})).Token
	first, second := seal.NewKey().Public(), seal.NewKey().Public()
	store := must[*engine.TokenStore](t)(engine.OpenTokenStore(h))
	if err := store.Use(ctx, token, first); err != nil {
		t.Fatal(err)
	}
	store = must[*engine.TokenStore](t)(engine.OpenTokenStore(h))
	if err := store.Use(ctx, token, second); !errors.Is(err, seal.ErrTokenUsed) {
		t.Errorf("second key: %v", err)
	}
	if err := store.Use(ctx, token, first); err != nil {
		t.Errorf("the first key comes back: %v", err)
	}
	if _, err := h.Revoke(token.ID); err != nil {
		t.Fatal(err)
	}
	if err := store.Use(ctx, token, first); !errors.Is(err, seal.ErrTokenRevoked) {
		t.Errorf("revoked meanwhile: %v", err)
	}
	if err := os.WriteFile(filepath.Join(string(h), "hub.uses"), []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.OpenTokenStore(h); !errors.Is(err, seal.ErrBadToken) {
		t.Errorf("damaged file: %v", err)
	}
}

func TestHubRefTakesItsOwnForm(t *testing.T) {
	id := seal.HubID(seal.NewKey().Public())
	for text, want := range map[string]string{
		id + "@hub.example:7700":   id + "@hub.example:7700",
		" " + id + "@10.0.0.1:1\n": id + "@10.0.0.1:1",
		id + "@hub.example":        id + "@hub.example:443",
		id + "@[2001:db8::1]:7700": id + "@[2001:db8::1]:7700",
		id + "@[2001:db8::1]":      id + "@[2001:db8::1]:443",
		id + "@:7700":              "",
		id + "@":                   "",
		id:                         "",
		"hub.example:7700":         "",
		id[1:] + "@hub.example:1":  "",
		id[1:] + "/@hub.example:1": "",
		"":                         "",
	} {
		r, err := engine.ParseHubRef(text)
		if want == "" && !errors.Is(err, engine.ErrHubRef) || want != "" && (err != nil || r.String() != want) {
			t.Errorf("%q: %v, %v; want %q", text, r, err, want)
		}
	}
}
