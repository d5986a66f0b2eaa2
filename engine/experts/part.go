package experts

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"

	"kvasir/internal/moe"
	"kvasir/kernels/cpu"
	"kvasir/kernels/ref"
)

// PartSource is where the experts of a Part come from.
type PartSource struct {
	Layer    int
	Experts  int // how many the layer has, or at least one more than the last that is held
	Held     int // how many of them are held
	Exponent int // E of the layer's gated sums
	Shape    Shape

	// Expert returns the bytes of each tensor of an expert, or nil if it is not held. It is called by
	// several threads.
	Expert func(i int) ([][]byte, error)
	// Done is told bytes that are not needed any more, by several threads; it may be nil.
	Done func(data []byte)
	// Keep is what the bytes live in: a Part whose weights are not repacked refers to it.
	Keep any
}

// Part is some experts of one layer, ready to be computed on. It implements moe.Experts, does not change,
// and is safe for concurrent use. Its memory is its own and goes back when nothing refers to it any more.
type Part struct {
	number  int
	experts int
	layer   *cpu.Layer
	keep    any
}

// NewPart takes the experts of src, which are repacked where the processor wants that. The profile of o
// is not looked at.
func NewPart(src PartSource, o Options) (*Part, error) {
	if err := src.Shape.Check(); err != nil {
		return nil, fmt.Errorf("layer %d: %w", src.Layer, err)
	}
	backend, err := o.backend()
	if err != nil {
		return nil, err
	}
	var done atomic.Int64 // matrices whose bytes are not needed any more
	layer, err := backend.NewLayer(cpu.NewArena(), cpu.Source{
		Number: src.Layer, Exponent: src.Exponent, Experts: src.Experts, Held: src.Held,
		Expert: func(i int) (*ref.Expert, error) {
			data, err := src.Expert(i)
			if data == nil || err != nil {
				return nil, err
			}
			return src.Shape.Expert(data, o.Float)
		},
		Done: func(m *ref.Matrix) {
			done.Add(1)
			if src.Done != nil {
				src.Done(m.Data)
			}
			if o.Loaded != nil {
				o.Loaded(len(m.Data))
			}
		},
	})
	if err != nil {
		return nil, err
	}
	p := &Part{number: src.Layer, experts: src.Experts, layer: layer}
	if held, _ := layer.Held(); done.Load() < 3*int64(held) {
		p.keep = src.Keep
	}
	return p, nil
}

// Keeps reports whether p still refers to PartSource.Keep.
func (p *Part) Keeps() bool { return p.keep != nil }

// Hidden returns how many values a row has.
func (p *Part) Hidden() int { return p.layer.Hidden() }

// WithExponent returns the part with another exponent of its gated sums, over the same weights.
func (p *Part) WithExponent(e int) *Part {
	q := *p
	q.layer = p.layer.WithExponent(e)
	return &q
}

// Forward computes all picks of b, if all are held.
func (p *Part) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	defer runtime.KeepAlive(p.keep)
	for _, n := range b.Expert {
		// Experts that the layer has and this part does not know of.
		if int(n) >= p.experts && int(n) < moe.MaxExperts {
			return fmt.Errorf("%w: expert %d of layer %d", moe.ErrNotHeld, n, b.Layer)
		}
	}
	return p.layer.Forward(ctx, b, out)
}
