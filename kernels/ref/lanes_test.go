package ref

import (
	"math"
	"testing"
)

// slowLanes is the order of a lane sum read literally.
func slowLanes[F float32 | float64](term func(i int) F, n int) F {
	var s [32]F
	for l := range s {
		for i := range n {
			if i%32 == l {
				s[l] += term(i)
			}
		}
	}
	for _, step := range []int{16, 8, 4, 2, 1} {
		for l := range step {
			s[l] += s[l+step]
		}
	}
	return s[0]
}

func TestLaneSumsAreTheDefinition(t *testing.T) {
	src := source(9)
	for n := range 200 {
		x, w := src.activations(n), src.activations(n)
		if got, want := SumF32(x), slowLanes(func(i int) float32 { return x[i] }, n); got != want {
			t.Fatalf("the sum of %d values is %g, want %g", n, got, want)
		}
		if got, want := DotF32(x, w), slowLanes(func(i int) float32 { return float32(x[i] * w[i]) }, n); got != want {
			t.Fatalf("the dot product of %d values is %g, want %g", n, got, want)
		}
		square := func(i int) float64 { return float64(x[i]) * float64(x[i]) } // exact
		if got, want := SumSquares(x), slowLanes(square, n); got != want {
			t.Fatalf("the squares of %d values add up to %g, want %g", n, got, want)
		}
	}
}

func TestLaneSumStartsFromPlusZero(t *testing.T) {
	minusZero := float32(math.Copysign(0, -1))
	for _, n := range []int{0, 1, 31, 32, 33} {
		x := make([]float32, n)
		for i := range x {
			x[i] = minusZero
		}
		if got := SumF32(x); math.Float32bits(got) != 0 {
			t.Errorf("the sum of %d times -0 is %g, want +0", n, got)
		}
	}
}

func TestLaneSumsKeepWhatIsNotANumber(t *testing.T) {
	for _, at := range []int{0, 31, 32, 64, 66} {
		for _, v := range []float32{nan, inf, -inf} {
			x, zeros := make([]float32, 67), make([]float32, 67)
			x[at] = v
			if got := SumF32(x); finite(got) {
				t.Errorf("sum with %g at %d is %g", v, at, got)
			}
			if got := DotF32(x, zeros); finite(got) {
				t.Errorf("%g at %d times 0 is %g", v, at, got)
			}
		}
	}
}

func TestDotOfDifferentLengthsPanics(t *testing.T) {
	if said := panics(func() { DotF32(make([]float32, 3), make([]float32, 4)) }); said == "" {
		t.Error("3 values times 4 did not panic")
	}
}
