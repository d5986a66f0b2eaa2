package gguf

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"kvasir/kernels/quant"
)

// The fewest bytes that a piece of metadata and a tensor take in a file: they bound how many a file
// of a given size can have.
const (
	minMetadata = 8 + 1 + 4 + 1              // key of one byte, type, value
	minTensor   = 8 + 1 + 4 + 8 + 4 + 8      // name of one byte, one dimension, format, offset
	quoteMax    = 80                         // bytes of a string from the file shown in a message
	fetchAgain  = "; fetch the file again"   // what to do about ErrDamaged
	giveGGUF    = "; give a .gguf file"      // what to do about ErrNotGGUF
	convert     = "; convert the model anew" // what to do about a version
)

// Parse reads the header of a model file that is in memory. It keeps data, which must not change
// before Close; name stands in messages. Errors wrap ErrNotGGUF, ErrDamaged or ErrUnsupported.
func Parse(data []byte, name string) (*File, error) { return parse(data, name, newRoom()) }

// room is what the files of a model may still have.
type room struct{ tensors, metadata int }

func newRoom() *room { return &room{tensors: MaxTensors, metadata: MaxMetadata} }

// parse is Parse with less room than a whole model has.
func parse(data []byte, name string, r *room) (*File, error) {
	f := &File{Name: name, Size: int64(len(data)), Alignment: defaultAlignment}
	if err := f.parse(&cursor{data: data}, r); err != nil {
		return nil, f.refuse(err)
	}
	f.Parts = []Part{{Name: name, Size: f.Size, DataOffset: f.DataOffset, Tensors: len(f.Tensors)}}
	return f, nil
}

// refuse is what parse returned, with the name of the file and what to do.
func (f *File) refuse(err error) error {
	if errors.Is(err, ErrNotGGUF) || errors.Is(err, ErrUnsupported) {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	return fmt.Errorf("%s: %w: %w"+fetchAgain, f.Name, ErrDamaged, err)
}

func (f *File) parse(c *cursor, r *room) error {
	tensors, metadata, err := f.parseHeader(c, r)
	if err != nil {
		return err
	}
	if err := f.parseMetadata(c, metadata); err != nil {
		return err
	}
	if err := f.setAlignment(); err != nil {
		return err
	}
	if err := f.parseTensors(c, tensors); err != nil {
		return err
	}
	return f.layOut(c)
}

// parseHeader returns the numbers of tensors and metadata, checked and taken off the room.
func (f *File) parseHeader(c *cursor, r *room) (tensors, metadata int, err error) {
	if !bytes.HasPrefix(c.data, []byte(magic)) {
		return 0, 0, notGGUF(c.data)
	}
	if len(c.data) < headerSize {
		return 0, 0, fmt.Errorf("%d bytes, and a header alone has %d", len(c.data), headerSize)
	}
	f.Version = binary.LittleEndian.Uint32(c.data[4:])
	switch v := f.Version; {
	case v == 2 || v == 3:
	case v != 0 && v&0xffff == 0:
		return 0, 0, fmt.Errorf("%w: big-endian GGUF version %d, want little-endian"+convert,
			ErrUnsupported, bits.ReverseBytes32(v))
	default:
		return 0, 0, fmt.Errorf("%w: GGUF version %d, want 2 or 3"+convert, ErrUnsupported, v)
	}
	c.pos = headerSize
	tensors, err = c.count(binary.LittleEndian.Uint64(c.data[8:]), minTensor, uint64(r.tensors))
	if err != nil {
		return 0, 0, fmt.Errorf("tensors: %w", err)
	}
	metadata, err = c.count(binary.LittleEndian.Uint64(c.data[16:]), minMetadata, uint64(r.metadata))
	if err != nil {
		return 0, 0, fmt.Errorf("metadata: %w", err)
	}
	r.tensors, r.metadata = r.tensors-tensors, r.metadata-metadata
	return tensors, metadata, nil
}

func (f *File) parseMetadata(c *cursor, n int) error {
	f.Meta = make([]KV, n)
	f.keys = make(map[string]int, n)
	for i := range f.Meta {
		kv := &f.Meta[i]
		var err error
		if kv.Key, err = c.name(MaxKey); err != nil {
			return fmt.Errorf("metadata %d of %d: key: %w", i+1, n, err)
		}
		if _, dup := f.keys[kv.Key]; dup {
			return fmt.Errorf("metadata %d of %d: key %s appears twice", i+1, n, quote(kv.Key))
		}
		f.keys[kv.Key] = i
		if kv.Value, err = c.value(); err != nil {
			return fmt.Errorf("metadata %d of %d: %s: %w", i+1, n, quote(kv.Key), err)
		}
	}
	return nil
}

func (f *File) setAlignment() error {
	i, ok := f.keys[alignmentKey]
	if !ok {
		return nil
	}
	v := f.Meta[i].Value
	if v.typ != Uint32 {
		return fmt.Errorf("metadata %s: is %s, want uint32", alignmentKey, v.TypeName())
	}
	f.Alignment, _ = v.uint()
	return checkAlignment(f.Alignment)
}

func checkAlignment(a uint64) error {
	if a < minAlignment || a > MaxAlignment || a&(a-1) != 0 {
		return fmt.Errorf("metadata %s: %d, want a power of two from %d to %d", alignmentKey, a, minAlignment, MaxAlignment)
	}
	return nil
}

func (f *File) parseTensors(c *cursor, n int) error {
	f.Tensors = make([]*Tensor, n)
	f.tensors = make(map[string]*Tensor, n)
	all := make([]Tensor, n)
	dims := make([]int, n*MaxDims)
	for i := range all {
		t := &all[i]
		var err error
		if t.Name, err = c.name(MaxName); err != nil {
			return fmt.Errorf("tensor %d of %d: name: %w", i+1, n, err)
		}
		if err = checkTensorName(t.Name); err == nil && f.tensors[t.Name] != nil {
			err = errors.New("appears twice")
		}
		if err == nil {
			t.Dims, err = c.dims(dims[i*MaxDims : (i+1)*MaxDims])
		}
		if err == nil {
			err = c.tail(t)
		}
		if err != nil {
			return fmt.Errorf("tensor %d of %d: %s: %w", i+1, n, quote(t.Name), err)
		}
		f.Tensors[i], f.tensors[t.Name] = t, t
	}
	return nil
}

// layOut gives each tensor its place, and its bytes where they are here. The header ends at c.pos.
func (f *File) layOut(c *cursor) error {
	size := uint64(len(c.data)) + c.beyond
	if len(f.Tensors) == 0 { // a vocabulary; its padding may have been left out
		f.DataOffset = int64(size)
		return nil
	}
	start := alignUp(uint64(c.pos), f.Alignment) // does not wrap: pos is within a slice
	if start > size {
		return fmt.Errorf("tensor data begins at byte %d of %d", start, size)
	}
	f.DataOffset = int64(start)
	size -= start
	for _, t := range f.Tensors {
		if t.Offset%f.Alignment != 0 {
			return fmt.Errorf("tensor %s: offset %d is not a multiple of the alignment, %d",
				quote(t.Name), t.Offset, f.Alignment)
		}
		if t.Offset > size {
			return fmt.Errorf("tensor %s: offset %d, with %d bytes of data in the file",
				quote(t.Name), t.Offset, size)
		}
		n, err := tensorBytes(t.Format, t.Dims)
		if left := size - t.Offset; err == nil && n > left {
			err = fmt.Errorf("%d bytes of %s%s at offset %d, with %d bytes left in the file",
				n, t.Format, t.Shape(), t.Offset, left)
		}
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
		t.size = n
		if c.beyond == 0 {
			from := start + t.Offset
			t.Data = c.data[from : from+n : from+n]
		}
	}
	return checkOverlap(f.Tensors)
}

func checkOverlap(tensors []*Tensor) error {
	byOffset := slices.Clone(tensors)
	slices.SortFunc(byOffset, func(a, b *Tensor) int { return cmp.Compare(a.Offset, b.Offset) })
	for i, t := range byOffset[1:] {
		if prev := byOffset[i]; prev.Offset+prev.size > t.Offset {
			return fmt.Errorf("tensors %s and %s overlap at offset %d", quote(prev.Name), quote(t.Name), t.Offset)
		}
	}
	return nil
}

// tensorBytes is the size of a tensor's data, computed without wrapping.
func tensorBytes(f quant.Format, dims []int) (uint64, error) {
	values, size := block(f)
	n := uint64(1)
	for _, d := range dims {
		n *= uint64(d) // fits: checkDims
	}
	if dims[0]%values != 0 {
		return 0, fmt.Errorf("rows of %d values are not whole blocks of %d, as %s has them", dims[0], values, f)
	}
	hi, lo := bits.Mul64(n/uint64(values), uint64(size))
	if hi != 0 {
		return 0, fmt.Errorf("%s%v is too large", f, dims)
	}
	return lo, nil
}

// alignUp rounds n up to a multiple of a, a power of two.
func alignUp(n, a uint64) uint64 { return (n + a - 1) &^ (a - 1) }

// checkDims says whether dims can be the dimensions of a tensor.
func checkDims(dims []uint64) error {
	if len(dims) < 1 || len(dims) > MaxDims {
		return fmt.Errorf("%d dimensions, want 1 to %d", len(dims), MaxDims)
	}
	n := uint64(1)
	for i, d := range dims {
		if d == 0 {
			return fmt.Errorf("dimension %d is 0", i+1)
		}
		hi, lo := bits.Mul64(n, d)
		if hi != 0 || lo > math.MaxInt {
			return fmt.Errorf("dimensions %v are too large", dims)
		}
		n = lo
	}
	return nil
}

// checkName says whether s can be a metadata key or a tensor's name.
func checkName(s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("%s is not UTF-8", quote(s))
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%s has a control character", quote(s))
		}
	}
	return nil
}

// checkTensorName refuses what would be a path if a tensor's name ever became a file's.
func checkTensorName(s string) error {
	if strings.ContainsAny(s, `/\`) || s == "." || s == ".." {
		return errors.New("the name is a path")
	}
	return nil
}

// quote is a string from the file as it may stand in a message: cut, printable, on one line.
func quote(s string) string {
	if len(s) > quoteMax {
		return strconv.Quote(s[:quoteMax]) + "…"
	}
	return strconv.Quote(s)
}
