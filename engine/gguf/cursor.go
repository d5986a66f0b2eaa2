package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"kvasir/kernels/quant"
)

// cursor reads a header. Nothing is read or sized before the bytes left have been asked.
type cursor struct {
	data   []byte
	pos    int    // 0 <= pos <= len(data)
	beyond uint64 // bytes of the file after data; 0 but for a file that is elsewhere
}

// errShort: the header goes on beyond the bytes that are here.
var errShort = errors.New("the header goes on")

func (c *cursor) left() uint64 { return uint64(len(c.data)-c.pos) + c.beyond }

// bytes returns a view of the next n bytes.
func (c *cursor) bytes(n uint64) ([]byte, error) {
	if left := c.left(); n > left {
		return nil, fmt.Errorf("%d bytes at byte %d, with %d left in the file", n, c.pos, left)
	}
	if n > uint64(len(c.data)-c.pos) {
		return nil, errShort
	}
	b := c.data[c.pos : c.pos+int(n)]
	c.pos += int(n)
	return b, nil
}

func (c *cursor) uint32() (uint32, error) {
	b, err := c.bytes(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (c *cursor) uint64() (uint64, error) {
	b, err := c.bytes(8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b), nil
}

// count checks the number of things, of which each takes size bytes or more, that are to follow.
func (c *cursor) count(n, size, limit uint64) (int, error) {
	if left := c.left(); n > left/size {
		return 0, fmt.Errorf("%d of them, each of %d bytes or more, with %d bytes left in the file", n, size, left)
	}
	if n > limit {
		return 0, fmt.Errorf("%w: %d of them, at most %d", ErrUnsupported, n, limit)
	}
	return int(n), nil
}

// name reads a metadata key or a tensor's name, a copy.
func (c *cursor) name(limit uint64) (string, error) {
	n, err := c.uint64()
	if err != nil {
		return "", err
	}
	if n < 1 || n > limit {
		return "", fmt.Errorf("%d bytes long, want 1 to %d", n, limit)
	}
	b, err := c.bytes(n)
	if err != nil {
		return "", err
	}
	s := string(b)
	return s, checkName(s)
}

// dims reads the dimensions of a tensor into room.
func (c *cursor) dims(room []int) ([]int, error) {
	n, err := c.uint32()
	if err != nil {
		return nil, err
	}
	if n < 1 || n > MaxDims {
		return nil, fmt.Errorf("%d dimensions, want 1 to %d", n, MaxDims)
	}
	var raw [MaxDims]uint64
	for i := range raw[:n] {
		if raw[i], err = c.uint64(); err != nil {
			return nil, fmt.Errorf("dimension %d: %w", i+1, err)
		}
	}
	if err := checkDims(raw[:n]); err != nil {
		return nil, err
	}
	for i, d := range raw[:n] {
		room[i] = int(d)
	}
	return room[:n:n], nil
}

// tail reads what follows the dimensions of a tensor: format and offset.
func (c *cursor) tail(t *Tensor) error {
	f, err := c.uint32()
	if err != nil {
		return fmt.Errorf("format: %w", err)
	}
	t.Format = quant.Format(f)
	if values, _ := block(t.Format); values == 0 {
		return fmt.Errorf("%w: format number %d is unknown; give the model in %s", ErrUnsupported, f, supportedFormats())
	}
	if t.Offset, err = c.uint64(); err != nil {
		return fmt.Errorf("offset: %w", err)
	}
	return nil
}

// value reads the type of a piece of metadata and its value, a view.
func (c *cursor) value() (Value, error) {
	t, err := c.uint32()
	if err != nil {
		return Value{}, fmt.Errorf("type: %w", err)
	}
	switch typ := Type(t); {
	case typ == Array:
		return c.array()
	case typ == String:
		b, err := c.string()
		return Value{typ: String, raw: b}, err
	case typ.size() > 0:
		b, err := c.bytes(typ.size())
		v := Value{typ: typ, raw: b}
		if err == nil && typ == Bool && b[0] > 1 {
			err = fmt.Errorf("bool of %d, want 0 or 1", b[0])
		}
		return v, err
	}
	return Value{}, fmt.Errorf("value type %d is unknown", t)
}

func (c *cursor) string() ([]byte, error) {
	n, err := c.uint64()
	if err != nil {
		return nil, fmt.Errorf("length of a string: %w", err)
	}
	b, err := c.bytes(n)
	if err != nil {
		return nil, fmt.Errorf("string of %w", err)
	}
	return b, nil
}

// array reads the head of an array and steps over its elements, checking what they need to be read
// later without an error.
func (c *cursor) array() (Value, error) {
	t, err := c.uint32()
	if err != nil {
		return Value{}, fmt.Errorf("type of an array: %w", err)
	}
	elem := Type(t)
	size := elem.size()
	switch {
	case elem == String:
		size = 8 // an empty one
	case elem == Array:
		return Value{}, fmt.Errorf("%w: an array of arrays", ErrUnsupported)
	case size == 0:
		return Value{}, fmt.Errorf("value type %d of an array is unknown", t)
	}
	n, err := c.uint64()
	if err != nil {
		return Value{}, fmt.Errorf("length of an array: %w", err)
	}
	v := Value{typ: Array, elem: elem}
	if v.n, err = c.count(n, size, MaxArray); err != nil {
		return Value{}, fmt.Errorf("array of %s: %w", elem, err)
	}
	start := c.pos
	if elem != String {
		v.raw, err = c.bytes(n * size)
		if elem == Bool && err == nil {
			err = checkBools(v.raw)
		}
		return v, err
	}
	for i := range v.n {
		if _, err := c.string(); err != nil {
			return Value{}, fmt.Errorf("element %d of %d: %w", i+1, v.n, err)
		}
	}
	v.raw = c.data[start:c.pos]
	return v, nil
}

func checkBools(b []byte) error {
	for i, x := range b {
		if x > 1 {
			return fmt.Errorf("element %d of %d: bool of %d, want 0 or 1", i+1, len(b), x)
		}
	}
	return nil
}
