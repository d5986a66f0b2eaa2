package cpu

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// syntheticLayer is experts of plausible weights.
func syntheticLayer(tb testing.TB, f [3]quant.Format, hidden, length, experts int) *ref.Layer {
	tb.Helper()
	l := &ref.Layer{Number: 3, Exponent: 20}
	matrix := func(f quant.Format, in, out int, seed uint64) ref.Matrix {
		n, err := f.RowBytes(in)
		if err != nil {
			tb.Fatal(err)
		}
		data := make([]byte, n*out)
		quant.Synthetic(data, f, seed)
		m, err := ref.NewMatrix(f, in, out, data)
		if err != nil {
			tb.Fatal(err)
		}
		return m
	}
	for i := range experts {
		seed := uint64(3*i + 1)
		l.Experts = append(l.Experts, &ref.Expert{
			Gate: matrix(f[0], hidden, length, seed), Up: matrix(f[1], hidden, length, seed+1),
			Down: matrix(f[2], length, hidden, seed+2),
		})
	}
	return l
}

// syntheticBatch is rows of normal values, each with topK experts.
func syntheticBatch(tb testing.TB, l *ref.Layer, rows, topK int, seed uint64) *moe.Batch {
	tb.Helper()
	rng := rand.New(rand.NewPCG(seed, 2))
	e := l.Experts[0]
	b, err := moe.NewBatch(moe.Shape{Layer: l.Number, Hidden: e.Gate.In, Format: e.RowFormat()}, rows, rows*topK)
	if err != nil {
		tb.Fatal(err)
	}
	x := make([]float32, e.Gate.In)
	for range rows {
		var experts []uint16
		var weights []float32
		for _, e := range rng.Perm(len(l.Experts))[:topK] {
			experts = append(experts, uint16(e))
			weights = append(weights, 1/float32(topK))
		}
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		if s, at := ref.QuantizeRow(b.Row(b.Grow(experts, weights)), x); s != moe.OK {
			tb.Fatal(s, at)
		}
	}
	return b
}

func TestCheckNoticesAWrongBit(t *testing.T) {
	for _, v := range variants() {
		b := New(v, 2)
		defer b.Close()
		if err := b.Check(); err != nil {
			t.Errorf("%s: %v", v, err)
		}
	}
	l, err := checkLayer(quant.Q4K, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := agree(l, flipped{l}); !errors.Is(err, ErrInexact) {
		t.Errorf("one bit in one sum: %v", err)
	}
}

// flipped is a layer with one wrong bit in its last sum.
type flipped struct{ *ref.Layer }

func (f flipped) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	err := f.Layer.Forward(ctx, b, out)
	out.Sum[len(out.Sum)-1] ^= 1
	return err
}
