package gguf

import (
	"errors"
	"fmt"
	"io"
	"math"
)

// firstRead is how much of a file elsewhere is read at once to begin with, and MaxHead how much of it may
// be head: real ones have up to 20 MB, most of it the vocabulary.
const (
	firstRead = 1 << 20
	MaxHead   = 128 << 20
)

// ReadHead reads the head of a file that is elsewhere, for instance on a web server: metadata, and where
// the tensors stand, whose Data is nil. If it is part of a split model it reads the heads of all parts.
// open gives a file's bytes and its size; name has the form that Open takes, and so have the names of the
// other parts. What is read, and held until the File is garbage, is at most twice the heads.
func ReadHead(name string, open func(name string) (io.ReaderAt, int64, error)) (*File, error) {
	r := newRoom()
	one := func(name string) (*File, error) {
		from, size, err := open(name)
		if err != nil {
			return nil, err
		}
		return readOne(name, from, size, r)
	}
	f, err := one(name)
	if err != nil {
		return nil, err
	}
	return openParts(f, one)
}

// readOne reads the head of one file: more and more of it, until it is whole.
func readOne(name string, from io.ReaderAt, size int64, r *room) (*File, error) {
	if size < 1 || size > math.MaxInt64-MaxAlignment {
		return nil, fmt.Errorf("%s: %w", name, notGGUF(nil))
	}
	var data []byte
	for next := int64(firstRead); ; next *= 2 {
		next = min(next, size)
		if next > MaxHead && len(data) == MaxHead {
			return nil, fmt.Errorf("%s: %w: its head has more than %d bytes", name, ErrUnsupported, MaxHead)
		}
		grown := make([]byte, min(next, MaxHead))
		had := copy(grown, data)
		if n, err := from.ReadAt(grown[had:], int64(had)); n < len(grown)-had {
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		data = grown
		left := *r
		f := &File{Name: name, Size: size, Alignment: defaultAlignment}
		err := f.parse(&cursor{data: data, beyond: uint64(size) - uint64(len(data))}, &left)
		if errors.Is(err, errShort) {
			continue
		}
		if err != nil {
			return nil, f.refuse(err)
		}
		*r = left
		for _, t := range f.Tensors {
			t.Data = nil // of a small file, all of which was read
		}
		f.Parts = []Part{{Name: name, Size: size, DataOffset: f.DataOffset, Tensors: len(f.Tensors)}}
		return f, nil
	}
}
