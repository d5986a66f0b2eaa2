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

// TestAConvictionThatTheDiskRefusesIsWrittenLater has the folder refuse one of evidence and names, or both: the worker,
// and who has its token, stays out meanwhile, and all is written, once, as soon as the disk takes it.
func TestAConvictionThatTheDiskRefusesIsWrittenLater(t *testing.T) {
	for _, refuses := range [][]string{{"evidence"}, {"convicted"}, {"evidence", "convicted"}} {
		t.Run(strings.Join(refuses, " and "), func(t *testing.T) {
			dir, key := t.TempDir(), seal.NewKey()
			c := Home(dir).OpenCourt(key, nil)
			for _, name := range refuses { // what is in the way is no file, and no folder
				if err := os.Symlink(filepath.Join(dir, "nowhere", name), filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			cheat, again, friend := seal.NewKey().Public(), seal.NewKey().Public(), seal.NewKey().Public()
			f := audit.Finding{Worker: cheat, Answer: audit.Answer{Sum: []int64{1, 2}}}
			hash, err := c.Convict(f, seal.TokenID{1})
			if err == nil {
				t.Fatal("the disk has taken it")
			}
			out := func(c *Court) {
				t.Helper()
				if c.Refuse(cheat, seal.TokenID{2}) == nil || c.Refuse(again, seal.TokenID{1}) == nil || c.Refuse(friend, seal.TokenID{2}) != nil {
					t.Error("who is to stay out is let in, or a friend is not")
				}
				if got, guilty := c.Guilty(cheat); !guilty || got != hash {
					t.Errorf("guilty %v, by %x", guilty, got)
				}
			}
			out(c)
			if n, err := c.Retry(); n != 0 || err == nil {
				t.Errorf("%d are written, error %v", n, err)
			}
			if got, err := c.Convict(f, seal.TokenID{1}); got != hash || err != nil {
				t.Errorf("convicted again by %x, error %v", got, err)
			}
			out(c)
			for _, name := range refuses {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			if n, err := c.Retry(); n != 1 || err != nil {
				t.Errorf("%d are written, error %v", n, err)
			}
			if n, err := c.Retry(); n != 0 || err != nil {
				t.Errorf("%d are written again, error %v", n, err)
			}
			next := Home(dir).OpenCourt(key, nil)
			out(next)
			all, err := next.Convicted()
			if err != nil || len(all) != 1 {
				t.Errorf("%+v, error %v", all, err)
			}
			if got, err := next.Evidence(hash); err != nil || len(got.Answer.Sum) != 2 {
				t.Errorf("evidence %+v, error %v", got, err)
			}
		})
	}
}

// TestConvictionsThatWaitAreBounded convicts more than there is room for.
func TestConvictionsThatWaitAreBounded(t *testing.T) {
	c := Home(t.TempDir()).OpenCourt(seal.NewKey(), nil)
	for i := range maxUnwritten + 5 {
		c.wait(unwritten{Conviction{Worker: seal.PublicKey{byte(i), byte(i >> 8)}}, []byte{1}})
	}
	all, texts := c.waiting(), 0
	for _, u := range all {
		if u.text != nil {
			texts++
		}
	}
	if len(all) != maxUnwritten || texts != maxTexts || all[0].Worker != (seal.PublicKey{5}) || all[len(all)-1].text == nil {
		t.Errorf("%d wait, %d with their evidence", len(all), texts)
	}
}
