package slices

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"kvasir/engine/gguf"
	"kvasir/engine/tiny"
)

// Hashes outlive a restart, and not a change of the model or of what was kept.
func TestSourceKeepsHashes(t *testing.T) {
	path, dir := write(t, smallKind, smallKind), filepath.Join(t.TempDir(), "kept")
	first := source(t, open(t, path), 2)
	if err := first.KeepIn(dir); err != nil {
		t.Fatal(err)
	}
	want := offered(t, first, 1, 0, 4)
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 1 {
		t.Fatalf("%v, %v", names, err)
	}
	kept := filepath.Join(dir, names[0].Name())
	known := func() (n int) {
		t.Helper()
		s := source(t, open(t, path), 2)
		if err := s.KeepIn(dir); err != nil {
			t.Fatal(err)
		}
		for _, l := range s.layers {
			if l.hashes != nil {
				n++
			}
		}
		if got := offered(t, s, 1, 0, 4); got != want {
			t.Errorf("%v, want %v", got, want)
		}
		return n
	}
	if n := known(); n != 1 {
		t.Errorf("%d layers are known after a restart, want 1", n)
	}
	offered(t, first, 0, 0, 1)
	if n := known(); n != 2 {
		t.Errorf("%d layers are known after a restart, want 2", n)
	}
	good, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(good) {
		if i > 100 && i%97 != 0 {
			continue
		}
		bad := append([]byte(nil), good...)
		bad[i] ^= 1
		for _, b := range [][]byte{bad, good[:i]} {
			if err := os.WriteFile(kept, b, fileMode); err != nil {
				t.Fatal(err)
			}
			if n := readKept(kept, first.keep.key); len(n) != 0 {
				t.Fatalf("%d layers of a file that is damaged at byte %d", len(n), i)
			}
		}
	}
	if err := os.WriteFile(kept, good, fileMode); err != nil {
		t.Fatal(err)
	}
	then := time.Unix(1e9, 0)
	if err := os.Chtimes(path, then, then); err != nil {
		t.Fatal(err)
	}
	if n := known(); n != 0 {
		t.Errorf("%d layers of a model that has changed are known", n)
	}
}

func TestSourceOfMemoryKeepsNothing(t *testing.T) {
	f, err := gguf.Parse(tiny.Model(), tiny.Name)
	if err != nil {
		t.Fatal(err)
	}
	s := source(t, f, 4)
	if err := s.KeepIn(t.TempDir()); err == nil {
		t.Error("what is no file was kept")
	}
	offered(t, s, 0, 0, 1)
}
