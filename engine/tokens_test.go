package engine_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"kvasir/engine"
	"kvasir/wire/seal"
)

// sameHome is a second view of a home, as another process has it.
func sameHome(h engine.Home) engine.Home { return engine.Home(strings.Clone(string(h))) }

func newToken(t *testing.T, h engine.Home, uses uint32) seal.Token {
	t.Helper()
	root := must[seal.Key](t)(h.NewRoot())
	return must[seal.Join](t)(h.CreateToken(root, "gw", seal.Token{Role: seal.Worker, Uses: uses})).Token
}

// noteOf returns what the list says of a token.
func noteOf(t *testing.T, h engine.Home, id seal.TokenID) engine.TokenNote {
	t.Helper()
	for _, n := range must[[]engine.TokenNote](t)(h.Tokens()) {
		if n.Token.ID == id {
			return n
		}
	}
	t.Fatalf("token %v is not in the list", id)
	return engine.TokenNote{}
}

// TestTokensAreMadeByManyAtOnce has two views of a home make and revoke tokens: none is lost.
func TestTokensAreMadeByManyAtOnce(t *testing.T) {
	h := home(t)
	root := must[seal.Key](t)(h.NewRoot())
	const each = 12
	var wg sync.WaitGroup
	errs := make(chan error, 2*each)
	for _, view := range []engine.Home{h, sameHome(h)} {
		for i := range each {
			wg.Go(func() {
				j, err := view.CreateToken(root, "gw", seal.Token{Role: seal.Worker, Uses: 1})
				if err == nil && i%2 == 0 {
					_, err = view.Revoke(j.Token.ID)
				}
				errs <- err
			})
		}
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	list, revoked := must[[]engine.TokenNote](t)(h.Tokens()), 0
	for _, n := range list {
		if n.Revoked {
			revoked++
		}
	}
	if len(list) != 2*each || revoked != each {
		t.Errorf("%d tokens, %d of them revoked; want %d and %d", len(list), revoked, 2*each, each)
	}
}

// TestAStolenTokenIsSeenByItsOwner has a copy of a token used from a second place.
func TestAStolenTokenIsSeenByItsOwner(t *testing.T) {
	h := home(t)
	once, thrice := newToken(t, h, 1), newToken(t, h, 3)
	store := must[*engine.TokenStore](t)(engine.OpenTokenStore(h))
	friend, thief := seal.NewKey().Public(), seal.NewKey().Public()
	use := func(tok seal.Token, key seal.PublicKey, from string, want error) {
		t.Helper()
		err := store.Use(seal.WithOrigin(t.Context(), from), tok, key)
		if !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
		if want != nil && !strings.Contains(err.Error(), tok.ID.String()) {
			t.Errorf("%v: names no token", err)
		}
	}
	use(once, friend, "192.0.2.1", nil)
	use(once, thief, "198.51.100.7", seal.ErrTokenUsed)
	use(once, thief, "198.51.100.7", seal.ErrTokenUsed)
	use(once, friend, "192.0.2.2", nil) // the friend is not shut out by that
	for i := range 3 {
		use(thrice, seal.NewKey().Public(), fmt.Sprint("192.0.2.", i), nil)
	}
	use(thrice, thief, "198.51.100.7", seal.ErrTokenUsed)
	if _, err := h.Revoke(once.ID); err != nil {
		t.Fatal(err)
	}
	use(once, friend, "192.0.2.1", seal.ErrTokenRevoked)

	// Times that came within a minute of what is on the disk are not there yet.
	want := map[string]string{"joined": "192.0.2.1", "used_up": "198.51.100.7", "revoked": "192.0.2.1"}
	got := noteOf(t, sameHome(h), once.ID).Seen
	if len(got) != len(want) {
		t.Errorf("seen %+v", got)
	}
	for _, g := range got {
		key := friend
		if g.Sight == engine.RefusedUsed {
			key = thief
		}
		if g.Key != key || g.From != want[g.Sight.String()] || g.Times != 1 || g.First.IsZero() || g.Last.Before(g.First) {
			t.Errorf("seen %+v", g)
		}
	}
	if got := noteOf(t, h, thrice.ID).Seen; len(got) != 4 {
		t.Errorf("seen with a token of three uses: %+v", got)
	}

	// Another process goes on where this one ended.
	store = must[*engine.TokenStore](t)(engine.OpenTokenStore(h))
	use(thrice, seal.NewKey().Public(), "203.0.113.9", seal.ErrTokenUsed)
	if got := noteOf(t, h, thrice.ID).Seen; len(got) != 5 {
		t.Errorf("after a restart: %+v", got)
	}
}

// TestAHubListsTokensOfElsewhere is for a hub's home, where none was made.
func TestAHubListsTokensOfElsewhere(t *testing.T) {
	own, rented := home(t), home(t)
	tok := newToken(t, own, 1)
	must[seal.Key](t)(rented.Key(seal.Hub))
	store := must[*engine.TokenStore](t)(engine.OpenTokenStore(rented))
	if err := store.Use(t.Context(), tok, seal.NewKey().Public()); err != nil {
		t.Fatal(err)
	}
	n := noteOf(t, rented, tok.ID)
	if !n.Elsewhere || len(n.Seen) != 1 || n.Revoked {
		t.Errorf("%+v", n)
	}
	if known, err := rented.Revoke(tok.ID); err != nil || !known {
		t.Errorf("known %v, %v", known, err)
	}
	if n := noteOf(t, rented, tok.ID); !n.Revoked {
		t.Errorf("%+v", n)
	}
	if known, err := rented.Revoke(seal.TokenID{1}); err != nil || known {
		t.Errorf("a token that nobody knows: known %v, %v", known, err)
	}
}

func TestAListOfTokensThatOthersReadIsRefused(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("who may read a file is not in its mode on this system")
	}
	h := home(t)
	tok := newToken(t, h, 1)
	path := filepath.Join(string(h), "tokens.json")
	for _, name := range []string{"tokens.json", "root.key"} {
		info, err := os.Stat(filepath.Join(string(h), name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o606, 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Tokens(); !errors.Is(err, seal.ErrKeyFile) || !strings.Contains(err.Error(), "chmod 600") ||
			strings.Contains(err.Error(), tok.Text()) {
			t.Errorf("mode %04o: %v", mode, err)
		}
	}
}

// TestALineThatWasCutHarmsNobody is after a power cut.
func TestALineThatWasCutHarmsNobody(t *testing.T) {
	h := home(t)
	tok, other := newToken(t, h, 1), newToken(t, h, 1)
	key := seal.NewKey().Public()
	line := tok.ID.String() + " " + key.String()
	add := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(string(h), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for cut := range len(line) {
		add("hub.uses", line[:cut])
		store, err := engine.OpenTokenStore(h)
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if err := store.Use(t.Context(), other, key); err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		store = must[*engine.TokenStore](t)(engine.OpenTokenStore(h))
		if err := store.Use(t.Context(), other, seal.NewKey().Public()); !errors.Is(err, seal.ErrTokenUsed) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
	// Whole, but for the end of the line: it counts.
	add("hub.uses", line)
	store := must[*engine.TokenStore](t)(engine.OpenTokenStore(h))
	if err := store.Use(t.Context(), tok, seal.NewKey().Public()); !errors.Is(err, seal.ErrTokenUsed) {
		t.Errorf("%v", err)
	}
	if err := store.Use(t.Context(), other, key); err != nil {
		t.Error(err)
	}
	store = must[*engine.TokenStore](t)(engine.OpenTokenStore(h))
	for _, tok := range []seal.Token{tok, other} {
		if err := store.Use(t.Context(), tok, seal.NewKey().Public()); !errors.Is(err, seal.ErrTokenUsed) {
			t.Errorf("%v", err)
		}
	}

	id := tok.ID.String()
	for cut := range len(id) {
		add("revoked", id[:cut])
		if gone, err := h.Revoked(tok.ID); gone || err != nil {
			t.Fatalf("cut at %d: %v, %v", cut, gone, err)
		}
		if _, err := h.Revoke(other.ID); err != nil {
			t.Fatal(err)
		}
		if gone, err := h.Revoked(other.ID); !gone || err != nil {
			t.Fatalf("cut at %d: %v, %v", cut, gone, err)
		}
	}
	add("revoked", id) // by hand, without an end
	if _, err := h.Revoke(other.ID); err != nil {
		t.Fatal(err)
	}
	for _, id := range []seal.TokenID{tok.ID, other.ID} {
		if gone, err := h.Revoked(id); !gone || err != nil {
			t.Errorf("%v, %v", gone, err)
		}
	}
	add("revoked", "nonsense\n"+id+"\n")
	if _, err := h.Revoked(tok.ID); !errors.Is(err, seal.ErrBadToken) || !strings.Contains(err.Error(), "revoked:1") {
		t.Errorf("a line that means nothing: %v", err)
	}
	if store, err := engine.OpenTokenStore(h); err != nil || store.Use(t.Context(), tok, key) == nil {
		t.Errorf("a hub lets somebody in that may be revoked; %v", err)
	}
}

// TestARevocationIsSeenAtOnce has one process revoke token after token, while a hub that runs asks.
func TestARevocationIsSeenAtOnce(t *testing.T) {
	h := home(t)
	store := must[*engine.TokenStore](t)(engine.OpenTokenStore(h))
	key := seal.NewKey().Public()
	for i := range 20 {
		tok := newToken(t, h, uint32(i%2))
		for want := range 2 {
			err := store.Use(t.Context(), tok, key)
			if got := errors.Is(err, seal.ErrTokenRevoked); got != (want == 1) || want == 0 && err != nil {
				t.Fatalf("token %d, revoked %v: %v", i, want == 1, err)
			}
			if want == 0 {
				if _, err := sameHome(h).Revoke(tok.ID); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	// Whoever removes the file by hand takes all back.
	tok := newToken(t, h, 0)
	if _, err := h.Revoke(tok.ID); err != nil {
		t.Fatal(err)
	}
	if err := store.Use(t.Context(), tok, key); !errors.Is(err, seal.ErrTokenRevoked) {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(string(h), "revoked")); err != nil {
		t.Fatal(err)
	}
	if err := store.Use(t.Context(), tok, key); err != nil {
		t.Errorf("with the file removed: %v", err)
	}
}
