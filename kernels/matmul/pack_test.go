package matmul

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

func TestPackRefusesWhatDoesNotFit(t *testing.T) {
	good := func(f quant.Format) ref.Matrix { return randomMatrix(t, rand.New(rand.NewPCG(1, 1)), f, 256, 17) }
	room := func(f quant.Format) []byte {
		n, err := PackedBytes(f, 256, 17)
		if err != nil {
			t.Fatal(err)
		}
		return moe.AlignedBytes(n)
	}
	k4 := room(quant.Q4K)
	mx := good(quant.MXFP4)
	mx.Data[17] = 191 // the exponent of the second block
	for _, tt := range []struct {
		name   string
		change func(m *ref.Matrix)
		dst    []byte
		want   error
		says   string
	}{
		{"float weights", func(m *ref.Matrix) { m.Format = quant.F16 }, k4, ErrFormat, "F16"},
		{"unknown format", func(m *ref.Matrix) { m.Format = 99 }, k4, ErrFormat, "type 99"},
		{"part of a block", func(m *ref.Matrix) { m.In = 255 }, k4, quant.ErrLength, "multiple of 256"},
		{"no rows", func(m *ref.Matrix) { m.Out = 0 }, k4, quant.ErrLength, "0 rows"},
		{"cut weights", func(m *ref.Matrix) { m.Data = m.Data[1:] }, k4, ref.ErrShape, "2447 bytes"},
		{"short room", func(*ref.Matrix) {}, k4[:len(k4)-1], quant.ErrLength, "aligned to 64"},
		{"room elsewhere", func(*ref.Matrix) {}, moe.AlignedBytes(len(k4) + 1)[1:], quant.ErrLength, "aligned to 64"},
		{"exponent", func(m *ref.Matrix) { *m = mx }, room(quant.MXFP4), quant.ErrBlock, "191"},
	} {
		m := good(quant.Q4K)
		tt.change(&m)
		if _, err := Pack(tt.dst, &m); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %v that says %q", tt.name, err, tt.want, tt.says)
		}
	}
	m := good(quant.Q4K)
	if _, err := Pack(k4, &m); err != nil {
		t.Errorf("what fits: %v", err)
	}
}

// TestMulChecksBeforeAssembly gives products that do not fit together: each is a bug of the caller's.
func TestMulChecksBeforeAssembly(t *testing.T) {
	k := kernels(t)[0]
	m := randomMatrix(t, rand.New(rand.NewPCG(1, 1)), quant.Q4K, 256, 32)
	p, err := Pack(moe.AlignedBytes(2*q4Bytes), &m)
	if err != nil {
		t.Fatal(err)
	}
	list := func(f moe.RowFormat, values int) Rows {
		var r Records
		var x Rows
		r.Reset(f, values, 2)
		x.Add(&r, 0)
		x.Add(&r, 1)
		return x
	}
	rows := list(moe.RowQ8K, 256)
	for name, bad := range map[string]Product{
		"panels beyond the last": {M: &p, Hi: 3, X: rows, Dst: make([]float32, 96), Stride: 48},
		"panels backwards":       {M: &p, Lo: 2, Hi: 1, X: rows, Dst: make([]float32, 64), Stride: 32},
		"rows of another format": {M: &p, Hi: 2, X: list(moe.RowQ8, 256), Dst: make([]float32, 64), Stride: 32},
		"rows of another length": {M: &p, Hi: 2, X: list(moe.RowQ8K, 512), Dst: make([]float32, 64), Stride: 32},
		"too few results":        {M: &p, Hi: 2, X: rows, Dst: make([]float32, 63), Stride: 32},
		"results that overlap":   {M: &p, Hi: 2, X: rows, Dst: make([]float32, 64), Stride: 31},
	} {
		func() {
			defer func() {
				if text, ok := recover().(string); !ok || !strings.HasPrefix(text, "BUG: ") {
					t.Errorf("%s: recovered %q, want a BUG", name, text)
				}
			}()
			k.Mul(NewWork(), &bad)
		}()
	}
}
