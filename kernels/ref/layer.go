package ref

import (
	"context"
	"fmt"

	"kvasir/internal/moe"
)

// Layer is the experts of one layer, as the definition of what a batch means: row by row, pick by
// pick, in order. It is slow, and it is what every other executor is compared with. It implements
// moe.Experts.
type Layer struct {
	Number   int       // layer of the model
	Exponent int       // E of its gated sums
	Experts  []*Expert // by number; nil where it is not held
}

// Forward implements moe.Experts.
func (l *Layer) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	if err := l.check(b); err != nil {
		return err
	}
	var s Scratch
	y := make([]float32, b.Hidden)
	sum := make([]int64, b.Hidden)
	out.Reset(b.Rows, b.Hidden)
	for r := range b.Rows {
		if err := ctx.Err(); err != nil {
			out.Reset(0, b.Hidden)
			return fmt.Errorf("layer %d, row %d of %d: %w", b.Layer, r, b.Rows, err)
		}
		clear(sum)
		status := moe.OK
		expert, weight := b.Picks(r)
		for i, e := range expert {
			st := l.Experts[e].Forward(y, b.Row(r), &s)
			if st == moe.OK {
				st = AddPick(sum, y, weight[i], l.Exponent)
			}
			status = max(status, st)
		}
		if status == moe.OK {
			copy(out.Row(r), sum)
		}
		out.Fault(r, status)
	}
	return nil
}

// check returns an error for a batch that cannot run here as a whole.
func (l *Layer) check(b *moe.Batch) error {
	if err := b.Validate(len(l.Experts)); err != nil {
		return err
	}
	if b.Layer != l.Number {
		return fmt.Errorf("%w: layer %d, this is layer %d", moe.ErrNotHeld, b.Layer, l.Number)
	}
	for _, n := range b.Expert {
		e := l.Experts[n]
		if e == nil {
			return fmt.Errorf("%w: expert %d of layer %d", moe.ErrNotHeld, n, b.Layer)
		}
		if b.Hidden != e.Gate.In || b.Format != e.RowFormat() {
			return fmt.Errorf("%w: %s rows of %d values, expert %d of layer %d takes %s rows of %d",
				moe.ErrInvalid, b.Format, b.Hidden, n, b.Layer, e.RowFormat(), e.Gate.In)
		}
	}
	return nil
}

// Layers is a model's routed experts, layer by layer. It implements moe.Experts.
type Layers []*Layer

// Forward implements moe.Experts.
func (ls Layers) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	for _, l := range ls {
		if l.Number == b.Layer {
			return l.Forward(ctx, b, out)
		}
	}
	return fmt.Errorf("%w: layer %d", moe.ErrNotHeld, b.Layer)
}
