package gguf

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestMapIsTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	want := bytes.Repeat([]byte("bytes"), 5000)
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Map(path)
	if err != nil {
		t.Fatal(err)
	}
	m.Forget(m.Bytes())
	if !bytes.Equal(m.Bytes(), want) {
		t.Error("other bytes")
	}
	for range 2 {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if m.Bytes() != nil {
		t.Error("bytes after Close")
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{empty, filepath.Join(t.TempDir(), "none"), t.TempDir()} {
		if _, err := Map(path); err == nil {
			t.Errorf("%s was mapped", path)
		}
	}
}
