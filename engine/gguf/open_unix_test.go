//go:build unix

package gguf

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A pipe that nobody writes to would hold Open for ever.
func TestOpenRefusesAPipeWithoutWaiting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(path)
	if !errors.Is(err, ErrNotGGUF) || !strings.Contains(err.Error(), "a pipe, not a regular file") {
		t.Error(err)
	}
}
