//go:build unix

package gguf

import (
	"bytes"
	"errors"
	"os"
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

// Offsets beyond what 32 bits hold, in a file that is all holes but for its header and two tensors.
func TestOpenReadsTensorsBeyondFourGiB(t *testing.T) {
	const gib, lastAt = 1 << 30, 5<<30 - 64
	dir := t.TempDir()
	needSparse(t, dir)
	h := header(3, 0).tensor("first", 0, 0, 8).tensor("wide", 0, 64, gib+gib/8).tensor("last", 0, lastAt, 8).pad()
	path := filepath.Join(dir, "large.gguf")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	first, last := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	for at, data := range map[int64][]byte{0: h, int64(len(h)): first, int64(len(h)) + lastAt: last} {
		if _, err := file.WriteAt(data, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	wide, err := f.Tensor("wide")
	if err != nil || int64(len(wide.Data)) != 4*(gib+gib/8) {
		t.Fatalf("%d bytes, %v", len(wide.Data), err)
	}
	for name, want := range map[string][]byte{"first": first, "last": last} {
		if x, err := f.Tensor(name); err != nil || !bytes.Equal(x.Data, want) {
			t.Errorf("%s: % x, %v, want % x", name, x.Data, err, want)
		}
	}
	if end := wide.Data[len(wide.Data)-32:]; !bytes.Equal(end, make([]byte, 32)) {
		t.Errorf("the end of a hole is % x", end)
	}
	if f.Size != int64(len(h))+lastAt+32 {
		t.Errorf("%d bytes", f.Size)
	}
}

// needSparse skips the test unless files in dir may have holes, and addresses 64 bits.
func needSparse(t *testing.T, dir string) {
	t.Helper()
	if ^uint(0)>>32 == 0 {
		t.Skip("a system of 32 bits cannot map 5 GiB")
	}
	path := filepath.Join(dir, "hole")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<20); err != nil {
		t.Skipf("the file system of %s makes no holes: %v", dir, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	if st.Blocks*512 >= 1<<20 {
		t.Skipf("the file system of %s makes no holes: 5 GiB would be written", dir)
	}
}
