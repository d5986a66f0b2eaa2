package vector_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/kerneltest"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
	"kvasir/kernels/vector"
)

func TestSubnormalGateWeightsAreZeroWhateverTheMode(t *testing.T) {
	y := make([]float32, 40)
	for i := range y {
		y[i] = float32(i-20) * 0x1p90
	}
	add := map[string]func(sum []int64, w float32) moe.Status{
		"ref": func(sum []int64, w float32) moe.Status { return ref.AddPick(sum, y, w, 40) },
	}
	for _, v := range variant.Available() {
		add[v.String()] = func(sum []int64, w float32) moe.Status { return vector.For(v).AddPick(sum, y, w, 40) }
	}
	for name, f := range add {
		for _, w := range []float32{0x1p-127, -0x1p-130, 0x1p-149} {
			sum := make([]int64, len(y))
			if s := f(sum, w); s != moe.OK || slices.Max(sum) != 0 || slices.Min(sum) != 0 {
				t.Errorf("%s, weight %g: %v, sums up to %d, want 0", name, w, s, slices.Max(sum))
			}
		}
		plain, flushed := make([]int64, len(y)), make([]int64, len(y))
		if s := f(plain, 0x1p-126); s != moe.OK || slices.Max(plain) == 0 {
			t.Errorf("%s: the smallest normal weight gives %v and up to %d", name, s, slices.Max(plain))
		}
		if kerneltest.WithFlushToZero(func() { f(flushed, 0x1p-126) }) && !slices.Equal(plain, flushed) {
			t.Errorf("%s: flush-to-zero changes sums of the smallest normal weight", name)
		}
	}
}

// TestNarrowFloatsIgnoreFlushToZero has values whose binary16 is subnormal, or that are so themselves, and
// blocks of them.
func TestNarrowFloatsIgnoreFlushToZero(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	x := make([]float32, 4096)
	for i := range x {
		x[i] = float32(r.NormFloat64() * math.Ldexp(1, -i/128*5))
	}
	for _, v := range variant.Available() {
		o := vector.For(v)
		all := func() []byte {
			f16, q8 := make([]byte, 8192), make([]byte, 4352)
			o.ToF16(f16, x)
			o.ToQ8(q8, x)
			return slices.Concat(f16, q8)
		}
		plain := all()
		var flushed []byte
		if kerneltest.WithFlushToZero(func() { flushed = all() }) && !bytes.Equal(plain, flushed) {
			t.Errorf("seed %#x, %v: flush-to-zero changes what is written", seed, v)
		}
	}
}

func TestArgmaxIgnoresFlushToZero(t *testing.T) {
	for _, v := range variant.Available() {
		o := vector.For(v)
		for at := range 45 {
			x := make([]float32, 45)
			x[at] = 0x1p-149
			got := at
			if kerneltest.WithFlushToZero(func() { got = o.Argmax(x) }) && got != at {
				t.Errorf("%v: the smallest number above 0 is at %d, and found at %d", v, at, got)
			}
		}
	}
}
