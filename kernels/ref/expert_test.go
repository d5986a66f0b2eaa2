package ref

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

// triples are experts as files have them, and some that only tests have.
var triples = []struct{ gate, up, down quant.Format }{
	{quant.Q4K, quant.Q4K, quant.Q6K}, // Q4_K_M
	{quant.Q4K, quant.Q4K, quant.Q4K},
	{quant.Q5K, quant.Q5K, quant.Q5K},
	{quant.Q6K, quant.Q5K, quant.Q8_0},
	{quant.Q8_0, quant.Q8_0, quant.Q8_0},
	{quant.MXFP4, quant.MXFP4, quant.MXFP4},
	{quant.Q8_0, quant.MXFP4, quant.Q4K},
	{quant.Q4K, quant.Q8_0, quant.MXFP4}, // gate and up of different kinds: float rows
	{quant.F16, quant.F16, quant.BF16},
	{quant.F32, quant.F32, quant.F32},
	{quant.Q8_0, quant.Q8_0, quant.Q5_0},
}

func eachTriple(t *testing.T, f func(t *testing.T, e *Expert)) {
	for _, c := range triples {
		for _, float := range []bool{false, true} {
			name := fmt.Sprintf("%s-%s-%s", c.gate, c.up, c.down)
			if float {
				name += "-float"
			}
			t.Run(name, func(t *testing.T) {
				hidden, length := sizeFor(40, c.gate, c.up), sizeFor(33, c.down)
				e := syntheticExpert(c.gate, c.up, c.down, hidden, length, 51)
				e.Float = float
				if err := e.Check(); err != nil {
					t.Fatal(err)
				}
				f(t, e)
			})
		}
	}
}

// slowForward is an expert in binary64, from the weights as floats and without quantising anything.
func slowForward(e *Expert, x []float64) []float64 {
	mul := func(m *Matrix, x []float64) []float64 {
		w := make([]float32, m.In*m.Out)
		quant.Dequantize(w, m.Format, m.Data)
		y := make([]float64, m.Out)
		for o := range y {
			for i, v := range x {
				y[o] += float64(w[o*m.In+i]) * v
			}
		}
		return y
	}
	h, u := mul(&e.Gate, x), mul(&e.Up, x)
	for i, g := range h {
		h[i] = g / (1 + math.Exp(-g)) * u[i]
	}
	return mul(&e.Down, h)
}

func TestForwardIsTheExpert(t *testing.T) {
	eachTriple(t, func(t *testing.T, e *Expert) {
		x := randomRows(e.RowFormat(), 1, e.Gate.In, 52)[0]
		y := make([]float32, e.Down.Out)
		if st := e.Forward(y, x, new(Scratch)); st != moe.OK {
			t.Fatal(st)
		}
		var dot, a, b float64
		for i, want := range slowForward(e, valuesOf(x)) {
			dot += want * float64(y[i])
			a += want * want
			b += float64(y[i]) * float64(y[i])
		}
		// h is int8 in the integer formats, and exact to binary32 in the others.
		least := 0.9995
		if e.hiddenFormat() == moe.RowF32 {
			least = 1 - 1e-10
		}
		if cosine := dot / math.Sqrt(a*b); cosine < least || math.Abs(math.Sqrt(b/a)-1) > 0.02 {
			t.Errorf("cosine %.12f and length %.4f to the expert in binary64, want %g and 1", cosine, math.Sqrt(b/a), least)
		}
	})
}

// rowsWithFaults are good rows and bad ones side by side.
func rowsWithFaults(e *Expert, n int) []moe.Row {
	x := randomRows(e.RowFormat(), n, e.Gate.In, 61)
	for r := range x {
		bad := []float32{1: nan, 3: inf, 5: 0x1p41}
		if r >= len(bad) || bad[r] == 0 {
			continue
		}
		if e.RowFormat() == moe.RowF32 {
			x[r].F[7] = bad[r]
		} else {
			x[r].Scales[0] = bad[r]
		}
	}
	return x
}

func TestForwardRowsIsForward(t *testing.T) {
	eachTriple(t, func(t *testing.T, e *Expert) {
		x := rowsWithFaults(e, 9)
		hidden := e.Down.Out
		want, status := make([]float32, len(x)*hidden), make([]moe.Status, len(x))
		var s Scratch
		for r := range x {
			status[r] = e.Forward(want[r*hidden:(r+1)*hidden], x[r], &s)
		}
		if expect := []moe.Status{0, moe.NonFinite, 0, moe.NonFinite, 0, moe.Range, 0, 0, 0}; !slices.Equal(status, expect) {
			t.Fatalf("statuses %v, want %v", status, expect)
		}
		for _, part := range [][2]int{{0, 9}, {0, 1}, {1, 2}, {1, 6}, {5, 9}, {3, 3}} {
			rows := x[part[0]:part[1]]
			got, st := make([]float32, len(rows)*hidden), make([]moe.Status, len(rows))
			for i := range got {
				got[i] = nan
			}
			for i := range st {
				st[i] = moe.Wide
			}
			e.ForwardRows(got, rows, st, &s)
			if !sameBits(got, want[part[0]*hidden:part[1]*hidden]) || !slices.Equal(st, status[part[0]:part[1]]) {
				t.Errorf("rows %d to %d: other bits or statuses than Forward: %v", part[0], part[1], st)
			}
		}
	})
}

func TestForwardDoesNotAllocate(t *testing.T) {
	for _, c := range triples[:9] {
		e := syntheticExpert(c.gate, c.up, c.down, 256, 256, 71)
		x := randomRows(e.RowFormat(), 3, 256, 72)
		y, st := make([]float32, 3*256), make([]moe.Status, 3)
		var s Scratch
		if n := testing.AllocsPerRun(2, func() { e.ForwardRows(y, x, st, &s) }); n != 0 {
			t.Errorf("%s-%s-%s: %g allocations for rows, want 0", c.gate, c.up, c.down, n)
		}
		if n := testing.AllocsPerRun(2, func() { e.Forward(y, x[0], &s) }); n != 0 {
			t.Errorf("%s-%s-%s: %g allocations for a row, want 0", c.gate, c.up, c.down, n)
		}
	}
}

func TestExpertCheckRefuses(t *testing.T) {
	good := func() *Expert { return syntheticExpert(quant.Q8_0, quant.Q8_0, quant.Q8_0, 64, 32, 1) }
	for _, c := range []struct {
		name  string
		spoil func(e *Expert)
		say   string
	}{
		{"up of another input", func(e *Expert) { e.Up = syntheticMatrix(quant.Q8_0, 32, 32, 1) }, "up 32x32"},
		{"up of another output", func(e *Expert) { e.Up = syntheticMatrix(quant.Q8_0, 64, 33, 1) }, "up 64x33"},
		{"down not turned round", func(e *Expert) { e.Down = syntheticMatrix(quant.Q8_0, 64, 32, 1) }, "down 64x32"},
		{"too wide", func(e *Expert) { e.Gate = syntheticMatrix(quant.F16, 1<<16, 1, 1) }, "65536 values, want at most 32768"},
		{"short data", func(e *Expert) { e.Down.Data = e.Down.Data[1:] }, "down: ref: shapes do not fit"},
		{"nothing", func(e *Expert) { e.Gate = Matrix{} }, "gate: ref: shapes do not fit"},
	} {
		e := good()
		c.spoil(e)
		if err := e.Check(); !errors.Is(err, ErrShape) || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.say)
		}
	}
	if err := good().Check(); err != nil {
		t.Error(err)
	}
}

func TestRowsOfTheWrongFormatPanic(t *testing.T) {
	e := syntheticExpert(quant.Q8_0, quant.Q8_0, quant.Q8_0, 256, 32, 1)
	x := randomRows(moe.RowQ8K, 1, 256, 1)
	y := make([]float32, 256)
	for name, f := range map[string]func(){
		"one row":   func() { e.Forward(y, x[0], new(Scratch)) },
		"many rows": func() { e.ForwardRows(y, x, make([]moe.Status, 1), new(Scratch)) },
	} {
		if said := panics(f); !strings.HasPrefix(said, "BUG: a Q8K row for an expert that takes Q8") {
			t.Errorf("%s: panic %q, want BUG: …", name, said)
		}
	}
}
