package seal

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestPublicKeyHasGoldenText(t *testing.T) {
	const want = "iojj3XQJ8ZX9UtstPLpdcspnCb8dlBIb83SIAbQPb1xTYr9G"
	k := root.Public()
	if got := k.String(); got != want || len(got) != keyText || k.Short() != want[:8] {
		t.Errorf("got %s", got)
	}
	if got, err := ParsePublicKey(want); got != k || err != nil {
		t.Errorf("parsed %v, %v", got, err)
	}
	j, err := json.Marshal(struct{ K PublicKey }{k})
	var back struct{ K PublicKey }
	if err := errors.Join(err, json.Unmarshal(j, &back)); err != nil || back.K != k {
		t.Errorf("%s, %v", j, err)
	}
}

func TestKeyWithATypingErrorIsRefused(t *testing.T) {
	altered(root.Public().String(), func(name, text string) {
		if k, err := ParsePublicKey(text); !errors.Is(err, ErrBadKey) {
			t.Fatalf("%s: %q parsed as %v, %v", name, text, k, err)
		} else {
			oneLine(t, err)
		}
	})
	altered(root.secret(), func(name, text string) {
		if _, err := parseSecret(text); !errors.Is(err, ErrBadKey) {
			t.Fatalf("%s: parsed", name)
		} else {
			oneLine(t, err, root.secret(), text)
		}
	})
	if _, err := ParsePublicKey(root.secret()); err == nil {
		t.Error("a private key was taken for a public one")
	}
	if _, err := parseSecret(root.Public().String()); err == nil {
		t.Error("a public key was taken for a private one")
	}
}

func TestKeyDoesNotPrintItself(t *testing.T) {
	k := NewKey()
	numbers := fmt.Sprintf("%d", k.private.Seed())[1:20]
	for _, f := range []string{"%v", "%+v", "%s", "%#v", "%q"} {
		s := fmt.Sprintf(f, k) + fmt.Sprintf(f, struct{ K Key }{k})
		if strings.Contains(s, k.secret()[:16]) || strings.Contains(s, numbers) {
			t.Errorf("%s prints %s", f, s)
		}
	}
}

func TestSignaturesKeepToTheirDomain(t *testing.T) {
	sig := root.Sign("report 1", []byte("body"))
	for _, tt := range []struct {
		name   string
		k      PublicKey
		domain string
		body   string
		sig    []byte
		want   bool
	}{
		{"right", root.Public(), "report 1", "body", sig, true},
		{"another key", worker.Public(), "report 1", "body", sig, false},
		{"another domain", root.Public(), "report 2", "body", sig, false},
		{"another body", root.Public(), "report 1", "bodY", sig, false},
		{"cut", root.Public(), "report 1", "body", sig[:63], false},
		{"none", root.Public(), "report 1", "body", nil, false},
		{"no key", PublicKey{}, "report 1", "body", sig, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.k.Verify(tt.domain, []byte(tt.body), tt.sig); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
	if k := NewKey(); k.Equal(NewKey()) || !key(9).Equal(key(9)) || k.IsZero() || !(Key{}).IsZero() || !(Key{}).Public().IsZero() {
		t.Error("keys compare wrongly")
	}
}

func FuzzParsePublicKey(f *testing.F) {
	f.Add(root.Public().String())
	f.Add(root.secret())
	f.Fuzz(func(t *testing.T, text string) {
		if k, err := ParsePublicKey(text); err == nil && k.String() != text {
			t.Fatalf("%q parsed as %v", text, k)
		}
		if k, err := parseSecret(text); err == nil && k.secret() != text {
			t.Fatal("another private key")
		}
	})
}

// A text that begins with a dash is a flag to most programs.
func TestNewKeyHasAPublicHalfForCommandLines(t *testing.T) {
	for range 1000 { // one in 64 would begin so
		if text := NewKey().Public().String(); text[0] == '-' {
			t.Fatalf("public half %s", text)
		}
	}
}
