package vector

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"kvasir/kernels/variant"
)

// region is memory for one slice at a time, with canary bytes on both sides of it.
type region struct {
	mem    []byte
	lo, hi int // the slice
}

const (
	canary = 0xa5
	fence  = 64 // bytes of canaries on a side
)

// Where a slice lies in its region: at one of the guards, or one element off the middle, so that it is
// aligned to nothing larger.
const (
	atStart = iota
	atEnd
	within
	places
)

// place returns a slice of n elements, to be filled by the caller.
func place[T any](r *region, n, where int) []T {
	var zero T
	element := int(unsafe.Sizeof(zero))
	r.lo = 0
	switch where {
	case atEnd:
		r.lo = len(r.mem) - n*element
	case within:
		r.lo = (len(r.mem)-n*element)/2&^63 + element
	}
	r.hi = r.lo + n*element
	for i := max(0, r.lo-fence); i < min(len(r.mem), r.hi+fence); i++ {
		r.mem[i] = canary
	}
	if n == 0 {
		return []T{}
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&r.mem[r.lo])), n)
}

// intact reports whether nothing was written outside the slice.
func (r *region) intact() bool {
	for i := max(0, r.lo-fence); i < min(len(r.mem), r.hi+fence); i++ {
		if (i < r.lo || i >= r.hi) && r.mem[i] != canary {
			return false
		}
	}
	return true
}

// eachVariant runs f for the operations of every variant that this machine has. Variants that share
// their operations are run once, under the name of the first.
func eachVariant(t *testing.T, f func(t *testing.T, o *Ops)) {
	ran := map[*Ops]bool{}
	for _, v := range variant.Available() {
		if o := For(v); !ran[o] {
			ran[o] = true
			t.Run(v.String(), func(t *testing.T) { f(t, o) })
		}
	}
}

// best returns the operations of the best variant that this machine has.
func best() *Ops {
	list := variant.Available()
	return For(list[len(list)-1])
}

func newRand(t testing.TB) (*rand.Rand, uint64) {
	seed := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %#x", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0)), seed
}

// lengths are all that a vector or a block ends in, and some of real rows.
var lengths = func() []int {
	var list []int
	for n := range 71 {
		list = append(list, n)
	}
	return append(list, 96, 128, 160, 255, 256, 257, 511, 512, 513, 3072)
}()

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

var extremes = []float32{
	0, float32(math.Copysign(0, -1)), inf, -inf, nan, 1, -1, 0.5, -0.5, 1.5, 2.5, 1e4, -1e4,
	math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, 0x1p-126, -0x1p-126, 0x1.fffffcp-127,
	0x1p-40, 0x1.fffffep-41, 0x1.000002p-40, 0x1p40, -0x1p40, 0x1.fffffep39, 0x1.000002p40,
	0x1p31, -0x1p31, 0x1.fffffep30, 0x1.000002p31, math.MaxFloat32, -math.MaxFloat32,
	-44, -43.999996, -44.000004, -87, -86.99999, -87.00001, -88, -88.00001, 44, 87, 88, 87.99999, 8388608.5, 0x1p23,
}

// Kinds of values.
const (
	ordinary  = iota // as hidden states are
	outlying         // the same with a few of 1e4
	tiny             // subnormal numbers and their neighbours
	extreme          // one in eight from the list of extremes
	arbitrary        // any bits
	kinds
)

var kindNames = [kinds]string{"ordinary", "outlying", "tiny", "extreme", "arbitrary"}

func fill(x []float32, kind int, r *rand.Rand) {
	for i := range x {
		v := float32(r.NormFloat64() * 3)
		switch {
		case kind == outlying && r.IntN(50) == 0:
			v *= 1e4
		case kind == tiny:
			v *= float32(math.Ldexp(1, -110-r.IntN(40)))
		case kind == extreme && r.IntN(8) == 0:
			v = extremes[r.IntN(len(extremes))]
		case kind == arbitrary:
			v = math.Float32frombits(r.Uint32())
			if v != v {
				v = nan // a payload may be lost, or end as a number in exp
			}
		}
		x[i] = v
	}
}

// fillSums fills x with sums of up to the given number of bits.
func fillSums(x []int64, bits int, r *rand.Rand) {
	for i := range x {
		x[i] = int64(r.Uint64()) >> (64 - bits)
	}
}

// unlike says where a and b differ in bits, or returns "". A NaN is like any other.
func unlike(a, b []float32) string {
	if len(a) != len(b) {
		return fmt.Sprintf("%d values, want %d", len(a), len(b))
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) && (a[i] == a[i] || b[i] == b[i]) {
			return fmt.Sprintf("value %d of %d is %g (%#08x), want %g (%#08x)",
				i, len(a), a[i], math.Float32bits(a[i]), b[i], math.Float32bits(b[i]))
		}
	}
	return ""
}

func unlikeSums(a, b []int64) string {
	for i := range a {
		if a[i] != b[i] {
			return fmt.Sprintf("sum %d of %d is %d, want %d", i, len(a), a[i], b[i])
		}
	}
	return ""
}
