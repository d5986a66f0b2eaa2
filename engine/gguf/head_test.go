package gguf

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kvasir/kernels/quant"
)

// shelf opens files that are in memory, and counts the bytes that are read.
type shelf struct {
	files map[string][]byte
	read  int64
}

func (s *shelf) open(name string) (io.ReaderAt, int64, error) {
	data, ok := s.files[name]
	if !ok {
		return nil, 0, fs.ErrNotExist
	}
	return counted{bytes.NewReader(data), s}, int64(len(data)), nil
}

type counted struct {
	io.ReaderAt
	s *shelf
}

func (c counted) ReadAt(p []byte, off int64) (int, error) {
	c.s.read += int64(len(p))
	return c.ReaderAt.ReadAt(p, off)
}

// sameHead compares what was read of a head with the file.
func sameHead(t *testing.T, got, want *File) {
	t.Helper()
	if len(got.Tensors) != len(want.Tensors) || len(got.Meta) != len(want.Meta) || got.Size != want.Size {
		t.Fatalf("%d tensors, %d metadata, %d bytes; want %d, %d, %d", len(got.Tensors), len(got.Meta), got.Size,
			len(want.Tensors), len(want.Meta), want.Size)
	}
	for i, p := range want.Parts {
		if g := got.Parts[i]; g.Size != p.Size || g.DataOffset != p.DataOffset || g.Tensors != p.Tensors {
			t.Errorf("part %d is %+v, want %+v", i, g, p)
		}
	}
	for i, w := range want.Tensors {
		g := got.Tensors[i]
		if g.Name != w.Name || g.Format != w.Format || !slices.Equal(g.Dims, w.Dims) || g.Part != w.Part ||
			g.Offset != w.Offset || g.Bytes() != int64(len(w.Data)) || g.Data != nil {
			t.Errorf("tensor %d is %+v, want %+v", i, g, w)
		}
	}
}

func TestReadHeadReadsTheHeadAndNoMore(t *testing.T) {
	w := &Writer{}
	w.Set("general.name", "x")
	w.Set("tokens", slices.Repeat([]string{"a token of some length"}, 1<<17)) // 4 MB
	for _, name := range []string{"a", "b", "c"} {
		w.Add(name, quant.Q8_0, []int{1024, 8 << 10}, Bytes(make([]byte, 34*32*8<<10)))
	}
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole.gguf")
	if err := w.create(whole); err != nil {
		t.Fatal(err)
	}
	f, err := Open(whole)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // of a test
	paths, err := f.WriteParts(filepath.Join(dir, "m"), 3)
	if err != nil {
		t.Fatal(err)
	}
	s := &shelf{files: map[string][]byte{}}
	for _, p := range append(paths, whole) {
		if s.files[p], err = os.ReadFile(p); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{whole, paths[0], paths[2]} {
		s.read = 0
		got, err := ReadHead(path, s.open)
		if err != nil {
			t.Fatal(err)
		}
		want, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		sameHead(t, got, want)
		if err := want.Close(); err != nil {
			t.Error(err)
		}
		if s.read > 10<<20 {
			t.Errorf("%s: %d bytes read of %d", filepath.Base(path), s.read, want.Size)
		}
	}
	delete(s.files, paths[1])
	if _, err := ReadHead(paths[0], s.open); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a part is missing: %v", err)
	}
}

func TestReadHeadRefuses(t *testing.T) {
	good := small(t, 3)
	for _, c := range []struct {
		name, says string
		size       int64
		data       []byte
		want       error
	}{
		{"empty", "empty", 0, nil, ErrNotGGUF},
		{"page", "a web page", 64, slices.Concat([]byte("<!DOCTYPE html>"), make([]byte, 49)), ErrNotGGUF},
		{"cut", "EOF", int64(len(good)) + 5000, good, io.ErrUnexpectedEOF},
		{"ends in the head", "damaged", 100, good[:100], ErrDamaged},
	} {
		_, err := ReadHead("x.gguf", func(string) (io.ReaderAt, int64, error) { return eofAt(c.data), c.size, nil })
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// A head without an end: 128 MiB are read of it and no more.
	h := header(0, 1).key("k", String).u64(1 << 40)
	s := &endless{head: h}
	_, err := ReadHead("x.gguf", func(string) (io.ReaderAt, int64, error) { return s, 1 << 50, nil })
	if !errors.Is(err, ErrUnsupported) || s.last > MaxHead {
		t.Errorf("%d bytes read: %v", s.last, err)
	}
}

type eofAt []byte

func (e eofAt) ReadAt(p []byte, off int64) (int, error) {
	n, err := bytes.NewReader(e).ReadAt(p, off)
	if n < len(p) && err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

type endless struct {
	head []byte
	last int64
}

func (e *endless) ReadAt(p []byte, off int64) (int, error) {
	if off < int64(len(e.head)) {
		copy(p, e.head[off:])
	}
	e.last = max(e.last, off+int64(len(p)))
	return len(p), nil
}

// FuzzHead cuts a file anywhere: what is parsed of the beginning is what is parsed of the whole, or it is
// said that the head goes on.
func FuzzHead(f *testing.F) {
	f.Add(small(f, 2), 100)
	f.Add(small(f, 3), 300)
	for _, c := range refused {
		if len(c.data) < 1<<12 {
			f.Add([]byte(c.data), len(c.data)/2)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, cut int) {
		if len(data) < headerSize {
			return
		}
		cut = headerSize + int(uint(cut)%uint(len(data)-headerSize+1))
		var got, want File
		got.Alignment, want.Alignment = defaultAlignment, defaultAlignment
		errGot := got.parse(&cursor{data: data[:cut], beyond: uint64(len(data) - cut)}, newRoom())
		if errors.Is(errGot, errShort) {
			return
		}
		errWant := want.parse(&cursor{data: data}, newRoom())
		if (errGot == nil) != (errWant == nil) {
			t.Fatalf("cut at %d of %d: %v; whole: %v", cut, len(data), errGot, errWant)
		}
		if errGot == nil && (got.DataOffset != want.DataOffset || len(got.Tensors) != len(want.Tensors)) {
			t.Errorf("cut at %d of %d: another head", cut, len(data))
		}
	})
}
