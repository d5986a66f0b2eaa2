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

// Source is where the experts of a layer come from.
type Source struct {
	Number   int // layer of the model
	Exponent int // E of its gated sums
	Experts  int // how many the layer has
	Held     int // how many of them are held, so that there is room for them in one piece; 0: all

	// Expert returns expert i, or nil if it is not held. It is called by several threads, those of the
	// backend, and so must not compute with it.
	Expert func(i int) (*ref.Expert, error)
	// Done is called with each matrix whose bytes are not needed any more, by several threads; it may be
	// nil. The bytes of the others must stay and not change.
	Done func(m *ref.Matrix)
}

// From returns the experts of l.
func From(l *ref.Layer) Source {
	return Source{
		Number: l.Number, Exponent: l.Exponent, Experts: len(l.Experts),
		Expert: func(i int) (*ref.Expert, error) { return l.Experts[i], nil },
	}
}

// NewLayer makes a layer of experts of one shape. It repacks them into a with all threads, one at a time
// each, so that beside what is repacked there is never more than a few.
func (b *Backend) NewLayer(a *Arena, s Source) (*Layer, error) {
	if s.Exponent < ref.MinExponent || s.Exponent > ref.MaxExponent {
		return nil, fmt.Errorf("%w: layer %d has exponent %d, want %d to %d",
			ref.ErrShape, s.Number, s.Exponent, ref.MinExponent, ref.MaxExponent)
	}
	if s.Experts < 0 || s.Experts > moe.MaxExperts {
		return nil, fmt.Errorf("%w: layer %d has %d experts, want at most %d",
			ref.ErrShape, s.Number, s.Experts, moe.MaxExperts)
	}
	p := &packing{Source: s, b: b, arena: a, errs: make([]error, s.Experts)}
	p.layer = &Layer{b: b, number: s.Number, exponent: s.Exponent, experts: make([]expert, s.Experts)}
	if err := p.shape(); err != nil {
		return nil, fmt.Errorf("layer %d, %w", s.Number, err)
	}
	// A few at a time, so that batches for other layers get their turn in between.
	step := 2 * b.Threads()
	for p.first = 0; p.first < s.Experts; p.first += step {
		b.team.run(min(step, s.Experts-p.first), p)
	}
	for _, err := range p.errs {
		if err != nil {
			return nil, fmt.Errorf("layer %d, %w", s.Number, err)
		}
	}
	return p.layer, nil
}

// packing is a layer that is being made.
type packing struct {
	Source
	b     *Backend
	arena *Arena
	layer *Layer
	first int     // expert of the first task
	errs  []error // of each expert
}

// shape sets the sizes and formats of the layer to those of its first expert.
func (p *packing) shape() error {
	for i := range p.Experts {
		e, err := p.Expert(i)
		if err == nil && e == nil {
			continue
		}
		if err == nil {
			err = e.Check()
		}
		if err != nil {
			return fmt.Errorf("expert %d: %w", i, err)
		}
		l := p.layer
		l.hidden, l.length, l.format, l.hFormat = e.Gate.In, e.Gate.Out, e.RowFormat(), hiddenFormat(e)
		size := 0
		for _, m := range p.matrices(&expert{}, e) {
			size += inLines(p.b.packedBytes(m.from, m.rows))
		}
		held := p.Experts
		if p.Held > 0 {
			held = min(held, p.Held)
		}
		return p.arena.reserve(size * held)
	}
	return nil
}

// hiddenFormat is how the h of an expert is kept.
func hiddenFormat(e *ref.Expert) moe.RowFormat {
	if e.Float {
		return moe.RowF32
	}
	return ref.HiddenFormat(e.Down.Format)
}

// do makes one expert.
func (p *packing) do(_ *worker, task, _ int) {
	i := p.first + task
	e, err := p.Expert(i)
	if err == nil && e != nil {
		err = p.take(i, e)
	}
	if err != nil {
		p.errs[i] = fmt.Errorf("expert %d: %w", i, err)
	}
}

// take checks an expert and repacks it.
func (p *packing) take(i int, e *ref.Expert) error {
	l := p.layer
	if err := e.Check(); err != nil {
		return err
	}
	if e.Gate.In != l.hidden || e.Gate.Out != l.length || e.RowFormat() != l.format || hiddenFormat(e) != l.hFormat {
		return fmt.Errorf("%w: %s rows of %d, h %s of %d, want %s of %d and %s of %d", ErrMixed,
			e.RowFormat(), e.Gate.In, hiddenFormat(e), e.Gate.Out, l.format, l.hidden, l.hFormat, l.length)
	}
	for _, m := range p.matrices(&l.experts[i], e) {
		if err := p.b.hold(m.to, p.arena, m.from, m.rows); err != nil {
			return fmt.Errorf("%s: %w", m.role, err)
		}
		if p.Done != nil && !m.to.Keeps() {
			p.Done(m.from)
		}
	}
	l.experts[i].held = true
	return nil
}

// part is one matrix of an expert that is repacked.
type part struct {
	role string
	to   *Matrix
	from *ref.Matrix
	rows moe.RowFormat // that it will be multiplied with
}

func (p *packing) matrices(to *expert, e *ref.Expert) [3]part {
	return [3]part{
		{"gate", &to.gate, &e.Gate, p.layer.format},
		{"up", &to.up, &e.Up, p.layer.format},
		{"down", &to.down, &e.Down, p.layer.hFormat},
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

// WithExponent returns the layer with another exponent of its gated sums, over the same weights.
func (l *Layer) WithExponent(e int) *Layer {
	if e < ref.MinExponent || e > ref.MaxExponent {
		panic(fmt.Sprintf("BUG: exponent %d", e))
	}
	tuned := *l
	tuned.exponent = e
	return &tuned
}

// Format returns the format of the rows that the layer takes.
func (l *Layer) Format() moe.RowFormat { return l.format }

// Hidden returns how many values those rows have.
func (l *Layer) Hidden() int { return l.hidden }

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
