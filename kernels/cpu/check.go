package cpu

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// ErrInexact: a backend gives other bits than the definition.
var ErrInexact = errors.New("cpu: not the bits that it should be")

// checkRows is how many rows Check computes: more than any tile takes at once, and an odd number.
const checkRows = 9

// Check computes experts of every format with b and with kernels/ref and compares, which takes a fraction of
// a second. The error, wrapping ErrInexact, names the variant and the format; the kernels of this machine
// must not be used then.
func (b *Backend) Check() error {
	for i, f := range quant.Supported() {
		if err := b.checkFormat(f, uint64(100*i)); err != nil {
			return fmt.Errorf("%s, experts in %s: %w", b.variant, f, err)
		}
	}
	return nil
}

func (b *Backend) checkFormat(f quant.Format, seed uint64) error {
	l, err := checkLayer(f, seed)
	if err != nil {
		return err
	}
	ly, err := b.NewLayer(NewArena(), From(l))
	if err != nil {
		return err
	}
	return agree(l, ly)
}

// agree compares x with the definition.
func agree(l *ref.Layer, x moe.Experts) error {
	batch, err := checkBatch(l)
	if err != nil {
		return err
	}
	var want, got moe.Partials
	if err := l.Forward(context.Background(), batch, &want); err != nil {
		return err
	}
	if err := x.Forward(context.Background(), batch, &got); err != nil {
		return err
	}
	if !slices.Equal(got.Sum, want.Sum) || !slices.Equal(got.Status, want.Status) {
		return fmt.Errorf("%w; use another kernel (KVASIR_KERNEL=portable), and report this machine", ErrInexact)
	}
	return nil
}

// checkLayer is two small experts.
func checkLayer(f quant.Format, seed uint64) (*ref.Layer, error) {
	const hidden, length = 512, 256
	l := &ref.Layer{Exponent: ref.DefaultExponent}
	for i := range uint64(2) {
		e := &ref.Expert{}
		for j, m := range []*ref.Matrix{&e.Gate, &e.Up, &e.Down} {
			in, out := hidden, length
			if m == &e.Down {
				in, out = out, in
			}
			n, err := f.RowBytes(in)
			if err != nil {
				return nil, err
			}
			data := make([]byte, n*out)
			quant.Synthetic(data, f, seed+10*i+uint64(j))
			if *m, err = ref.NewMatrix(f, in, out, data); err != nil {
				return nil, err
			}
		}
		l.Experts = append(l.Experts, e)
	}
	return l, nil
}

// checkBatch is rows of which most have picked the first expert and some the second as well.
func checkBatch(l *ref.Layer) (*moe.Batch, error) {
	e := l.Experts[0]
	b, err := moe.NewBatch(moe.Shape{Hidden: e.Gate.In, Format: e.RowFormat()}, checkRows, 2*checkRows)
	if err != nil {
		return nil, err
	}
	x := make([]float32, e.Gate.In)
	for r := range checkRows {
		for i := range x {
			x[i] = float32(float32((i*i+r*i)%1021-510) / 256)
		}
		picks := []uint16{0, 1}[:1+r%2]
		if s, at := ref.QuantizeRow(b.Row(b.Grow(picks, []float32{0.75, 0.25}[:len(picks)])), x); s != moe.OK {
			return nil, fmt.Errorf("%w: value %d is %s", ErrInexact, at, s)
		}
	}
	return b, nil
}
