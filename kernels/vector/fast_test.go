package vector

import (
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// TestSoundInputStaysOnTheFastPath looks at what decides whether an operation is left to kernels/ref:
// where assembly is wrong about that, results are right all the same, and late.
func TestSoundInputStaysOnTheFastPath(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		if !o.simd() {
			t.Skip("the portable operations have no other path")
		}
		r, seed := newRand(t)
		for _, n := range []int{1, 8, 24, 77, 256} {
			for kind := range kinds {
				x := make([]float32, n)
				fill(x, kind, r)
				want := uint32(0)
				for _, v := range x {
					want = max(want, magnitude(v))
				}
				if got := o.largest(x, 1, 1); got != want && want <= infinity {
					t.Errorf("seed %#x: the largest of %d %s values is %#x, want %#x", seed, n, kindNames[kind], got, want)
				}
				for _, f := range []moe.RowFormat{moe.RowQ8K, moe.RowQ8} {
					if got := quantize(newRow(f, n, nil, 0), x); got != want {
						t.Errorf("seed %#x, %s: the largest of %d %s values is %#x, want %#x", seed, f, n, kindNames[kind], got, want)
					}
				}
			}
			for w := 1; w <= widthMax; w++ {
				sum := make([]int64, n)
				fillSums(sum, w, r)
				packed := ref.AppendPartial(nil, sum)
				if got := widthOf(sum); got != int(packed[0]) {
					t.Errorf("seed %#x: %d sums of %d bits have width %d, want %d", seed, n, w, got, packed[0])
				}
				if used, ok := parseBlock(sum, packed); !ok || used != len(packed) {
					t.Errorf("seed %#x: %d sums of %d bits: %v, %d of %d bytes", seed, n, w, ok, used, len(packed))
				}
			}
		}
	})
}
