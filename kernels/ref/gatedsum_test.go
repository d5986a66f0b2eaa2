package ref

import (
	"math"
	"math/big"
	"slices"
	"testing"

	"kvasir/internal/moe"

	"pgregory.net/rapid"
)

// slowPick is the integer of one value: the products rounded to binary32 by way of exact
// arithmetic, the nearest even integer by way of big integers.
func slowPick(y, w float32, exponent int) (*big.Int, moe.Status) {
	if !finite(y) || !finite(w) {
		return nil, moe.NonFinite
	}
	p, _ := mulExact(y, w).Float32()
	if !finite(p) {
		return nil, moe.NonFinite
	}
	s, _ := mulExact(p, float32(math.Ldexp(1, exponent))).Float32()
	if !finite(s) {
		return nil, moe.NonFinite
	}
	twice := new(big.Int)
	new(big.Float).SetPrec(300).Mul(big.NewFloat(float64(s)), big.NewFloat(2)).Int(twice) // towards zero
	frac := new(big.Float).SetPrec(300).Sub(new(big.Float).SetPrec(300).Mul(big.NewFloat(float64(s)), big.NewFloat(2)), new(big.Float).SetInt(twice))
	v := new(big.Int).Rsh(new(big.Int).Abs(twice), 1)
	half := twice.Bit(0) == 1
	if half && (frac.Sign() != 0 || v.Bit(0) == 1) {
		v.Add(v, big.NewInt(1))
	}
	if s < 0 {
		v.Neg(v)
	}
	if new(big.Int).Abs(v).Cmp(new(big.Int).Lsh(big.NewInt(1), 40)) >= 0 {
		return nil, moe.Range
	}
	return v, moe.OK
}

func mulExact(a, b float32) *big.Float {
	return new(big.Float).SetPrec(300).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
}

func TestAddPickIsTheDefinition(t *testing.T) {
	drawFloat := rapid.Custom(func(t *rapid.T) float32 {
		if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
			return math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
		}
		return rapid.Float32Range(-100, 100).Draw(t, "value")
	})
	rapid.Check(t, func(t *rapid.T) {
		y := rapid.SliceOfN(drawFloat, 1, 6).Draw(t, "y")
		w := drawFloat.Draw(t, "w")
		weight := w
		if math.Abs(float64(w)) < 0x1p-126 { // a subnormal weight counts as 0
			weight = 0
		}
		exponent := rapid.IntRange(MinExponent, MaxExponent).Draw(t, "exponent")
		start := rapid.SliceOfN(rapid.Int64Range(-1<<46, 1<<46), len(y), len(y)).Draw(t, "sum")
		want, status := slices.Clone(start), moe.OK
		for i := range y {
			v, st := slowPick(y[i], weight, exponent)
			status = max(status, st)
			if st == moe.OK {
				want[i] += v.Int64()
			}
		}
		if status != moe.OK {
			want = start
		}
		got := slices.Clone(start)
		if st := AddPick(got, y, w, exponent); st != status || !slices.Equal(got, want) {
			t.Fatalf("%s and %d, want %s and %d", st, got, status, want)
		}
	})
}

func TestAddPickAtItsEdges(t *testing.T) {
	below := math.Nextafter32(0x1p40, 0)
	for _, c := range []struct {
		name     string
		y        []float32
		w        float32
		exponent int
		want     []int64
		status   moe.Status
	}{
		{"ties go to even", []float32{0.5, 1.5, 2.5, -0.5, -1.5, -2.5}, 1, 0, []int64{0, 2, 2, 0, -2, -2}, moe.OK},
		{"a scale", []float32{1, -0.25}, 0.5, 20, []int64{1 << 19, -1 << 17}, moe.OK},
		{"a negative exponent", []float32{384, -640}, 1, -8, []int64{2, -2}, moe.OK},
		{"largest", []float32{below, -below}, 1, 0, []int64{1<<40 - 1<<16, -1<<40 + 1<<16}, moe.OK},
		{"too large", []float32{1, 0x1p40}, 1, 0, []int64{0, 0}, moe.Range},
		{"too small", []float32{1, -0x1p32}, 0x1p8, 0, []int64{0, 0}, moe.Range},
		{"by its exponent", []float32{1}, 1, 40, []int64{0}, moe.Range},
		{"almost by its exponent", []float32{below / 0x1p40}, 1, 40, []int64{1<<40 - 1<<16}, moe.OK},
		{"a scaled weight would overflow", []float32{0x1p-100}, 0x1p100, 39, []int64{1 << 39}, moe.OK},
		{"a weight of zero", []float32{1e30}, 0, 40, []int64{0}, moe.OK},
		{"infinite y times zero", []float32{inf}, 0, 0, []int64{0}, moe.NonFinite},
		{"NaN y", []float32{1, nan}, 1, 0, []int64{0, 0}, moe.NonFinite},
		{"NaN weight", []float32{0}, nan, 0, []int64{0}, moe.NonFinite},
		{"infinite weight", []float32{0}, inf, 0, []int64{0}, moe.NonFinite},
		{"infinite weight of a number", []float32{1}, -inf, 0, []int64{0}, moe.NonFinite},
		{"w*y overflows", []float32{1e30}, 1e30, 0, []int64{0}, moe.NonFinite},
		{"(w*y)*2^E overflows", []float32{1e30}, 1, 40, []int64{0}, moe.NonFinite},
		{"range, then nonfinite", []float32{0x1p40, nan}, 1, 0, []int64{0, 0}, moe.NonFinite},
		{"nonfinite, then range", []float32{nan, 0x1p40}, 1, 0, []int64{0, 0}, moe.NonFinite},
	} {
		sum := make([]int64, len(c.y))
		if st := AddPick(sum, c.y, c.w, c.exponent); st != c.status || !slices.Equal(sum, c.want) {
			t.Errorf("%s: %s and %d, want %s and %d", c.name, st, sum, c.status, c.want)
		}
	}
}

func TestFloatRoundsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sum := rapid.Int64Range(-1<<53+1, 1<<53-1).Draw(t, "sum")
		exponent := rapid.IntRange(MinExponent, MaxExponent).Draw(t, "exponent")
		want, _ := new(big.Float).SetMantExp(new(big.Float).SetInt64(sum), -exponent).Float32()
		if got := Float(sum, exponent); got != want {
			t.Fatalf("%d * 2^-%d is %g, want %g", sum, exponent, got, want)
		}
	})
}

func TestAddPickOfWrongShapePanics(t *testing.T) {
	for name, f := range map[string]func(){
		"lengths":        func() { AddPick(make([]int64, 2), make([]float32, 3), 1, 0) },
		"large exponent": func() { AddPick(nil, nil, 1, 41) },
		"small exponent": func() { AddPick(nil, nil, 1, -9) },
	} {
		if panics(f) == "" {
			t.Errorf("%s: no panic", name)
		}
	}
}
