package moe

import (
	"unsafe"

	"kvasir/internal/slab"
)

// SlabAlign is the alignment in bytes of every array in a slab: a cache line, and the widest vector.
const SlabAlign = slab.Align

// AlignedBytes returns n zero bytes of the Go heap whose address is a multiple of SlabAlign. The Go
// collector does not move them, so the address stays.
func AlignedBytes(n int) []byte { return slab.Aligned(n) }

// A carver cuts the arrays of one struct out of one slab. Its user runs the same cuts twice: before
// allocate they only add up, after it they are real.
type carver struct {
	pinned bool // memory of slab.Shared is wanted
	mem    []byte
	slab   *slab.Slab // what mem is, where the arena had it
	used   int
}

// allocate makes a slab of what has been asked for; the cuts then start again from its beginning.
func (c *carver) allocate() {
	if c.mem == nil && c.pinned {
		if s, err := slab.Shared.Get(c.used); err == nil { // otherwise the heap will do
			c.slab, c.mem = s, s.Bytes()
			clear(c.mem)
		}
	}
	if c.mem == nil {
		c.mem = AlignedBytes(c.used)
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
	if c.mem == nil || n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&c.mem[at : at+size][0])), n)
}
