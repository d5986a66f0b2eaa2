package access

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestKeyOpensWithItsTextAlone(t *testing.T) {
	t.Parallel()
	l := &List{}
	text, k, err := l.Create(Key{Name: "alice", Scopes: []Scope{Chat}, Created: time.Unix(5, 7)})
	if err != nil {
		t.Fatal(err)
	}
	id, secret, ok := split(text)
	if !ok || id != k.ID || !k.opens(secret) {
		t.Errorf("%q does not open %+v", text, k)
	}
	if bytes.Contains(l.Text(), []byte(secret)) {
		t.Error("the secret is kept")
	}
	for _, wrong := range []string{"", strings.Repeat("a", len(secret)), secret + "a", secret[1:], strings.ToUpper(secret)} {
		if k.opens(wrong) {
			t.Errorf("%q opens it", wrong)
		}
	}
	for _, none := range []string{"", "kv_", "kv__", text[1:], text + "x", text[:len(text)-1], "kv_" + secret + "_" + id, "sk-" + text} {
		if _, _, ok := split(none); ok {
			t.Errorf("%q is taken for a key", none)
		}
	}
	again, err := Parse(l.Text())
	if err != nil || len(again.Keys) != 1 || again.Keys[0].ID != k.ID || !again.Keys[0].Created.Equal(time.Unix(5, 0)) {
		t.Errorf("%v: %+v", err, again)
	}
	if err := l.Revoke("nobody", time.Unix(9, 0)); !errors.Is(err, ErrNoKey) {
		t.Errorf("%v, want %v", err, ErrNoKey)
	}
	if err := errors.Join(l.Revoke(k.ID, time.Unix(9, 0)), l.Revoke(k.ID, time.Unix(10, 0))); err != nil || l.Keys[0].Revoked.Unix() != 9 {
		t.Errorf("%v: %+v", err, l.Keys[0])
	}
}

func TestWrongKeysAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		k    Key
		want error
	}{
		{"no scope", Key{}, ErrScope},
		{"unknown scope", Key{Scopes: []Scope{"root"}}, ErrScope},
		{"long name", Key{Scopes: Scopes, Name: strings.Repeat("x", 101)}, ErrName},
		{"name of two lines", Key{Scopes: Scopes, Name: "a\nb"}, ErrName},
		{"name that is no text", Key{Scopes: Scopes, Name: "\xff"}, ErrName},
		{"negative limit", Key{Scopes: Scopes, Limits: Limits{Tokens: -1}}, nil},
	} {
		l := &List{}
		if _, _, err := l.Create(c.k); err == nil || c.want != nil && !errors.Is(err, c.want) || len(l.Keys) != 0 {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	full := &List{Keys: make([]Key, maxKeys)}
	if _, _, err := full.Create(Key{Scopes: Scopes}); !errors.Is(err, ErrTooMany) {
		t.Errorf("%v, want %v", err, ErrTooMany)
	}
}

func TestWrongFilesAreRefused(t *testing.T) {
	t.Parallel()
	l := &List{}
	if _, _, err := l.Create(Key{Scopes: Scopes}); err != nil {
		t.Fatal(err)
	}
	good := string(l.Text())
	twice := &List{Keys: []Key{l.Keys[0], l.Keys[0]}}
	for name, text := range map[string]string{
		"empty": "", "no JSON": "keys", "cut": good[:len(good)/2], "twice": string(twice.Text()),
		"other id": strings.Replace(good, l.Keys[0].ID, "../../x", 1), "no sum": strings.Replace(good, l.Keys[0].Hash, "00", 1),
		"too large": strings.Repeat(" ", MaxBytes+1), "no scope": strings.Replace(good, "admin", "rooot", 1),
	} {
		if _, err := Parse([]byte(text)); !errors.Is(err, ErrKeys) {
			t.Errorf("%s: %v, want %v", name, err, ErrKeys)
		}
	}
}

func FuzzParse(f *testing.F) {
	l := &List{}
	if _, _, err := l.Create(Key{Name: "a", Scopes: Scopes}); err != nil {
		f.Fatal(err)
	}
	f.Add(l.Text())
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := Parse(text)
		if err != nil {
			return
		}
		if _, err := Parse(l.Text()); err != nil {
			t.Errorf("what was read cannot be read again: %v", err)
		}
	})
}

func TestBucketGivesWhatItSaysWhenItSays(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	h := newHolder(Key{Limits: Limits{Requests: 6}}, now)
	for i := range 6 {
		if limit, _ := h.enter(now); limit != "" {
			t.Fatalf("request %d is refused", i)
		}
	}
	limit, wait := h.enter(now)
	if limit != "requests a minute" || wait != 10*time.Second {
		t.Fatalf("%q, %v", limit, wait)
	}
	if limit, _ = h.enter(now.Add(wait - 10*time.Millisecond)); limit == "" {
		t.Error("let in before its time")
	}
	if limit, _ = h.enter(now.Add(wait)); limit != "" {
		t.Error("refused when its time has come")
	}
	h = newHolder(Key{Limits: Limits{Tokens: 60}}, now)
	h.spent.Add(90) // it was let in, and said more
	if limit, wait = h.enter(now); limit != "tokens a minute" || wait != 31*time.Second {
		t.Errorf("%q, %v", limit, wait)
	}
	if limit, _ = h.enter(now.Add(wait)); limit != "" {
		t.Error("refused when its time has come")
	}
	if h.enter(now.Add(-time.Hour)); math.Abs(h.tokens.level-1) > rounding { // a clock that was set back
		t.Errorf("level %v", h.tokens.level)
	}
}

func TestSequencesOfAKeyAreCounted(t *testing.T) {
	t.Parallel()
	c := &Call{key: newHolder(Key{Limits: Limits{Sequences: 3}}, time.Now())}
	var e *SequencesError
	if c.Take(2) != nil || !errors.As(c.Take(2), &e) || e.Limit != 3 || c.Take(1) != nil || c.Take(1) == nil {
		t.Error("places are miscounted")
	}
	c.Give(3)
	if c.Take(3) != nil || c.key.running.Load() != 3 {
		t.Error("places that were given back are not there")
	}
}

// TestWhoIsRefusedTakesNoPlaceFromOthers has some ask for more than there is while one asks for what there is.
func TestWhoIsRefusedTakesNoPlaceFromOthers(t *testing.T) {
	t.Parallel()
	h := newHolder(Key{Limits: Limits{Sequences: 2}}, time.Now())
	var over atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !over.Load() {
				if h.take(3) {
					t.Error("three have two places")
				}
			}
		})
	}
	for i := range 200_000 {
		if !h.take(2) {
			t.Errorf("round %d: two are refused two places", i)
			break
		}
		h.running.Add(-2)
	}
	over.Store(true)
	wg.Wait()
}

func TestNobodysCallCountsNothing(t *testing.T) {
	t.Parallel()
	c := From(t.Context())
	if err := c.Take(1 << 30); err != nil {
		t.Error(err)
	}
	c.Give(1 << 30)
	c.Prompt(1)
	c.Token()
	if id, all := c.Owner(); id != "" || !all {
		t.Errorf("%q, %v", id, all)
	}
}

func TestTokenOfACallAllocatesNothing(t *testing.T) {
	c := &Call{key: newHolder(Key{}, time.Now()), now: time.Now, begun: time.Now()}
	if n := testing.AllocsPerRun(1000, c.Token); n != 0 {
		t.Errorf("a token makes %v allocations, want none", n)
	}
}

func TestForecastIsHonest(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	f := NewForecast(func() time.Time { return now })
	if d := f.Wait(); d != time.Second {
		t.Errorf("where nothing is known %v, want a second", d)
	}
	for range 100 { // a place becomes free each two seconds
		now = now.Add(2 * time.Second)
		f.Free()
	}
	for i := 1; i <= 5; i++ { // each gets a place of its own
		if d, want := f.Wait(), time.Duration(2*i)*time.Second; d != want {
			t.Errorf("who is refused as number %d is to wait %v, want %v", i, d, want)
		}
	}
	now = now.Add(10 * time.Second) // those have come; and nothing became free for long
	if d := f.Wait(); d != 10*time.Second {
		t.Errorf("when all has become slower %v, want 10 s", d)
	}
	for range 100 {
		if d := f.Wait(); d > time.Minute {
			t.Fatalf("%v is longer than a minute", d)
		}
	}
	for range 200 { // and quick again
		now = now.Add(time.Millisecond)
		f.Free()
	}
	now = now.Add(time.Minute)
	f.Free()
	now = now.Add(time.Millisecond)
	if d := f.Wait(); d > 10*time.Second {
		t.Errorf("when all has become quick %v", d)
	}
}
