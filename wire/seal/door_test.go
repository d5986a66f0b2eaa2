package seal

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func door(t testing.TB) (*Door, *clock) {
	t.Helper()
	c := &clock{now: issued.Add(time.Hour)}
	return &Door{Hub: "hub-1", Root: root.Public(), Nonces: NewNonces(100, c.Now), Store: NewMemoryStore(100), Now: c.Now}, c
}

// show asks for a challenge and answers it.
func show(t testing.TB, d *Door, self Key, tok Token) http.Header {
	t.Helper()
	p, err := ProveToken(self, tok, d.Challenge(), "/join")
	if err != nil {
		t.Fatal(err)
	}
	return p.Header()
}

func TestDoorLetsIn(t *testing.T) {
	d, _ := door(t)
	p, err := d.Admit(t.Context(), show(t, d, worker, token(t, nil)), "/join", Worker)
	if err != nil || p.Key != worker.Public() || p.Token != token(t, nil) || p.Role() != Worker {
		t.Errorf("worker: %+v, %v", p, err)
	}
	g, err := ProveGrant(backbone, grant(t, nil), d.Challenge(), "/control")
	if err != nil {
		t.Fatal(err)
	}
	p, err = d.Admit(t.Context(), g.Header(), "/control", Worker, Backbone)
	if err != nil || p.Key != backbone.Public() || p.Role() != Backbone {
		t.Errorf("backbone: %+v, %v", p, err)
	}
}

func TestDoorRefuses(t *testing.T) {
	day := 24 * time.Hour
	for _, tt := range []struct {
		name   string
		header func(t *testing.T, d *Door, c *clock) http.Header
		want   error
		status int
		reason string
	}{
		{"no proof", func(*testing.T, *Door, *clock) http.Header { return http.Header{} }, ErrNoProof, 401, "no proof of who you are"},
		{"a token and no signature", func(t *testing.T, _ *Door, _ *clock) http.Header {
			return http.Header{tokenHeader: {token(t, nil).Text()}}
		}, ErrNoProof, 401, ""},
		{"a nonce of another hub", func(t *testing.T, _ *Door, _ *clock) http.Header {
			other, _ := door(t)
			return show(t, other, worker, token(t, nil))
		}, ErrNonceOld, 401, "nonce is too old: it is not this hub's"},
		{"a nonce that is no nonce", func(t *testing.T, d *Door, _ *clock) http.Header {
			h := show(t, d, worker, token(t, nil))
			h.Set(nonceHeader, "hello")
			return h
		}, ErrNonceOld, 401, ""},
		{"a proof that took 61 seconds", func(t *testing.T, d *Door, c *clock) http.Header {
			h := show(t, d, worker, token(t, nil))
			c.add(61 * time.Second)
			return h
		}, ErrNonceOld, 401, "given 1m1s ago"},
		{"a proof that was shown before", func(t *testing.T, d *Door, _ *clock) http.Header {
			h := show(t, d, worker, token(t, nil))
			if _, err := d.Admit(t.Context(), h, "/join", Worker); err != nil {
				t.Error(err)
			}
			return h
		}, ErrNonceUsed, 403, "proof was used before"},
		{"a proof for another path", func(t *testing.T, d *Door, _ *clock) http.Header {
			p, err := ProveToken(worker, token(t, nil), d.Challenge(), "/other")
			if err != nil {
				t.Error(err)
			}
			return p.Header()
		}, ErrBadProof, 403, "signature of key"},
		{"a proof for another hub", func(t *testing.T, d *Door, _ *clock) http.Header {
			c := d.Challenge()
			c.Hub = "hub-2"
			p, err := ProveToken(worker, token(t, func(t *Token) { t.Hub = "" }), c, "/join")
			if err != nil {
				t.Error(err)
			}
			return p.Header()
		}, ErrBadProof, 403, ""},
		{"another's key", func(t *testing.T, d *Door, _ *clock) http.Header {
			h := show(t, d, worker, token(t, nil))
			h.Set(keyHeader, stranger.Public().String())
			return h
		}, ErrBadProof, 403, ""},
		{"another's token put in", func(t *testing.T, d *Door, _ *clock) http.Header {
			h := show(t, d, worker, token(t, nil))
			h.Set(tokenHeader, token(t, func(t *Token) { t.ID[0]++ }).Text())
			return h
		}, ErrBadProof, 403, ""},
		{"a token of another swarm", func(t *testing.T, d *Door, _ *clock) http.Header {
			tok, err := SignToken(stranger, token(t, nil))
			if err != nil {
				t.Error(err)
			}
			return show(t, d, worker, tok)
		}, ErrNotRoot, 403, "not signed by the root of this swarm"},
		{"a grant of another swarm", func(t *testing.T, d *Door, _ *clock) http.Header {
			g, err := SignGrant(stranger, grant(t, nil))
			if err != nil {
				t.Error(err)
			}
			p, err := ProveGrant(backbone, g, d.Challenge(), "/join")
			if err != nil {
				t.Error(err)
			}
			return p.Header()
		}, ErrNotRoot, 403, ""},
		{"a grant for another key", func(t *testing.T, d *Door, _ *clock) http.Header {
			return prove(stranger, Proof{Grant: grant(t, nil)}, d.Challenge(), "/join").Header()
		}, ErrWrongKey, 403, ""},
		{"a token for another hub", func(t *testing.T, d *Door, _ *clock) http.Header {
			return prove(worker, Proof{Token: token(t, func(t *Token) { t.Hub = "hub-2" })}, d.Challenge(), "/join").Header()
		}, ErrWrongHub, 403, "it is for hub-2, this is hub-1"},
		{"a grant for another role", func(t *testing.T, d *Door, _ *clock) http.Header {
			g := grant(t, func(g *Grant) { g.Role = Gateway })
			return prove(backbone, Proof{Grant: g}, d.Challenge(), "/join").Header()
		}, ErrWrongRole, 403, "it is for a gateway"},
		{"a token that has expired", func(t *testing.T, d *Door, c *clock) http.Header {
			c.add(day)
			return show(t, d, worker, token(t, nil))
		}, ErrTokenExpired, 403, "token expired at 2026-11-30 12:00:00 UTC; the hub's clock says 2026-11-30 13:00:00 UTC"},
		{"a grant that has expired", func(t *testing.T, d *Door, c *clock) http.Header {
			c.add(400 * day)
			p, err := ProveGrant(backbone, grant(t, nil), d.Challenge(), "/join")
			if err != nil {
				t.Error(err)
			}
			return p.Header()
		}, ErrGrantExpired, 403, ""},
		{"a token that another machine has used up", func(t *testing.T, d *Door, _ *clock) http.Header {
			if _, err := d.Admit(t.Context(), show(t, d, stranger, token(t, nil)), "/join", Worker); err != nil {
				t.Error(err)
			}
			return show(t, d, worker, token(t, nil))
		}, ErrTokenUsed, 403, "by 1 of 1 keys; ask for another"},
		{"a token that was revoked", func(t *testing.T, d *Door, _ *clock) http.Header {
			if err := d.Store.(*MemoryStore).Revoke(token(t, nil).ID); err != nil {
				t.Error(err)
			}
			return show(t, d, worker, token(t, nil))
		}, ErrTokenRevoked, 403, ""},
		{"two tokens", func(t *testing.T, d *Door, _ *clock) http.Header {
			h := show(t, d, worker, token(t, nil))
			h.Add(tokenHeader, token(t, nil).Text())
			return h
		}, ErrBadProof, 403, "2 headers Kvasir-Token"},
		{"a token and a grant", func(t *testing.T, d *Door, _ *clock) http.Header {
			h := show(t, d, worker, token(t, nil))
			h.Set(grantHeader, grant(t, nil).String())
			return h
		}, ErrBadProof, 403, "a token and a grant"},
		{"neither", func(t *testing.T, d *Door, _ *clock) http.Header {
			h := show(t, d, worker, token(t, nil))
			h.Del(tokenHeader)
			return h
		}, ErrBadProof, 403, "neither"},
		{"a damaged token", func(t *testing.T, d *Door, _ *clock) http.Header {
			h := show(t, d, worker, token(t, nil))
			h.Set(tokenHeader, token(t, nil).Text()[1:])
			return h
		}, ErrBadToken, 403, ""},
		{"a damaged grant", func(t *testing.T, d *Door, _ *clock) http.Header {
			h := show(t, d, worker, token(t, nil))
			h.Del(tokenHeader)
			h.Set(grantHeader, "x")
			return h
		}, ErrBadGrant, 403, ""},
		{"a damaged key", func(t *testing.T, d *Door, _ *clock) http.Header {
			h := show(t, d, worker, token(t, nil))
			h.Set(keyHeader, "x")
			return h
		}, ErrBadKey, 403, ""},
		{"a short signature", func(t *testing.T, d *Door, _ *clock) http.Header {
			h := show(t, d, worker, token(t, nil))
			h.Set(signatureHeader, "x")
			return h
		}, ErrBadProof, 403, "signature of 1 characters"},
		{"a signature that is not text", func(t *testing.T, d *Door, _ *clock) http.Header {
			h := show(t, d, worker, token(t, nil))
			h.Set(signatureHeader, strings.Repeat("é", 43))
			return h
		}, ErrBadProof, 403, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, c := door(t)
			h := tt.header(t, d, c)
			_, err := d.Admit(t.Context(), h, "/join", Worker, Backbone)
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			oneLine(t, err, token(t, nil).Text())

			// And what is told to the far side says the same there.
			status, answer, reason := d.Answer(err)
			if status != tt.status || !strings.Contains(reason, tt.reason) || strings.Contains(reason, "seal:") {
				t.Errorf("answered %d %s", status, reason)
			}
			told := Told(answer, reason)
			if !errors.Is(told, tt.want) {
				t.Errorf("told %v", told)
			}
			oneLine(t, told)
			if _, err := ParseChallenge(answer); (err == nil) != (status == 401) {
				t.Errorf("challenge with %d: %v", status, err)
			}
		})
	}
	d, _ := door(t)
	h := show(t, d, worker, token(t, nil))
	if _, err := d.Admit(t.Context(), h, strings.Repeat("x", maxPath+1), Worker); !errors.Is(err, ErrBadProof) {
		t.Errorf("a long path: %v", err)
	}
}

// A refused proof costs the hub no memory: only good ones are remembered.
func TestDoorRemembersOnlyGoodProofs(t *testing.T) {
	d, _ := door(t)
	for range 200 {
		h := show(t, d, worker, token(t, nil))
		h.Set(keyHeader, stranger.Public().String())
		if _, err := d.Admit(t.Context(), h, "/join", Worker); !errors.Is(err, ErrBadProof) {
			t.Fatal(err)
		}
	}
	if n := len(d.Nonces.used); n != 0 {
		t.Errorf("%d nonces remembered", n)
	}
}

func TestTellSaysNothingOfOtherErrors(t *testing.T) {
	status, h, reason := Tell(fmt.Errorf("open /secret/tokens.db: disk full"))
	if status != 500 || len(h) != 0 || reason != "internal error" {
		t.Errorf("%d %v %s", status, h, reason)
	}
	if err := Told(http.Header{}, "x"); err != nil {
		t.Errorf("told %v", err)
	}
	if err := Told(http.Header{refusedHeader: {"out_of_tea"}}, "x"); err != nil {
		t.Errorf("told %v", err)
	}
	seen := map[string]bool{}
	for _, r := range refusals {
		if seen[r.code] || r.status < 400 || r.status > 599 {
			t.Errorf("%s twice, or status %d", r.code, r.status)
		}
		seen[r.code] = true
	}
}

func TestNonceIsTakenOnce(t *testing.T) {
	c := &clock{now: issued}
	n := NewNonces(3, c.Now)
	a := n.New()
	if b := n.New(); a == b || len(a) > maxNonce {
		t.Errorf("nonces %s, %s", a, b)
	}
	if err := errors.Join(n.Check(a), n.Use(a)); err != nil {
		t.Fatal(err)
	}
	if err := n.Use(a); !errors.Is(err, ErrNonceUsed) {
		t.Errorf("again: %v", err)
	}
	c.add(NonceLife)
	if err := n.Check(a); err != nil {
		t.Errorf("at its last moment: %v", err)
	}
	if err := n.Use(a); !errors.Is(err, ErrNonceUsed) {
		t.Errorf("again, at its last moment: %v", err)
	}
	c.add(time.Second)
	if err := n.Check(a); !errors.Is(err, ErrNonceOld) {
		t.Errorf("later: %v", err)
	}
	c.add(-2*NonceLife - 2*time.Second) // the clock is set back
	if err := n.Check(a); !errors.Is(err, ErrNonceOld) {
		t.Errorf("from the future: %v", err)
	}
	altered(n.New(), func(name, text string) {
		if err := n.Check(text); !errors.Is(err, ErrNonceOld) {
			t.Fatalf("%s: %v", name, err)
		}
	})
}

func TestNoncesAreForgottenInTime(t *testing.T) {
	c := &clock{now: issued}
	n := NewNonces(3, c.Now)
	for range 3 {
		if err := n.Use(n.New()); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Use(n.New()); !errors.Is(err, ErrBusy) {
		t.Errorf("a fourth: %v", err)
	}
	c.add(2*NonceLife + time.Second)
	for range 3 {
		if err := n.Use(n.New()); err != nil {
			t.Errorf("after they were forgotten: %v", err)
		}
	}
	if len(n.used) != 3 || len(n.old) != 3 {
		t.Errorf("%d and %d remembered", len(n.used), len(n.old))
	}
}

func TestNonceIsTakenOnceByMany(t *testing.T) {
	n := NewNonces(100, time.Now)
	nonce := n.New()
	var wg sync.WaitGroup
	var taken atomic.Int32
	for range 16 {
		wg.Go(func() {
			if n.Use(nonce) == nil {
				taken.Add(1)
			}
		})
	}
	wg.Wait()
	if taken.Load() != 1 {
		t.Errorf("taken %d times", taken.Load())
	}
}

func TestMemoryStoreCountsKeys(t *testing.T) {
	s := NewMemoryStore(4)
	two := token(t, func(t *Token) { t.Uses = 2 })
	use := func(tok Token, k Key, want error) {
		t.Helper()
		if err := s.Use(t.Context(), tok, k.Public()); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	use(two, key(10), nil)
	use(two, key(10), nil) // it comes back
	use(two, key(11), nil)
	use(two, key(12), ErrTokenUsed)
	use(two, key(11), nil)
	any := token(t, func(t *Token) { t.ID[0], t.Uses = 9, 0 })
	for i := range 20 {
		use(any, key(byte(20+i)), nil)
	}
	many := token(t, func(t *Token) { t.ID[0], t.Uses = 8, 100 })
	use(many, key(10), nil)
	use(many, key(11), nil)
	use(many, key(12), ErrBusy)
	for i := range 4 {
		if err := s.Revoke(TokenID{byte(i)}); err != nil {
			t.Error(err)
		}
	}
	if err := s.Revoke(TokenID{99}); !errors.Is(err, ErrBusy) {
		t.Errorf("a fifth revocation: %v", err)
	}
	use(token(t, func(t *Token) { t.ID = TokenID{3} }), key(10), ErrTokenRevoked)
}
