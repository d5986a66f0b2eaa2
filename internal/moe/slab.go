package moe

import "unsafe"

// SlabAlign is the alignment in bytes of every array in a slab: a cache line, and the widest vector.
const SlabAlign = 64

// AlignedBytes returns n zero bytes whose address is a multiple of SlabAlign. The Go collector does not
// move heap objects, so the address stays.
func AlignedBytes(n int) []byte {
	raw := make([]byte, n+SlabAlign-1)
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (SlabAlign - 1))
	return raw[off : off+n : off+n]
}

// A carver cuts the arrays of one struct out of one slab. Its user runs the same cuts twice: before
// allocate they only add up, after it they are real.
type carver struct {
	slab []byte
	used int
}

// allocate makes a slab of what has been asked for; the cuts then start again from its beginning.
func (c *carver) allocate() {
	if c.slab == nil {
		c.slab = AlignedBytes(c.used)
	}
	c.used = 0
}

// carve returns n zero values of T at the next aligned place, or nil while c is still measuring. T holds
// no pointers.
func carve[T int8 | int32 | int64 | uint16 | float32 | Status](c *carver, n int) []T {
	var zero T
	at := c.used
	size := n * int(unsafe.Sizeof(zero))
	c.used += (size + SlabAlign - 1) &^ (SlabAlign - 1)
	if c.slab == nil || n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&c.slab[at : at+size][0])), n)
}
