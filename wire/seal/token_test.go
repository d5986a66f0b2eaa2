package seal

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestTokenHasGoldenBytes(t *testing.T) {
	tok := token(t, nil)
	const want = "01" + "01" + "0102030405060708090a0b0c" + "00000001" + "6b0c13c0" + "6b0d6540" + "05" + "6875622d31"
	if got := hex.EncodeToString(tok.body()); got != want {
		t.Errorf("body\n%s, want\n%s", got, want)
	}
	if n := len(tok.Text()); n != 128 {
		t.Errorf("text of %d characters", n)
	}
	for _, change := range []func(*Token){
		nil,
		func(t *Token) { t.Hub = "" },
		func(t *Token) { t.Hub = strings.Repeat("h", MaxName) },
		func(t *Token) { t.Expires = time.Time{} },
		func(t *Token) { t.Role, t.Uses = Backbone, 1<<32-1 },
		func(t *Token) { t.Issued = t.Issued.Add(123 * time.Millisecond) },
	} {
		tok := token(t, change)
		got, err := ParseToken(tok.Text())
		if err != nil || got != tok {
			t.Errorf("got %+v, %v; want %+v", got, err, tok)
		}
		if err := got.Verify(root.Public()); err != nil {
			t.Error(err)
		}
		if err := got.Verify(stranger.Public()); !errors.Is(err, ErrNotRoot) {
			t.Errorf("another root: %v", err)
		}
	}
	if a, b := token(t, func(t *Token) { t.ID = TokenID{} }), token(t, func(t *Token) { t.ID = TokenID{} }); a.ID == b.ID {
		t.Error("two tokens with one id")
	}
}

func TestTokenWithATypingErrorIsRefused(t *testing.T) {
	text := token(t, nil).Text()
	altered(text, func(name, text string) {
		tok, err := ParseToken(text)
		if err == nil {
			err = tok.Verify(root.Public())
		}
		if !errors.Is(err, ErrBadToken) && !errors.Is(err, ErrNotRoot) {
			t.Fatalf("%s: %v", name, err)
		}
		oneLine(t, err, text)
	})
}

func TestTokenIsRefused(t *testing.T) {
	good := token(t, nil)
	raw := func(change func(b []byte) []byte) string { return encode(change(append(good.body(), good.sig[:]...))) }
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "cut short"},
		{"another version", raw(func(b []byte) []byte { b[0] = 2; return b }), "version 2, this program knows 1"},
		{"role 0", raw(func(b []byte) []byte { b[1] = 0; return b }), "role 0"},
		{"a hub's role", raw(func(b []byte) []byte { b[1] = byte(Hub); return b }), "role 3"},
		{"without a time of issue", raw(func(b []byte) []byte { clear(b[18:22]); return b }), "time of issue"},
		{"expired before it was issued", raw(func(b []byte) []byte { b[22] = 0; return b }), "before it is issued"},
		{"a hub's id longer than the rest", raw(func(b []byte) []byte { b[26] = 255; return b }), "missing or too many"},
		{"a hub's id shorter than the rest", raw(func(b []byte) []byte { b[26] = 0; return b }), "missing or too many"},
		{"a line break in the hub's id", raw(func(b []byte) []byte { b[28] = '\n'; return b }), "letters, digits"},
		{"cut", raw(func(b []byte) []byte { return b[:20] }), "cut short"},
		{"too long", strings.Repeat("A", maxTokenText+1), "at most"},
		{"padded", good.Text() + "=", "cannot be in it"},
		{"wrapped", good.Text()[:60] + "\n" + good.Text()[60:], "character 61 cannot be in it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseToken(tt.text)
			if !errors.Is(err, ErrBadToken) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			oneLine(t, err, good.Text())
		})
	}
	for name, change := range map[string]func(*Token){
		"role":   func(t *Token) { t.Role = Gateway },
		"issue":  func(t *Token) { t.Issued = time.Time{} },
		"past":   func(t *Token) { t.Issued = time.Unix(-5, 0) },
		"future": func(t *Token) { t.Expires = time.Unix(1<<32, 0) },
		"expiry": func(t *Token) { t.Expires = t.Issued },
		"hub":    func(t *Token) { t.Hub = "my hub" },
		"long":   func(t *Token) { t.Hub = strings.Repeat("h", MaxName+1) },
	} {
		tok := good
		change(&tok)
		if _, err := SignToken(root, tok); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
}

func TestTokenSaysWhatTheClockSays(t *testing.T) {
	tok := token(t, nil)
	for _, tt := range []struct {
		name string
		now  time.Time
		want string
	}{
		{"in time", issued.Add(time.Hour), ""},
		{"a clock that is a day slow", issued.Add(-24 * time.Hour), ""},
		{"within the tolerance", tok.Expires.Add(TokenSkew), ""},
		{"too late", tok.Expires.Add(TokenSkew + time.Second),
			"seal: token expired at 2026-11-30 12:00:00 UTC; this machine's clock says 2026-11-30 12:05:01 UTC"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tok.CheckTime(tt.now)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || err.Error() != tt.want || !errors.Is(err, ErrTokenExpired)) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
	if err := token(t, func(t *Token) { t.Expires = time.Time{} }).CheckTime(issued.AddDate(50, 0, 0)); err != nil {
		t.Errorf("without expiry: %v", err)
	}
}

func TestTokenDoesNotPrintItself(t *testing.T) {
	tok := token(t, nil)
	want := "token 0102030405060708090a0b0c for a worker at hub hub-1, until 2026-11-30 12:00:00 UTC"
	for _, f := range []string{"%v", "%s", "%+v"} {
		if got := fmt.Sprintf(f, tok); got != want {
			t.Errorf("%s: %s", f, got)
		}
	}
	j, err := json.Marshal(tok)
	var back Token
	if err := errors.Join(err, json.Unmarshal(j, &back)); err != nil || back != tok {
		t.Errorf("%s: %v", j, err)
	}
}

func TestTokenIDText(t *testing.T) {
	id := token(t, nil).ID
	if got, err := ParseTokenID(id.String()); err != nil || got != id {
		t.Errorf("got %v, %v", got, err)
	}
	for _, s := range []string{"", "01", "zz02030405060708090a0b0c", id.String() + "00"} {
		if _, err := ParseTokenID(s); !errors.Is(err, ErrBadToken) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestGrantHasGoldenBytes(t *testing.T) {
	g := grant(t, nil)
	want := "01" + "02" + hex.EncodeToString(g.Key[:]) + "6b0c13c0" + "6ced4740" + "04" + "686f6d65"
	if got := hex.EncodeToString(g.body()); got != want {
		t.Errorf("body\n%s, want\n%s", got, want)
	}
	for _, change := range []func(*Grant){
		nil,
		func(g *Grant) { g.Name = "" },
		func(g *Grant) { g.Name = strings.Repeat("n", MaxName) },
		func(g *Grant) { g.Role, g.Expires = Hub, time.Time{} },
	} {
		g := grant(t, change)
		got, err := ParseGrant(g.String())
		if err != nil || got != g {
			t.Errorf("got %+v, %v; want %+v", got, err, g)
		}
		if err := got.Verify(root.Public()); err != nil {
			t.Error(err)
		}
		if err := got.Verify(stranger.Public()); !errors.Is(err, ErrNotRoot) {
			t.Errorf("another root: %v", err)
		}
	}
	altered(g.String(), func(name, text string) {
		g, err := ParseGrant(text)
		if err == nil {
			err = g.Verify(root.Public())
		}
		if !errors.Is(err, ErrBadGrant) && !errors.Is(err, ErrNotRoot) {
			t.Fatalf("%s: %v", name, err)
		}
		oneLine(t, err)
	})
}

func TestGrantIsRefused(t *testing.T) {
	good := grant(t, nil)
	raw := func(change func(b []byte) []byte) string { return encode(change(append(good.body(), good.sig[:]...))) }
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "cut short"},
		{"another version", raw(func(b []byte) []byte { b[0] = 7; return b }), "version 7"},
		{"a worker's role", raw(func(b []byte) []byte { b[1] = byte(Worker); return b }), "role 1"},
		{"no key", raw(func(b []byte) []byte { clear(b[2:34]); return b }), "no key"},
		{"without a time of issue", raw(func(b []byte) []byte { clear(b[34:38]); return b }), "time of issue"},
		{"expired before it was issued", raw(func(b []byte) []byte { b[38] = 0; return b }), "before it is issued"},
		{"a name longer than the rest", raw(func(b []byte) []byte { b[42] = 255; return b }), "missing or too many"},
		{"a bad name", raw(func(b []byte) []byte { b[43] = 0; return b }), "letters, digits"},
		{"a token", token(t, nil).Text(), "not a grant"},
		{"too long", strings.Repeat("A", maxGrantText+1), "at most"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseGrant(tt.text)
			if !errors.Is(err, ErrBadGrant) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			oneLine(t, err)
		})
	}
	if _, err := SignGrant(root, Grant{Role: Backbone, Issued: issued}); err == nil {
		t.Error("signed a grant without a key")
	}
}

// A machine whose clock is off by a day must not fail for that.
func TestGrantTakesAClockThatIsOffByADay(t *testing.T) {
	g := grant(t, nil)
	for _, now := range []time.Time{issued.Add(-24 * time.Hour), g.Expires.Add(24 * time.Hour), g.Expires.Add(GrantSkew)} {
		if err := g.CheckTime(now); err != nil {
			t.Errorf("%v: %v", now, err)
		}
	}
	err := g.CheckTime(g.Expires.Add(GrantSkew + time.Second))
	want := "seal: grant expired at 2027-11-29 12:00:00 UTC; this machine's clock says 2027-12-01 12:00:01 UTC"
	if !errors.Is(err, ErrGrantExpired) || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(token(f, nil).Text())
	f.Add(grant(f, nil).String())
	f.Fuzz(func(t *testing.T, text string) {
		if tok, err := ParseToken(text); err == nil && tok.Text() != text {
			t.Fatalf("%q parsed as %+v", text, tok)
		} else if err != nil && !errors.Is(err, ErrBadToken) {
			t.Fatal(err)
		}
		if g, err := ParseGrant(text); err == nil && g.String() != text {
			t.Fatalf("%q parsed as %+v", text, g)
		} else if err != nil && !errors.Is(err, ErrBadGrant) {
			t.Fatal(err)
		}
	})
}
