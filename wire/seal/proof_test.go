package seal

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestChallengeTravels(t *testing.T) {
	c := Challenge{Hub: "hub-1", Nonce: "abc_-w", Time: issued}
	h := c.Header()
	if got := h.Get("WWW-Authenticate"); got != `Kvasir hub="hub-1", nonce="abc_-w", time="1795953600"` {
		t.Errorf("header %s", got)
	}
	h["Www-Authenticate"] = append([]string{`Basic realm="x"`}, h["Www-Authenticate"]...) // of a box on the way
	if got, err := ParseChallenge(h); err != nil || got != c {
		t.Errorf("got %+v, %v", got, err)
	}
	if c.Skew(issued.Add(-24*time.Hour)) != -24*time.Hour || (Challenge{}).Skew(issued) != 0 {
		t.Error("wrong skew")
	}
}

func TestChallengeIsRefused(t *testing.T) {
	for _, v := range []string{
		"", "Basic realm=x", "Kvasir", "Kvasir ", `Kvasir hub="h"`, `Kvasir nonce="n"`, `Kvasir hub="", nonce="n"`,
		`Kvasir hub=h, nonce=n`, `Kvasir hub="h", nonce="n`, `Kvasir hub="h", nonce="n!"`, `Kvasir hub="a b", nonce="n"`,
		`Kvasir hub="h", nonce="n", time="soon"`, `Kvasir hub="h", nonce="n", time="-1"`, `Kvasir hub="h", nonce="n", time="9999999999"`,
		`Kvasir hub="` + strings.Repeat("h", 65) + `", nonce="n"`, `Kvasir hub="h", nonce="` + strings.Repeat("n", 65) + `"`,
		`Kvasir hub="h", nonce="n", x="` + strings.Repeat("x", 600) + `"`,
	} {
		c, err := ParseChallenge(http.Header{"Www-Authenticate": {v}})
		if !errors.Is(err, ErrBadChallenge) {
			t.Errorf("%q: %+v, %v", v, c, err)
		}
		oneLine(t, err)
	}
}

func TestProofTravels(t *testing.T) {
	c := Challenge{Hub: "hub-1", Nonce: NewNonces(1, time.Now).New()}
	byToken, err := ProveToken(worker, token(t, nil), c, "/join?x=1")
	if err != nil {
		t.Fatal(err)
	}
	byGrant, err := ProveGrant(backbone, grant(t, nil), c, "/session/7")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []Proof{byToken, byGrant} {
		got, err := ParseProof(p.Header(), "hub-1", p.Path)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(p) {
			t.Errorf("got %+v, %v; want %+v", got, err, p)
		}
		if err := got.Verify(root.Public()); err != nil {
			t.Error(err)
		}
		if err := got.Verify(stranger.Public()); !errors.Is(err, ErrNotRoot) {
			t.Errorf("another root: %v", err)
		}
		j, err := json.Marshal(p)
		var back Proof
		if err := errors.Join(err, json.Unmarshal(j, &back), back.Verify(root.Public())); err != nil {
			t.Errorf("%s: %v", j, err)
		}
	}
	if byToken.Role() != Worker || byGrant.Role() != Backbone {
		t.Error("wrong roles")
	}
	if _, err := ProveToken(worker, token(t, nil), Challenge{Hub: "hub-2"}, "/"); !errors.Is(err, ErrWrongHub) {
		t.Errorf("answered another hub: %v", err)
	}
	if _, err := ProveGrant(worker, grant(t, nil), c, "/"); !errors.Is(err, ErrWrongKey) {
		t.Errorf("another's grant: %v", err)
	}
}

func FuzzParseProof(f *testing.F) {
	c := Challenge{Hub: "h", Nonce: "bm9uY2U"}
	p, err := ProveToken(worker, token(f, func(t *Token) { t.Hub = "" }), c, "/")
	if err != nil {
		f.Fatal(err)
	}
	h := p.Header()
	f.Add(h.Get(tokenHeader), "", h.Get(keyHeader), h.Get(nonceHeader), h.Get(signatureHeader), c.Header().Get(challengeHeader))
	f.Add("", grant(f, nil).String(), h.Get(keyHeader), "n", "s", `Kvasir hub="h", nonce="n"`)
	f.Fuzz(func(t *testing.T, token, grant, key, nonce, sig, challenge string) {
		h := http.Header{tokenHeader: {token}, grantHeader: {grant}, keyHeader: {key}, nonceHeader: {nonce}, signatureHeader: {sig}}
		p, err := ParseProof(h, "h", "/")
		if err == nil {
			again, err := ParseProof(p.Header(), "h", "/")
			if err != nil || fmt.Sprint(again) != fmt.Sprint(p) {
				t.Fatalf("%+v, %v", again, err)
			}
			if p.Verify(root.Public()) == nil && p.Key != worker.Public() {
				t.Fatal("forged")
			}
		}
		if c, err := ParseChallenge(http.Header{challengeHeader: {challenge}}); err == nil {
			if again, err := ParseChallenge(c.Header()); err != nil || again != c {
				t.Fatalf("%+v, %v", again, err)
			}
		}
	})
}
