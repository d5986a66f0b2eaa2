package kerneltest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// executor is ref.Layer made fast enough to be a backend: rows grouped by expert, memory kept.
type executor struct {
	mu sync.Mutex
	g  grouped
}

func (x *executor) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	if err := checkBatch(x.g.layer, b); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.g.forward(b, out)
	return nil
}

func checkBatch(l *ref.Layer, b *moe.Batch) error {
	if err := b.Validate(len(l.Experts)); err != nil {
		return err
	}
	if b.Layer != l.Number {
		return fmt.Errorf("%w: layer %d", moe.ErrNotHeld, b.Layer)
	}
	for _, n := range b.Expert {
		e := l.Experts[n]
		if e == nil {
			return fmt.Errorf("%w: expert %d", moe.ErrNotHeld, n)
		}
		if b.Hidden != e.Gate.In || b.Format != e.RowFormat() {
			return fmt.Errorf("%w: %s rows of %d", moe.ErrInvalid, b.Format, b.Hidden)
		}
	}
	return nil
}

// good is the backend that everything is right with.
func good() Backend {
	return Backend{
		Name:  "ref",
		Layer: func(_ testing.TB, l *ref.Layer) moe.Experts { return &executor{g: grouped{layer: l}} },
		MatMul: func(_ testing.TB, m *ref.Matrix) func([]float32, []moe.Row) {
			var s ref.Scratch
			return func(dst []float32, x []moe.Row) { m.MatMul(dst, x, 0, m.Out, &s) }
		},
		Threads: func(int) Backend { return good() },
	}
}

func TestSuiteAcceptsTheReference(t *testing.T) { Suite(t, good()) }

func FuzzReference(f *testing.F) { Fuzz(f, good()) }
