package model

import (
	"math"
	"math/rand/v2"
	"testing"

	"kvasir/kernels/vector"
)

// The functions here are compared with package math, whose last bit may differ between processors: so
// the bounds are a few units in the last place, and what is exact is held by TestGoldenLogits.
func TestScalarFunctionsFollowPackageMath(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	near := func(name string, x, got, want, bound float64) {
		t.Helper()
		if d := math.Abs(got - want); !(d <= bound) {
			t.Errorf("%s(%v) = %v, want %v within %g", name, x, got, want, bound)
		}
	}
	for range 20000 {
		x := math.Exp2(rng.Float64()*60 - 20)
		near("ln", x, ln(x), math.Log(x), 1e-15*max(1, math.Abs(math.Log(x))))
		y := rng.Float64()*200 - 100
		near("exp64", y, exp64(y)/math.Exp(y), 1, 1e-14)
		a := rng.Float64() * math.Exp2(float64(rng.IntN(19)))
		s, c := sincos(a)
		near("sin", a, s, math.Sin(a), 1e-10)
		near("cos", a, c, math.Cos(a), 1e-10)
		g := float32(rng.Float64()*200 - 100)
		near("sigmoid", float64(g), float64(sigmoid(g)), 1/(1+math.Exp(-float64(g))), 2e-7)
		want := math.Log1p(math.Exp(float64(min(g, 30))))
		if g > 30 {
			want = float64(g)
		}
		near("softplus", float64(g), float64(softplus(g)), want, 2e-7*max(1, want))
	}
	for _, x := range []float64{0, 1, math.Pi / 4, math.Pi / 2, math.Pi, 2 * math.Pi} {
		s, c := sincos(x)
		near("sin", x, s, math.Sin(x), 1e-15)
		near("cos", x, c, math.Cos(x), 1e-15)
	}
	if ln(1) != 0 || exp64(0) != 1 || softplus(20.5) != 20.5 || sigmoid(-89) != 0 || sigmoid(0) != 0.5 {
		t.Error("a value that should be exact is not")
	}
}

func TestRopeTurnsPairsOfItsSections(t *testing.T) {
	tests := []struct {
		name     string
		n        int
		sections []int
		still    []int // pairs that do not turn
	}{
		{"no sections", 8, nil, nil},
		{"all covered", 8, []int{2, 1, 1, 0}, nil},
		{"Qwen3.5", 64, []int{11, 11, 10, 0}, nil},
		{"one third missing", 12, []int{2, 0, 2, 2}, []int{1, 4}},
		{"short second", 12, []int{2, 1, 2, 1}, []int{4}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRope(tt.n, 10000, tt.sections)
			for i, f := range r.freq {
				want := math.Pow(10000, -2*float64(i)/float64(tt.n))
				for _, s := range tt.still {
					if s == i {
						want = 0
					}
				}
				if math.Abs(f-want) > 1e-14 {
					t.Errorf("pair %d turns by %v a position, want %v", i, f, want)
				}
			}
		})
	}
	r := newRope(4, 10000, nil)
	head := []float32{1, 2, 3, 4, 5}
	var cos, sin [2]float32
	r.angles(cos[:], sin[:], 3)
	r.apply(vector.Active(), head, cos[:], sin[:])
	want := []float64{math.Cos(3) - 3*math.Sin(3), 0, math.Sin(3) + 3*math.Cos(3), 0, 5}
	for _, i := range []int{0, 2, 4} {
		if math.Abs(float64(head[i])-want[i]) > 1e-6 {
			t.Errorf("value %d is %v, want %v", i, head[i], want[i])
		}
	}
}

func TestTopKTakesTheLowerIndexOfEqualOnes(t *testing.T) {
	for _, tt := range []struct {
		x    []float32
		want []uint16
	}{
		{[]float32{1, 3, 2, 3}, []uint16{1, 3, 2}},
		{[]float32{5, 5, 5, 5}, []uint16{0, 1, 2}},
		{[]float32{-1, -3, -2, 0}, []uint16{3, 0, 2}},
	} {
		got := make([]uint16, 3)
		topK(tt.x, got)
		for i := range got {
			if got[i] != tt.want[i] {
				t.Errorf("topK(%v) = %v, want %v", tt.x, got, tt.want)
				break
			}
		}
	}
}
