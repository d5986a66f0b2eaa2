package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"unicode/utf8"
)

// Open maps a model file into memory, read-only, and parses its header; of a split model it opens all
// parts, whichever of them path is. Tensors are read from disk as they are used. The files must keep
// their sizes while they are open: the system ends a process that reads a mapped page beyond the end of
// a file.
func Open(path string) (*File, error) {
	r := newRoom()
	f, err := openOne(path, r)
	if err != nil {
		return nil, err
	}
	return openParts(f, func(path string) (*File, error) { return openOne(path, r) })
}

// openOne opens one file.
func openOne(path string, r *room) (*File, error) {
	file, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // read-only, and the mapping outlives it
	if size == 0 {
		return nil, fmt.Errorf("%s: %w", path, notGGUF(nil))
	}
	data, unmap, err := mapFile(file, size)
	if err != nil {
		return nil, fmt.Errorf("%s: map %d bytes into memory: %w", path, size, err)
	}
	f, err := parse(data, path, r)
	if err != nil {
		if uerr := unmap(); uerr != nil {
			err = fmt.Errorf("%w; unmap: %w", err, uerr)
		}
		return nil, err
	}
	f.unmap = []func() error{unmap}
	return f, nil
}

// openRegular opens a file for reading, if it is one: a pipe or a device could block for ever.
func openRegular(path string) (*os.File, int, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, pathError(path, err)
	}
	if err := checkRegular(path, info); err != nil {
		return nil, 0, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, pathError(path, err)
	}
	info, err = file.Stat() // of what was opened
	if err == nil {
		err = checkRegular(path, info)
	}
	if err != nil {
		file.Close() //nolint:errcheck // read-only
		return nil, 0, err
	}
	return file, int(info.Size()), nil
}

func checkRegular(path string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return fmt.Errorf("%s: %w: a directory"+giveGGUF, path, ErrNotGGUF)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: %w: %s, not a regular file"+giveGGUF, path, ErrNotGGUF, kindOf(info.Mode()))
	case info.Size() > math.MaxInt:
		return fmt.Errorf("%s: %w: %d bytes are too many for this system", path, ErrUnsupported, info.Size())
	}
	return nil
}

func kindOf(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// pathError is err without the name of the system call, and with the path once.
func pathError(path string, err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		err = pe.Err
	}
	return fmt.Errorf("%s: %w"+giveGGUF, path, err)
}

// foreign is how files begin that people take for models.
var foreign = []struct{ prefix, what string }{
	{"PK\x03\x04", "a zip archive, or a PyTorch checkpoint"},
	{"\x80\x02", "a pickle, a PyTorch checkpoint"},
	{"\x80\x03", "a pickle, a PyTorch checkpoint"},
	{"\x80\x04", "a pickle, a PyTorch checkpoint"},
	{"\x80\x05", "a pickle, a PyTorch checkpoint"},
	{"\x1f\x8b", "compressed with gzip"},
	{"\x28\xb5\x2f\xfd", "compressed with zstd"},
	{"lmgg", "an old ggml file"},
	{"fmgg", "an old ggml file"},
	{"tjgg", "an old ggml file"},
	{"version https://git-lfs", "a Git LFS pointer: fetch the file that it stands for"},
	{"<!DOCTYPE", "a web page"},
	{"<html", "a web page"},
}

// notGGUF says what the file is instead, as far as its first bytes tell.
func notGGUF(data []byte) error {
	if len(data) == 0 {
		return fmt.Errorf("%w: empty"+giveGGUF, ErrNotGGUF)
	}
	what := ""
	switch head := data[:min(len(data), 64)]; {
	case len(data) > 9 && data[8] == '{' && bytes.Equal(data[5:8], []byte{0, 0, 0}):
		what = "a safetensors file; " // the length of its JSON in 8 bytes, then the JSON
	case isText(head):
		what = "a text file; "
	}
	for _, f := range foreign {
		if bytes.HasPrefix(data, []byte(f.prefix)) {
			what = f.what + "; "
		}
	}
	return fmt.Errorf("%w (%sstarts with % x, want % x)"+giveGGUF, ErrNotGGUF, what, data[:min(len(data), 4)], magic)
}

func isText(head []byte) bool {
	for _, b := range head {
		if b < ' ' && b != '\n' && b != '\r' && b != '\t' || b >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
