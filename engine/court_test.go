package engine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvasir/engine/audit"
	"kvasir/wire/seal"
)

// TestATokenOfAConvictedWorkerIsRefused has the same person come with another key, and another person with another
// token; and reads a file of a version that knew no tokens.
func TestATokenOfAConvictedWorkerIsRefused(t *testing.T) {
	dir := t.TempDir()
	c := Home(dir).OpenCourt(seal.NewKey(), nil)
	cheat, again, friend, old := seal.NewKey().Public(), seal.NewKey().Public(), seal.NewKey().Public(), seal.NewKey().Public()
	token, other := seal.TokenID{1}, seal.TokenID{2}
	if _, err := c.Convict(audit.Finding{Worker: cheat}, token); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "convicted")
	text, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(text), token.String()) {
		t.Errorf("the token stands in the file; error %v", err)
	}
	line := old.String() + " 1790000000 " + strings.Repeat("ab", 32) + "\n"
	if err := os.WriteFile(path, append(text, line...), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name    string
		worker  seal.PublicKey
		token   seal.TokenID
		refused string // part of why
	}{
		{"the cheat", cheat, token, "found wrong on"},
		{"the cheat with another token", cheat, other, "found wrong on"},
		{"another key, the same token", again, token, "the same token"},
		{"a friend", friend, other, ""},
		{"a hub that tells no token", friend, seal.TokenID{}, ""},
		{"of the version before", old, other, "found wrong on"},
	} {
		err := c.Refuse(x.worker, x.token)
		if x.refused == "" && err != nil || x.refused != "" && (!errors.Is(err, ErrConvicted) || !strings.Contains(err.Error(), x.refused)) {
			t.Errorf("%s: %v, want %q", x.name, err, x.refused)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: more than one line", x.name)
		}
	}
	if err := c.Pardon(cheat); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Refuse(cheat, token), c.Refuse(again, token)); err != nil {
		t.Errorf("pardoned: %v", err)
	}
	if err := c.Refuse(old, other); err == nil {
		t.Error("another is pardoned")
	}
}
