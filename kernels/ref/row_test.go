package ref

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"

	"pgregory.net/rapid"
)

// slowQuantize is the definition read literally: a division into blocks, a maximum, and rounding by
// package math instead of by a magic number.
func slowQuantize(f moe.RowFormat, x []float32) (q []int8, scales []float32) {
	for block := range slices.Chunk(x, f.Block()) {
		amax := float32(0)
		for _, v := range block {
			amax = max(amax, float32(math.Abs(float64(v))))
		}
		if amax < 0x1p-40 {
			scales = append(scales, 0)
			q = append(q, make([]int8, len(block))...)
			continue
		}
		scales = append(scales, float32(amax*math.Float32frombits(0x3C010204)))
		inv := float32(127 * Recip(amax))
		for _, v := range block {
			r := math.RoundToEven(float64(float32(v * inv)))
			q = append(q, int8(max(-127, min(127, r))))
		}
	}
	return q, scales
}

// drawValue is a float of any kind below the limit of a row: zeros, subnormals, halves, outliers.
func drawValue(t *rapid.T) float32 {
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0:
		return rapid.SampledFrom([]float32{0, float32(math.Copysign(0, -1)), 0x1p-149, 0x1p-40, 0x1p40, -0x1p40, 1e4, 0x1.fffffep-41}).Draw(t, "special")
	case 1:
		return float32(math.Ldexp(rapid.Float64Range(-1, 1).Draw(t, "mantissa"), rapid.IntRange(-60, 40).Draw(t, "exponent")))
	}
	return rapid.Float32Range(-8, 8).Draw(t, "value")
}

func TestQuantizeRowIsTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.SampledFrom([]moe.RowFormat{moe.RowQ8K, moe.RowQ8}).Draw(t, "format")
		x := rapid.SliceOfN(rapid.Custom(drawValue), 1, 300).Draw(t, "x")
		got := newRow(f, len(x))
		for i := range got.Q {
			got.Q[i] = 99 // stale values must not stay
		}
		if st, i := QuantizeRow(got, x); st != moe.OK || i != -1 {
			t.Fatalf("%s at value %d", st, i)
		}
		q, scales := slowQuantize(f, x)
		if !slices.Equal(got.Q, q) || !sameBits(got.Scales, scales) {
			t.Fatalf("%s row of %v is %v with scales %v, want %v with %v", f, x, got.Q, got.Scales, q, scales)
		}
		if st, i := CheckRow(got); st != moe.OK {
			t.Fatalf("what was quantised does not pass CheckRow: %s at value %d", st, i)
		}
	})
}

// Every magnitude, also where 127*recip(amax) is rounded up, has its largest value at 127 and its
// other values within half a step of where they were.
func TestQuantizeRowKeepsValues(t *testing.T) {
	src := source(5)
	for _, f := range []moe.RowFormat{moe.RowQ8K, moe.RowQ8} {
		for e := -40; e < 40; e++ {
			x := src.activations(2*f.Block() + 7)
			for i := range x {
				x[i] = float32(math.Ldexp(float64(x[i])/256, e)) // |x| <= 120
			}
			row := rowOf(f, x)
			for i, v := range x {
				d := float64(row.Scales[i/f.Block()])
				if d == 0 {
					continue
				}
				if off := math.Abs(float64(row.Q[i])*d - float64(v)); off > 0.50002*d {
					t.Fatalf("%s at 2^%d: value %g became %d * %g", f, e, v, row.Q[i], d)
				}
			}
		}
	}
}

func TestQuantizeRowAtItsEdges(t *testing.T) {
	small, smaller := float32(0x1p-40), math.Nextafter32(0x1p-40, 0)
	for _, c := range []struct {
		name  string
		x     []float32
		q     []int8
		scale float32
	}{
		{"amax 2^-40", []float32{small, -small / 2, 0}, []int8{127, -64, 0}, float32(small * inv127)},
		{"amax below 2^-40", []float32{smaller, -smaller, 0}, []int8{0, 0, 0}, 0},
		{"amax 2^40", []float32{-0x1p40, 0x1p39}, []int8{-127, 64}, float32(0x1p40 * inv127)},
		{"a subnormal beside one", []float32{1, 0x1p-140}, []int8{127, 0}, inv127},
		{"ties go to even", []float32{127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5}, []int8{127, 0, 2, 2, 0, -2, -2, 126}, float32(127 * inv127)},
		{"an outlier of 1e4", []float32{1e4, 39, 40, -118.1}, []int8{127, 0, 1, -1}, float32(1e4 * inv127)},
	} {
		for _, f := range []moe.RowFormat{moe.RowQ8K, moe.RowQ8} {
			got := newRow(f, len(c.x))
			if st, i := QuantizeRow(got, c.x); st != moe.OK {
				t.Errorf("%s, %s: %s at value %d", c.name, f, st, i)
			}
			if !slices.Equal(got.Q, c.q) || got.Scales[0] != c.scale {
				t.Errorf("%s, %s: %d with scale %g, want %d with %g", c.name, f, got.Q, got.Scales[0], c.q, c.scale)
			}
		}
	}
}

func TestRowsAtFaultAreNamed(t *testing.T) {
	above := math.Nextafter32(0x1p40, inf)
	for _, c := range []struct {
		name   string
		set    map[int]float32
		status moe.Status
		at     int
	}{
		{"none", nil, moe.OK, -1},
		{"largest that is allowed", map[int]float32{0: 0x1p40, 299: -0x1p40}, moe.OK, -1},
		{"above", map[int]float32{270: -above, 280: above}, moe.Range, 270},
		{"infinity", map[int]float32{299: inf}, moe.NonFinite, 299},
		{"minus infinity", map[int]float32{0: -inf}, moe.NonFinite, 0},
		{"NaN after range", map[int]float32{3: above, 299: nan}, moe.NonFinite, 299},
		{"range after NaN", map[int]float32{3: nan, 299: above}, moe.NonFinite, 3},
		{"NaN with a sign", map[int]float32{31: math.Float32frombits(0xFF800001)}, moe.NonFinite, 31},
	} {
		x := make([]float32, 300)
		for i := range x {
			x[i] = 1
		}
		for i, v := range c.set {
			x[i] = v
		}
		for f := moe.RowF32; f.Valid(); f++ {
			row := newRow(f, len(x))
			st, i := QuantizeRow(row, x)
			if st != c.status || i != c.at {
				t.Errorf("%s, %s: %s at %d, want %s at %d", c.name, f, st, i, c.status, c.at)
			}
			if st != moe.OK && fmt.Sprint(row) != fmt.Sprint(newRow(f, len(x))) {
				t.Errorf("%s, %s: values are left in the row", c.name, f)
			}
		}
	}
}

func TestCheckRowKnowsWhatQuantizeRowMakes(t *testing.T) {
	low, high := math.Float32frombits(scaleMin), math.Float32frombits(scaleMax)
	for _, c := range []struct {
		name   string
		set    map[int]float32 // of two scales, or values 0 and 255 of a float row
		status moe.Status
		at     int
	}{
		{"zero", map[int]float32{0: 0, 1: 0}, moe.OK, -1},
		{"the limits", map[int]float32{0: low, 1: high}, moe.OK, -1},
		{"below the lower", map[int]float32{1: math.Nextafter32(low, 0)}, moe.Range, 1},
		{"subnormal", map[int]float32{0: 0x1p-140}, moe.Range, 0},
		{"above the upper", map[int]float32{1: math.Nextafter32(high, inf)}, moe.Range, 1},
		{"negative", map[int]float32{0: -1}, moe.Range, 0},
		{"infinite", map[int]float32{0: high * 2, 1: inf}, moe.NonFinite, 1},
		{"NaN", map[int]float32{0: nan}, moe.NonFinite, 0},
	} {
		for _, f := range []moe.RowFormat{moe.RowQ8K, moe.RowQ8} {
			row := newRow(f, 2*f.Block())
			row.Scales[0], row.Scales[1] = 1, 1
			for i, v := range c.set {
				row.Scales[i] = v
			}
			at := c.at
			if at > 0 {
				at *= f.Block()
			}
			if st, i := CheckRow(row); st != c.status || i != at {
				t.Errorf("%s, %s: %s at %d, want %s at %d", c.name, f, st, i, c.status, at)
			}
		}
	}
	if st, i := CheckRow(moe.Row{Format: moe.RowF32, F: []float32{1, 0x1p41, nan}}); st != moe.NonFinite || i != 2 {
		t.Errorf("float row: %s at %d, want nonfinite at 2", st, i)
	}
}

func TestRowFormatFollowsTheWeights(t *testing.T) {
	for _, c := range []struct {
		gate, up quant.Format
		want     moe.RowFormat
	}{
		{quant.Q4K, quant.Q4K, moe.RowQ8K}, {quant.Q4K, quant.Q6K, moe.RowQ8K}, {quant.Q5K, quant.Q4K, moe.RowQ8K},
		{quant.Q8_0, quant.Q8_0, moe.RowQ8}, {quant.MXFP4, quant.Q8_0, moe.RowQ8}, {quant.MXFP4, quant.MXFP4, moe.RowQ8},
		{quant.Q4K, quant.Q8_0, moe.RowF32}, {quant.F16, quant.Q4K, moe.RowF32}, {quant.BF16, quant.BF16, moe.RowF32},
		{quant.F32, quant.F32, moe.RowF32}, {quant.Q5_0, quant.Q8_0, moe.RowF32},
		{quant.Q2K, quant.Q2K, moe.RowF32}, {quant.Q3K, quant.Q4K, moe.RowF32}, {quant.IQ4XS, quant.IQ4XS, moe.RowF32},
	} {
		if got := RowFormat(c.gate, c.up); got != c.want {
			t.Errorf("gate %s, up %s: %s rows, want %s", c.gate, c.up, got, c.want)
		}
	}
	for f, want := range map[quant.Format]moe.RowFormat{
		quant.Q4K: moe.RowQ8K, quant.Q5K: moe.RowQ8K, quant.Q6K: moe.RowQ8K, quant.Q8_0: moe.RowQ8, quant.MXFP4: moe.RowQ8,
		quant.F32: moe.RowF32, quant.F16: moe.RowF32, quant.BF16: moe.RowF32, quant.Q5_0: moe.RowF32,
		quant.Q4_0: moe.RowF32, quant.Q4_1: moe.RowF32, quant.Q5_1: moe.RowF32, quant.Q2K: moe.RowF32, quant.Q3K: moe.RowF32,
		quant.IQ4NL: moe.RowF32, quant.IQ4XS: moe.RowF32,
	} {
		if got := HiddenFormat(f); got != want {
			t.Errorf("down %s: h in %s, want %s", f, got, want)
		}
	}
}

// panics returns what f panics with; empty if it does not.
func panics(f func()) (said string) {
	defer func() {
		if p := recover(); p != nil {
			said = fmt.Sprint(p)
		}
	}()
	f()
	return ""
}

func TestRowsOfWrongShapePanic(t *testing.T) {
	x := make([]float32, 300)
	for name, f := range map[string]func(){
		"one scale missing":  func() { QuantizeRow(moe.Row{Format: moe.RowQ8K, Q: make([]int8, 300), Scales: make([]float32, 1)}, x) },
		"too few values":     func() { QuantizeRow(newRow(moe.RowQ8, 299), x) },
		"integers in floats": func() { QuantizeRow(moe.Row{Format: moe.RowF32, Q: make([]int8, 300)}, x) },
	} {
		if said := panics(f); !strings.HasPrefix(said, "BUG: ") {
			t.Errorf("%s: panic %q, want BUG: …", name, said)
		}
	}
}
