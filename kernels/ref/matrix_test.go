package ref

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

// valuesOf returns what a row stands for.
func valuesOf(x moe.Row) []float64 {
	var v []float64
	for _, f := range x.F {
		v = append(v, float64(f))
	}
	for i, q := range x.Q {
		v = append(v, float64(x.Scales[i/x.Format.Block()])*float64(q))
	}
	return v
}

// The dot product is, up to rounding, the product of what weights and rows stand for. It is read
// here from the dequantised weights, in binary64.
func TestDotIsTheProduct(t *testing.T) {
	for _, f := range quant.Supported() {
		for _, rf := range rowFormatsOf(f) {
			in := sizeFor(700, f)
			m := syntheticMatrix(f, in, 4, 11)
			w := make([]float32, 4*in)
			quant.Dequantize(w, f, m.Data)
			for _, x := range randomRows(rf, 3, in, 12) {
				for o := range 4 {
					want, size := 0.0, 0.0
					for i, v := range valuesOf(x) {
						p := v * float64(w[o*in+i])
						want += p
						size += math.Abs(p)
					}
					if got := float64(m.Dot(o, x)); math.Abs(got-want) > 1e-6*size {
						t.Errorf("%s times %s: %g, want %g within %g", f, rf, got, want, 1e-6*size)
					}
				}
			}
		}
	}
}

func TestMatMulIsDot(t *testing.T) {
	for _, f := range quant.Supported() {
		for _, rf := range rowFormatsOf(f) {
			t.Run(fmt.Sprintf("%s-%s", f, rf), func(t *testing.T) {
				in, out := sizeFor(480, f), 2*tile+3
				m := syntheticMatrix(f, in, out, 21)
				x := randomRows(rf, 7, in, 22)
				want := make([]float32, len(x)*out)
				for r := range x {
					for o := range out {
						want[r*out+o] = m.Dot(o, x[r])
					}
				}
				var s Scratch
				for _, rows := range []int{1, 2, 3, 7} {
					for _, at := range []int{0, 1, 5, tile, out} { // any split gives the same
						got := make([]float32, rows*out)
						for i := range got {
							got[i] = 77
						}
						m.MatMul(got, x[:rows], 0, at, &s)
						for i, v := range got {
							if i%out >= at && v != 77 {
								t.Fatalf("%d rows, outputs up to %d: value %d was written", rows, at, i)
							}
						}
						m.MatMul(got, x[:rows], at, out, &s)
						if !sameBits(got, want[:rows*out]) {
							t.Fatalf("%d rows, split at %d: other bits than Dot", rows, at)
						}
					}
				}
			})
		}
	}
}

// Each row has its bits whatever rows stand beside it, also one that is nothing but NaN.
func TestMatMulRowsDoNotTouch(t *testing.T) {
	for _, f := range quant.Supported() {
		for _, rf := range rowFormatsOf(f) {
			in, out := sizeFor(256, f), 5
			m := syntheticMatrix(f, in, out, 31)
			x := randomRows(rf, 2, in, 32)
			bad := newRow(rf, in)
			for i := range bad.Q {
				bad.Q[i] = -127
			}
			for i := range bad.Scales {
				bad.Scales[i] = nan
			}
			for i := range bad.F {
				bad.F[i] = nan
			}
			var s Scratch
			want, got := make([]float32, 2*out), make([]float32, 4*out)
			m.MatMul(want, x, 0, out, &s)
			m.MatMul(got, []moe.Row{bad, x[0], x[1], bad}, 0, out, &s)
			if !sameBits(got[out:3*out], want) {
				t.Errorf("%s times %s: a row beside NaN has other bits", f, rf)
			}
			for o := range out {
				if finite(got[o]) || finite(got[3*out+o]) {
					t.Errorf("%s times %s: a row of NaN gives %g and %g", f, rf, got[o], got[3*out+o])
				}
			}
		}
	}
}

// filled returns a block of format f whose value fields are all q and whose inner scales are all
// sc.
func filled(f quant.Format, q, scale byte) []byte {
	_, bytes := f.Block()
	b := make([]byte, bytes)
	for i := range b {
		b[i] = q
	}
	scales := map[quant.Format][2]int{ // from, to
		quant.Q2K: {0, 16}, quant.Q3K: {96, 108}, quant.Q4K: {4, 16}, quant.Q5K: {4, 16}, quant.Q6K: {192, 208}, quant.IQ4XS: {2, 8},
	}[f]
	for i := scales[0]; i < scales[1]; i++ {
		b[i] = scale
	}
	for _, at := range halvesOf[f] {
		copy(b[at:], []byte{0, 0x3c}) // binary16 1
	}
	if f == quant.MXFP4 {
		b[0] = 128 // half scale 1
	}
	return b
}

// The largest integers that a block can have are those of the definition, they fit, and two rows of
// them in one int64, of any signs, do not spill into each other.
func TestLargestIntegers(t *testing.T) {
	for _, c := range []struct {
		f        quant.Format
		q, scale byte
		i, m     int64
	}{
		{quant.Q4K, 0xff, 0xff, 127 * 15 * 63 * 256, 127 * 63 * 256}, // 30.7e6, 2.05e6
		{quant.Q5K, 0xff, 0xff, 127 * 31 * 63 * 256, 127 * 63 * 256}, // 63.5e6
		{quant.Q6K, 0x00, 0x80, 127 * 32 * 128 * 256, 0},             // 133e6
		{quant.Q8_0, 0x80, 0, -127 * 128 * 32, 0},                    // 520,192
		{quant.MXFP4, 0x77, 0, 127 * 12 * 32, 0},                     // 48,768
	} {
		rf := HiddenFormat(c.f)
		in, _ := c.f.Block()
		m, err := NewMatrix(c.f, in, 1, filled(c.f, c.q, c.scale))
		if err != nil {
			t.Fatal(err)
		}
		up, down := newRow(rf, in), newRow(rf, in)
		for i := range up.Q {
			up.Q[i], down.Q[i] = 127, -127
		}
		up.Scales[0], down.Scales[0] = 1, 1
		want := float32(c.i) - float32(c.m)
		for _, x := range [][]moe.Row{{up}, {down}, {up, down}, {down, up}, {up, up}, {down, down}, {down, up, down}} {
			got := make([]float32, len(x))
			m.MatMul(got, x, 0, 1, new(Scratch))
			for r := range x {
				w := want
				if x[r].Q[0] < 0 {
					w = -want
				}
				if got[r] != w || m.Dot(0, x[r]) != w {
					t.Errorf("%s, row %d of %d: MatMul %g, Dot %g, want %g", c.f, r, len(x), got[r], m.Dot(0, x[r]), w)
				}
			}
		}
	}
}

func TestPairsComeApart(t *testing.T) {
	extremes := []int64{0, 1, -1, 133e6, -133e6, math.MaxInt32, math.MinInt32}
	for _, a := range extremes {
		for _, b := range extremes {
			if gotA, gotB := halves(a + b<<32); int64(gotA) != a || int64(gotB) != b {
				t.Errorf("%d and %d come apart as %d and %d", a, b, gotA, gotB)
			}
		}
	}
}

func TestNewMatrixRefuses(t *testing.T) {
	for _, c := range []struct {
		name    string
		f       quant.Format
		in, out int
		bytes   int
		want    error
		say     string
	}{
		{"bytes", quant.Q4K, 256, 2, 287, ErrShape, "287 bytes for 2 rows of 256 weights in Q4_K, want 144 a row"},
		{"no rows", quant.Q4K, 256, 0, 0, ErrShape, "0 rows of 256"},
		{"negative", quant.F32, -4, 2, 0, ErrShape, "2 rows of -4"},
		{"blocks", quant.Q4K, 128, 1, 72, quant.ErrLength, "128 values in Q4_K, want a multiple of 256"},
		{"format", 17, 256, 1, 0, quant.ErrUnsupported, "IQ2_XS"},
		{"overflow", quant.F32, 1 << 40, math.MaxInt / 8, 0, ErrShape, "0 bytes for"},
	} {
		if _, err := NewMatrix(c.f, c.in, c.out, make([]byte, c.bytes)); !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.say) {
			t.Errorf("%s: error %v, want %v with %q", c.name, err, c.want, c.say)
		}
	}
}

func TestProductsThatDoNotFitPanic(t *testing.T) {
	k, b := syntheticMatrix(quant.Q4K, 256, 2, 1), syntheticMatrix(quant.Q8_0, 256, 2, 1)
	x := randomRows(moe.RowQ8K, 1, 256, 1)
	mixed := append(randomRows(moe.RowF32, 1, 256, 1), x...)
	for name, f := range map[string]func(){
		"Q8K row for Q8_0":      func() { b.Dot(0, x[0]) },
		"Q8 row for Q4_K":       func() { k.Dot(0, randomRows(moe.RowQ8, 1, 256, 1)[0]) },
		"short row":             func() { k.Dot(0, newRow(moe.RowQ8K, 255)) },
		"mixed rows":            func() { k.MatMul(make([]float32, 4), mixed, 0, 2, new(Scratch)) },
		"rows beyond the last":  func() { k.MatMul(make([]float32, 2), x, 0, 3, new(Scratch)) },
		"rows before the first": func() { k.MatMul(make([]float32, 2), x, -1, 2, new(Scratch)) },
		"no room":               func() { k.MatMul(make([]float32, 1), x, 0, 2, new(Scratch)) },
	} {
		if said := panics(f); !strings.HasPrefix(said, "BUG: ") {
			t.Errorf("%s: panic %q, want BUG: …", name, said)
		}
	}
}

func TestMatMulDoesNotAllocate(t *testing.T) {
	for _, f := range quant.Supported() {
		in := sizeFor(256, f)
		m := syntheticMatrix(f, in, 9, 1)
		x := randomRows(HiddenFormat(f), 5, in, 2)
		dst := make([]float32, 5*9)
		var s Scratch
		if n := testing.AllocsPerRun(5, func() { m.MatMul(dst, x, 0, 9, &s) }); n != 0 {
			t.Errorf("%s: %g allocations a product, want 0", f, n)
		}
	}
}
