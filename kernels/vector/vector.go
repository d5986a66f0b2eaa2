// Package vector is what kernels do value by value, in assembly where the processor has a variant for
// it: rows are quantised, gate and up joined, picks summed and packed, and the backbone's sums, norms
// and exponentials computed.
//
// Every operation gives the bits of its definition: that of kernels/ref or kernels/quant where they
// have one of the same name, else the Go loop beside it here, which also computes what is left over
// after the last whole vector. A NaN is a NaN in all of them; its payload may differ.
//
// Slices may be the same memory where that is said, and must not overlap otherwise. Lengths that do
// not fit together are a bug of the caller's and panic before assembly is entered. Nothing here
// allocates, apart from AppendPartial where dst has no room.
package vector

import (
	"fmt"
	"math"

	"kvasir/kernels/variant"
)

// Ops is the operations of one variant. It holds no state: any number of goroutines use one.
type Ops struct {
	mask int // takes what is no whole vector of 8 off a length; 0 if there is no assembly
}

var (
	portable = &Ops{}
	assembly = &Ops{mask: ^7}
)

// For returns the operations of v. The processor has v: the caller's promise (variant.Available).
// All variants of one kind of processor share their code here, since none of their extensions helps
// with these operations.
func For(v variant.Variant) *Ops {
	if hasAssembly(v) {
		return assembly
	}
	return portable
}

// Active returns the operations of the variant that is active, or the portable ones where
// KVASIR_KERNEL names one that this machine lacks: a program has ended with that error before.
func Active() *Ops {
	c, err := variant.Active()
	if err != nil {
		return portable
	}
	return For(c.Variant)
}

// whole returns how many of n values assembly takes, 8 at a time.
func (o *Ops) whole(n int) int { return n & o.mask }

// tiles returns how many of n values assembly takes, 32 at a time.
func (o *Ops) tiles(n int) int { return n & o.mask &^ 31 }

// simd reports whether there is assembly.
func (o *Ops) simd() bool { return o.mask != 0 }

// same panics unless the lengths are those of slices of one length.
func same(what string, a, b int) {
	if a != b {
		panic(fmt.Sprintf("BUG: %s of %d and %d values", what, a, b))
	}
}

// magnitude returns the bits of |x|.
func magnitude(x float32) uint32 { return math.Float32bits(x) &^ (1 << 31) }

// pow2 returns 2^e, for e from -126 to 127.
func pow2(e int) float32 { return math.Float32frombits(uint32(127+e) << 23) }
