package ref

import (
	"encoding/binary"
	"math"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

// What is not a number must end as a fault, never as a number, wherever it comes in: these tests
// plant it in every place, for every pair of formats.

// plantScale makes the scale of block k, or the value k of a float format, the given value:
// infinity, NaN, or for formats that can hold it a number.
func plantScale(m *Matrix, o, k int, v float32) {
	_, bytes := m.Format.Block()
	b := m.row(o)[k*bytes:]
	half := quant.F32ToF16(v)
	switch m.Format {
	case quant.F32:
		binary.LittleEndian.PutUint32(b, math.Float32bits(v))
	case quant.F16:
		binary.LittleEndian.PutUint16(b, half)
	case quant.BF16:
		binary.LittleEndian.PutUint16(b, quant.F32ToBF16(v))
	case quant.MXFP4:
		b[0] = 255 // has no infinity: NaN
	default:
		binary.LittleEndian.PutUint16(b[halvesOf[m.Format][0]:], half)
	}
}

// plantMinimum is plantScale for the minimums of formats that have them.
func plantMinimum(m *Matrix, o, k int, v float32) {
	_, bytes := m.Format.Block()
	binary.LittleEndian.PutUint16(m.row(o)[k*bytes+halvesOf[m.Format][1]:], quant.F32ToF16(v))
}

// forms is the executor under test in its two forms; both must agree.
func forms(t *testing.T, e *Expert, x moe.Row) moe.Status {
	t.Helper()
	n := e.Down.Out
	var s Scratch
	one, many := make([]float32, n), make([]float32, 3*n)
	for i := range many { // stale values must not stay
		many[i], one[i%n] = 77, 77
	}
	good := randomRows(x.Format, 1, e.Gate.In, 83)[0]
	st := e.Forward(one, x, &s)
	status := make([]moe.Status, 3)
	e.ForwardRows(many, []moe.Row{good, x, good}, status, &s)
	if status[1] != st || !sameBits(many[n:2*n], one) {
		t.Errorf("Forward answers %s, ForwardRows %s", st, status[1])
	}
	for i, v := range one {
		if !finite(v) || st != moe.OK && v != 0 {
			t.Fatalf("status %s with value %g at %d", st, v, i)
		}
	}
	return st
}

// eachPair calls f with every pair of formats; with -short, for emulated processors, with every format in both
// places, beside itself and another.
func eachPair(f func(a, b quant.Format)) {
	all := quant.Supported()
	for i, a := range all {
		for j, b := range all {
			if !testing.Short() || j == i || j == (i+1)%len(all) {
				f(a, b)
			}
		}
	}
}

func TestFaultsInWeightsAreFaults(t *testing.T) {
	planted := []float32{nan, inf, -inf}
	if testing.Short() { // what becomes of infinity is tried in other tests, for fewer pairs
		planted = planted[:1]
	}
	eachPair(func(a, b quant.Format) {
		for _, c := range []struct {
			name           string
			gate, up, down quant.Format
		}{{"gate and up alike", a, a, b}, {"gate and up unlike", a, b, a}} {
			hidden, length := sizeFor(32, c.gate, c.up), sizeFor(32, c.down)
			fresh := syntheticExpert(c.gate, c.up, c.down, hidden, length, 81)
			x := randomRows(fresh.RowFormat(), 1, hidden, 82)[0]
			if st := forms(t, fresh, x); st != moe.OK {
				t.Fatalf("%s, %s, %s: %s without a fault", c.gate, c.up, c.down, st)
			}
			for name, m := range map[string]*Matrix{"gate": &fresh.Gate, "up": &fresh.Up, "down": &fresh.Down} {
				values, _ := m.Format.Block()
				last := m.In/values - 1
				for _, v := range planted {
					keep := append([]byte(nil), m.Data...)
					plantScale(m, 3, last, v)
					if st := forms(t, fresh, x); st != moe.NonFinite {
						t.Errorf("%s, %s, %s: %g in %s gives %s", c.gate, c.up, c.down, v, name, st)
					}
					copy(m.Data, keep)
					if len(halvesOf[m.Format]) > 1 {
						plantMinimum(m, 3, last, v)
						if st := forms(t, fresh, x); st != moe.NonFinite {
							t.Errorf("%s, %s, %s: %g as minimum in %s gives %s", c.gate, c.up, c.down, v, name, st)
						}
						copy(m.Data, keep)
					}
				}
			}
		}
	})
}

// An infinite weight meets a row of zeros, whose product with it is NaN, and a row whose scale of
// that block is zero.
func TestFaultsInWeightsMeetZeros(t *testing.T) {
	for _, f := range quant.Supported() {
		e := syntheticExpert(f, f, f, 256, 256, 91)
		x := newRow(e.RowFormat(), 256)
		if st := forms(t, e, x); st != moe.OK {
			t.Errorf("%s: a row of zeros gives %s", f, st)
		}
		for _, m := range []*Matrix{&e.Gate, &e.Up, &e.Down} {
			keep := append([]byte(nil), m.Data...)
			plantScale(m, 0, 0, inf)
			if st := forms(t, e, x); st != moe.NonFinite {
				t.Errorf("%s: an infinite scale times zeros gives %s", f, st)
			}
			copy(m.Data, keep)
		}
	}
}

func TestFaultsInRowsAreFaults(t *testing.T) {
	eachPair(func(a, b quant.Format) {
		e := syntheticExpert(a, a, b, 256, 256, 101)
		for _, c := range []struct {
			v    float32
			want moe.Status
		}{{nan, moe.NonFinite}, {inf, moe.NonFinite}, {-inf, moe.NonFinite}, {0x1p41, moe.Range}, {-0x1p41, moe.Range}} {
			values := source(102)
			x := values.activations(256)
			x[200] = c.v
			row := newRow(e.RowFormat(), 256)
			if st, i := QuantizeRow(row, x); st != c.want || i != 200 {
				t.Errorf("%s rows: %g is %s at %d, want %s at 200", row.Format, c.v, st, i, c.want)
			}
			// The same value in a row that came from elsewhere, past QuantizeRow.
			row = randomRows(e.RowFormat(), 1, 256, 103)[0]
			if row.Format == moe.RowF32 {
				row.F[200] = c.v
			} else {
				row.Scales[len(row.Scales)-1] = c.v
			}
			if st := forms(t, e, row); st != c.want {
				t.Errorf("%s, %s: %g in a row gives %s, want %s", a, b, c.v, st, c.want)
			}
		}
	})
}

// Scales that no quantised row has are faults also where all that comes of them is a number.
func TestScalesOutsideTheirLimitsAreFaults(t *testing.T) {
	for _, f := range quant.Supported() {
		e := syntheticExpert(f, f, f, 256, 256, 107)
		x := randomRows(e.RowFormat(), 1, 256, 108)[0]
		for _, v := range []float32{-1, 0x1p-60, 0x1p-149} {
			if x.Format == moe.RowF32 {
				continue // has no scales
			}
			x.Scales[0] = v
			if st := forms(t, e, x); st != moe.Range {
				t.Errorf("%s: a scale of %g gives %s, want range", f, v, st)
			}
		}
	}
}

// The row is looked at before what becomes of it: a row out of range stays range where the weights
// are not numbers.
func TestFaultOfTheRowComesFirst(t *testing.T) {
	for _, f := range quant.Supported() {
		e := syntheticExpert(f, f, f, 256, 256, 105)
		plantScale(&e.Gate, 3, 0, nan)
		x := randomRows(e.RowFormat(), 1, 256, 106)[0]
		if st := forms(t, e, x); st != moe.NonFinite {
			t.Errorf("%s: NaN in gate gives %s", f, st)
		}
		if x.Format == moe.RowF32 {
			x.F[9] = 0x1p41
		} else {
			x.Scales[0] = 0x1p41
		}
		if st := forms(t, e, x); st != moe.Range {
			t.Errorf("%s: NaN in gate and a row out of range give %s, want range", f, st)
		}
	}
}

// largest is a row as large as a row may be, pointing the way of row 3 of the matrix.
func largest(m *Matrix, f moe.RowFormat) moe.Row {
	w := make([]float32, m.In)
	quant.Dequantize(w, m.Format, m.row(3))
	for i := range w {
		w[i] = float32(math.Copysign(0x1p40, float64(w[i])))
	}
	return rowOf(f, w)
}

// Numbers that are allowed, one by one, and too large together: h beyond 2^40, g*u beyond binary32,
// y and w*y beyond it.
func TestOverflowOnTheWayIsAFault(t *testing.T) {
	big := map[quant.Format]float32{quant.F32: 1e30, quant.BF16: 1e30}
	eachPair(func(a, b quant.Format) {
		e := syntheticExpert(a, a, b, 256, 256, 111)
		x := largest(&e.Gate, e.RowFormat())
		copy(e.Up.row(3), e.Gate.row(3)) // g and u large and positive
		if st := forms(t, e, x); st != moe.Range {
			t.Errorf("%s, %s: h beyond 2^40 gives %s, want range", a, b, st)
		}
		v, ok := big[a]
		if a == quant.MXFP4 {
			for k := range 256 / 32 { // the largest exponent that is let in
				e.Gate.row(3)[17*k], e.Up.row(3)[17*k] = 190, 190
			}
			ok = true
		} else if ok {
			plantScale(&e.Gate, 3, 0, v)
			plantScale(&e.Up, 3, 0, v)
			x.F[0] = 0x1p40
		}
		if !ok {
			return // binary16 scales are too small for g*u to overflow
		}
		if st := forms(t, e, x); st != moe.NonFinite {
			t.Errorf("%s, %s: g*u beyond binary32 gives %s, want nonfinite", a, b, st)
		}
	})
	e := syntheticExpert(quant.F32, quant.F32, quant.F32, 4, 4, 1)
	for o := range 4 {
		plantScale(&e.Down, 1, o, 3e38)
	}
	x := moe.Row{Format: moe.RowF32, F: []float32{1e4, 1e4, 1e4, 1e4}}
	for k := range 4 {
		plantScale(&e.Gate, 2, k, 1)
		plantScale(&e.Up, 2, k, 1)
	}
	if st := forms(t, e, x); st != moe.NonFinite {
		t.Errorf("y beyond binary32 gives %s, want nonfinite", st)
	}
}

// silu turns minus infinity into 0, and 0 times a number is a number: the one place where infinity
// could get lost.
func TestMinusInfinityInGateIsAFault(t *testing.T) {
	for _, f := range []quant.Format{quant.F32, quant.F16, quant.BF16, quant.Q8_0, quant.Q4K, quant.Q5K, quant.Q6K} {
		e := syntheticExpert(f, f, f, 256, 256, 121)
		x := randomRows(e.RowFormat(), 1, 256, 122)[0]
		for _, v := range []float32{inf, -inf} {
			plantScale(&e.Gate, 3, 0, v)
			g := e.Gate.Dot(3, x)
			if finite(g) {
				t.Fatalf("%s: g is %g", f, g)
			}
			if st := forms(t, e, x); st != moe.NonFinite {
				t.Errorf("%s: g of %g gives %s", f, g, st)
			}
		}
	}
}

// A dot product itself loses nothing, whatever the scale of the row: also where no row may have it.
func TestDotKeepsWhatIsNotANumber(t *testing.T) {
	for _, f := range quant.Supported() {
		for _, rf := range rowFormatsOf(f) {
			m := syntheticMatrix(f, 256, 1, 131)
			for _, v := range []float32{inf, -inf, nan} {
				x := newRow(rf, 256) // zeros all over, but for one
				if rf == moe.RowF32 {
					x.F[100] = v
				} else {
					x.Scales[0] = v
				}
				if got := m.Dot(0, x); finite(got) {
					t.Errorf("%s times a %s row with %g is %g", f, rf, v, got)
				}
			}
		}
	}
	for _, f := range []quant.Format{quant.Q4K, quant.Q6K, quant.Q8_0} { // d*da overflows
		m := syntheticMatrix(f, 256, 1, 132)
		plantScale(&m, 0, 0, 60000)
		x := newRow(HiddenFormat(f), 256)
		x.Scales[0] = 3e38
		if got := m.Dot(0, x); finite(got) {
			t.Errorf("%s: overflow of d*da times 0 is %g", f, got)
		}
	}
}
