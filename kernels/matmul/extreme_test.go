package matmul

import (
	"fmt"
	"math"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// Sums of 16 bits hold the largest products there are, with nothing to spare: random weights do not come
// near.
func TestMulEqualsReferenceWithExtremeWeights(t *testing.T) {
	fills := []byte{0x00, 0x77, 0x7f, 0x80, 0x88, 0xff}
	for _, k := range kernels(t) {
		for _, f := range formats {
			for _, fill := range fills {
				t.Run(fmt.Sprintf("%s/%s/%02x", k.Variant(), f, fill), func(t *testing.T) {
					m := filledMatrix(t, f, fill, 512, 16)
					for rows := 1; rows <= 7; rows++ {
						checkMul(t, k, &m, extremeRows(f, rows, m.In))
					}
				})
			}
		}
	}
}

func checkMul(t *testing.T, k *Kernel, m *ref.Matrix, x []moe.Row) {
	t.Helper()
	size, err := PackedBytes(m.Format, m.In, m.Out)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Pack(moe.AlignedBytes(size), m)
	if err != nil {
		t.Fatal(err)
	}
	var recs Records
	recs.Reset(x[0].Format, m.In, len(x))
	var list Rows
	for i := range x {
		recs.Set(i, x[i])
		list.Add(&recs, i)
	}
	want := make([]float32, len(x)*m.Out)
	var s ref.Scratch
	m.MatMul(want, x, 0, m.Out, &s)
	got := make([]float32, len(want))
	k.Mul(NewWork(), &Product{M: &p, Lo: 0, Hi: p.Panels(), X: list, Dst: got, Stride: m.Out})
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("row %d of %d, value %d: %g, want %g", i/m.Out, len(x), i%m.Out, got[i], want[i])
		}
	}
}

// filledMatrix has weights, scales and minimums of one byte; only binary16 and exponents are others.
func filledMatrix(t *testing.T, f quant.Format, fill byte, in, out int) ref.Matrix {
	t.Helper()
	n, err := f.RowBytes(in)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, n*out)
	for i := range data {
		data[i] = fill
	}
	_, size := f.Block()
	for i := 0; i < len(data); i += size {
		b := data[i : i+size]
		switch f {
		case quant.Q6K:
			le.PutUint16(b[208:], 0x3c01)
		case quant.MXFP4:
			b[0] = 127
		case quant.Q8_0:
			le.PutUint16(b, 0x3c01)
		default:
			le.PutUint32(b, 0x3c013c02)
		}
	}
	m, err := ref.NewMatrix(f, in, out, data)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// extremeRows are rows of 127, of -127, and of both in turn, one, two, three … at a time.
func extremeRows(f quant.Format, rows, in int) []moe.Row {
	format := ref.HiddenFormat(f)
	list := make([]moe.Row, rows)
	for r := range list {
		x := moe.Row{Format: format, Q: make([]int8, in), Scales: make([]float32, format.Scales(in))}
		for i := range x.Q {
			x.Q[i] = 127
			if r == 1 || r > 1 && i/(r-1)%2 == 1 {
				x.Q[i] = -127
			}
		}
		for i := range x.Scales {
			x.Scales[i] = float32(i+1) / 3
		}
		list[r] = x
	}
	return list
}
