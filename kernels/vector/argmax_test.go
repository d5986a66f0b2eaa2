package vector

import (
	"math"
	"testing"
)

// argmax compares one value after the other, as binary64, where none of them is subnormal.
func argmax(x []float32) int {
	best := -1
	for i, v := range x {
		if v != v {
			return -1
		}
		if best < 0 || float64(v) > float64(x[best]) {
			best = i
		}
	}
	return best
}

func TestArgmaxFindsTheFirstLargest(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		r, _ := newRand(t)
		region := newRegion(t, 64<<10)
		for turn, n := range append([]int{argmaxRun - 1, argmaxRun, argmaxRun + 1, 3 * argmaxRun, 13001}, lengths...) {
			for kind := range kinds {
				x := place[float32](region, n, (turn+kind)%places)
				fill(x, kind, r)
				if kind == arbitrary {
					for i, v := range x {
						if v != v {
							x[i] = float32(i)
						}
					}
				}
				if got, want := o.Argmax(x), argmax(x); got != want {
					t.Errorf("%d %s values: %d, want %d", n, kindNames[kind], got, want)
				}
				if !region.intact() {
					t.Fatalf("%d values: wrote outside", n)
				}
			}
		}
	})
}

// TestArgmaxSeesEveryPlace puts a largest value, its equals and NaNs of both signs into each place.
func TestArgmaxSeesEveryPlace(t *testing.T) {
	zero, tiny := float32(math.Copysign(0, -1)), float32(math.SmallestNonzeroFloat32)
	for _, c := range []struct{ others, top float32 }{
		{-1, 1}, {-2, -1}, {zero, tiny}, {-tiny, zero}, {-inf, -math.MaxFloat32}, {math.MaxFloat32, inf}, {1, 1}, {zero, 0}, {-inf, -inf},
	} {
		eachVariant(t, func(t *testing.T, o *Ops) {
			for _, n := range []int{1, 7, 8, 31, 32, 45, 72, argmaxRun + 40} {
				x := make([]float32, n)
				for i := range x {
					x[i] = c.others
				}
				for at := 0; at < n; at += 1 + n/100 {
					x[at] = c.top
					want := at
					if float64(c.top) == float64(c.others) {
						want = 0
					}
					if got := o.Argmax(x); got != want {
						t.Fatalf("%g at %d of %d values of %g: %d, want %d", c.top, at, n, c.others, got, want)
					}
					x[n-1] = c.top // an equal further up
					if got := o.Argmax(x); got != want {
						t.Fatalf("%g at %d and last of %d values of %g: %d, want %d", c.top, at, n, c.others, got, want)
					}
					for _, bits := range []uint32{0x7f800001, 0x7fc00000, 0xff800001, 0xffffffff} {
						x[n-1], x[at] = c.others, math.Float32frombits(bits)
						if got := o.Argmax(x); got != -1 {
							t.Fatalf("NaN %#x at %d of %d values: %d, want -1", bits, at, n, got)
						}
					}
					x[at] = c.others
				}
			}
		})
	}
}
