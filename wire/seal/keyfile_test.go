package seal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

func TestKeyFileIsMadeOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "home", "keys", "worker.key")
	k, created, err := LoadOrCreateKey(path)
	if err != nil || !created {
		t.Fatalf("created %v, %v", created, err)
	}
	again, created, err := LoadOrCreateKey(path)
	if err != nil || created || !again.Equal(k) {
		t.Errorf("second time: created %v, %v, same %v", created, err, again.Equal(k))
	}
	if err := CreateKey(path, NewKey()); !errors.Is(err, fs.ErrExist) || !errors.Is(err, ErrKeyFile) {
		t.Errorf("created over it: %v", err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("left beside it: %v, %v", entries, err)
	}
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), "# "+k.Public().String()+"\n") {
		t.Errorf("file %q, %v", text, err)
	}
	if runtime.GOOS == "windows" {
		return // modes mean nothing
	}
	for p, want := range map[string]fs.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v", p, info.Mode().Perm(), err)
		}
	}
}

func TestKeyFileIsMadeOnceByMany(t *testing.T) {
	path := filepath.Join(t.TempDir(), "worker.key")
	var wg sync.WaitGroup
	keys, made := make([]Key, 16), make([]bool, 16)
	for i := range keys {
		wg.Go(func() {
			var err error
			if keys[i], made[i], err = LoadOrCreateKey(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	for i, k := range keys {
		if !k.Equal(keys[0]) {
			t.Fatal("two keys")
		}
		if made[i] {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d made it", n)
	}
}

func TestKeyFileIsRefused(t *testing.T) {
	good := keyFilePrefix + worker.secret()
	for _, tt := range []struct {
		name, text string
		mode       fs.FileMode
		want       string
	}{
		{"empty", "", 0o600, "it is empty"},
		{"comments only", "# hello\n\n", 0o600, "it is empty"},
		{"not a key", "hello\n", 0o600, `no line begins with "kvasir-key-1 "`},
		{"another version", "kvasir-key-2 x\n", 0o600, "no line begins"},
		{"cut", good[:40], 0o600, "characters, want 48"},
		{"wrong character", strings.Replace(good, "C", "D", 1), 0o600, "checksum"},
		{"two keys", good + "\n" + good + "\n", 0o600, "more than one line"},
		{"too long", "# " + strings.Repeat("x", maxKeyFile), 0o600, "longer than"},
		{"readable by the group", good, 0o640, "chmod 600 "},
		{"readable by all", good, 0o644, "mode is 0644"},
		{"writable by others", good, 0o602, "mode is 0602"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if runtime.GOOS == "windows" && tt.mode != 0o600 {
				t.Skip("modes mean nothing on Windows")
			}
			path := filepath.Join(t.TempDir(), "a.key")
			if err := os.WriteFile(path, []byte(tt.text), tt.mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, tt.mode); err != nil { // whatever the umask
				t.Fatal(err)
			}
			_, err := LoadKey(path)
			if !errors.Is(err, ErrKeyFile) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			oneLine(t, err, worker.secret())
			if _, _, err := LoadOrCreateKey(path); err == nil {
				t.Error("written over")
			}
		})
	}
	if _, err := LoadKey(t.TempDir()); !errors.Is(err, ErrKeyFile) {
		t.Errorf("a folder: %v", err)
	}
	if _, err := LoadKey(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, ErrKeyFile) {
		t.Errorf("no file: %v", err)
	}
	if err := CreateKey(filepath.Join(os.DevNull, "x", "y"), worker); !errors.Is(err, ErrKeyFile) {
		t.Errorf("no folder: %v", err)
	}
}

func TestKeyFileMayHaveComments(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.key")
	text := "# my key\r\n\r\n  " + keyFilePrefix + worker.secret() + "  \r\n# end"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if k, err := LoadKey(path); err != nil || !k.Equal(worker) {
		t.Errorf("got %v, %v", k, err)
	}
}

func FuzzParseKeyFile(f *testing.F) {
	f.Add("# x\n" + keyFilePrefix + worker.secret() + "\n")
	f.Fuzz(func(t *testing.T, text string) {
		if k, err := parseKeyFile(text); err == nil && (k.IsZero() || !strings.Contains(text, k.secret())) {
			t.Fatal("a key from nowhere")
		}
	})
}
