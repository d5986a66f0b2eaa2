package cpu

import (
	"errors"
	"fmt"

	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// ErrMixed: the experts of a layer differ in format or size.
var ErrMixed = errors.New("cpu: experts of one layer differ")

// Layer is the routed experts of a layer, held by this machine. It implements moe.Experts.
type Layer struct {
	b        *Backend
	number   int // layer of the model
	exponent int // E of its gated sums
	hidden   int // values of a row
	length   int // values of h
	format   moe.RowFormat
	hFormat  moe.RowFormat
	experts  []expert
}

type expert struct {
	gate, up, down Matrix
	held           bool
}

// NewLayer makes a layer of the experts of l, all of one shape, of which those that are nil are not held.
// It repacks their weights into a with all threads, window by window, and calls done with each
// window's matrices whose bytes are not needed any more; done may be nil. The bytes of the others must
// stay.
func (b *Backend) NewLayer(a *Arena, l *ref.Layer, done func(m *ref.Matrix)) (*Layer, error) {
	ly := &Layer{b: b, number: l.Number, exponent: l.Exponent, experts: make([]expert, len(l.Experts))}
	if l.Exponent < ref.MinExponent || l.Exponent > ref.MaxExponent {
		return nil, fmt.Errorf("%w: layer %d has exponent %d, want %d to %d",
			ref.ErrShape, l.Number, l.Exponent, ref.MinExponent, ref.MaxExponent)
	}
	p := packing{b: b, arena: a, layer: ly, from: l.Experts}
	for i, e := range l.Experts {
		if e == nil {
			continue
		}
		if err := ly.take(i, e); err != nil {
			return nil, fmt.Errorf("layer %d, expert %d: %w", l.Number, i, err)
		}
		p.window = append(p.window, i)
		p.bytes += len(e.Gate.Data) + len(e.Up.Data) + len(e.Down.Data)
		if p.bytes >= packWindow {
			if err := p.flush(done); err != nil {
				return nil, fmt.Errorf("layer %d, %w", l.Number, err)
			}
		}
	}
	if err := p.flush(done); err != nil {
		return nil, fmt.Errorf("layer %d, %w", l.Number, err)
	}
	return ly, nil
}

// take checks expert i, and that it is like the others.
func (l *Layer) take(i int, e *ref.Expert) error {
	if err := e.Check(); err != nil {
		return err
	}
	format, hFormat := e.RowFormat(), ref.HiddenFormat(e.Down.Format)
	if e.Float {
		hFormat = moe.RowF32
	}
	if l.hidden == 0 {
		l.hidden, l.length, l.format, l.hFormat = e.Gate.In, e.Gate.Out, format, hFormat
	}
	if e.Gate.In != l.hidden || e.Gate.Out != l.length || format != l.format || hFormat != l.hFormat {
		return fmt.Errorf("%w: %s rows of %d, h %s of %d, want %s of %d and %s of %d", ErrMixed,
			format, e.Gate.In, hFormat, e.Gate.Out, l.format, l.hidden, l.hFormat, l.length)
	}
	l.experts[i].held = true
	return nil
}

// packWindow is how many bytes of a file are repacked before their pages are given back.
const packWindow = 64 << 20

// packing is experts that are being repacked.
type packing struct {
	b      *Backend
	arena  *Arena
	layer  *Layer
	from   []*ref.Expert
	window []int // experts
	bytes  int

	parts []packPart
	errs  []error
}

// packPart is one matrix to repack.
type packPart struct {
	expert int
	role   string
	to     *Matrix
	from   *ref.Matrix
	takes  moe.RowFormat
	dst    []byte
}

// flush repacks the experts of the window.
func (p *packing) flush(done func(m *ref.Matrix)) error {
	p.parts = p.parts[:0]
	for _, i := range p.window {
		e, l := p.from[i], &p.layer.experts[i]
		p.parts = append(p.parts,
			packPart{expert: i, role: "gate", to: &l.gate, from: &e.Gate, takes: p.layer.format},
			packPart{expert: i, role: "up", to: &l.up, from: &e.Up, takes: p.layer.format},
			packPart{expert: i, role: "down", to: &l.down, from: &e.Down, takes: p.layer.hFormat})
	}
	for i := range p.parts {
		part := &p.parts[i]
		if n := p.b.packedBytes(part.from, part.takes); n > 0 {
			dst, err := p.arena.alloc(n)
			if err != nil {
				return err
			}
			part.dst = dst
		}
	}
	p.errs = make([]error, len(p.parts))
	p.b.team.run(len(p.parts), p)
	for _, err := range p.errs {
		if err != nil {
			return err
		}
	}
	for _, part := range p.parts {
		if done != nil && !part.to.Keeps() {
			done(part.from)
		}
	}
	p.window, p.bytes = p.window[:0], 0
	return nil
}

// do repacks one matrix.
func (p *packing) do(_ *worker, task, _ int) {
	part := &p.parts[task]
	err := p.b.hold(part.to, p.arena, part.from, part.takes)
	if err == nil && part.dst != nil {
		err = part.to.pack(part.dst)
	}
	if err != nil {
		p.errs[task] = fmt.Errorf("expert %d, %s: %w", part.expert, part.role, err)
	}
}

// Held returns how many experts of the layer are held, of how many.
func (l *Layer) Held() (held, experts int) {
	for i := range l.experts {
		if l.experts[i].held {
			held++
		}
	}
	return held, len(l.experts)
}

// Format returns the format of the rows that the layer takes, and Hidden their length.
func (l *Layer) Format() moe.RowFormat { return l.format }
func (l *Layer) Hidden() int           { return l.hidden }

// check returns an error for a batch that cannot run here as a whole.
func (l *Layer) check(b *moe.Batch) error {
	if err := b.Validate(len(l.experts)); err != nil {
		return err
	}
	if b.Layer != l.number {
		return fmt.Errorf("%w: layer %d, this is layer %d", moe.ErrNotHeld, b.Layer, l.number)
	}
	for _, n := range b.Expert {
		if !l.experts[n].held {
			return fmt.Errorf("%w: expert %d of layer %d", moe.ErrNotHeld, n, b.Layer)
		}
	}
	if b.Hidden != l.hidden || b.Format != l.format {
		return fmt.Errorf("%w: %s rows of %d values, layer %d takes %s rows of %d",
			moe.ErrInvalid, b.Format, b.Hidden, l.number, l.format, l.hidden)
	}
	return nil
}
