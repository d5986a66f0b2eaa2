package kerneltest

import (
	"context"
	"fmt"
	"math"
	"slices"

	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// definitionMax is up to how many products a batch is compared with ref.Layer itself; beyond it
// with the same arithmetic that decodes a weight once for all rows.
const definitionMax = 4 << 20

// grouped is the experts of a layer, each run over all rows that picked it. It gives the bits of
// ref.Layer, allocates nothing in steady state, and serves one goroutine. The batch is one that the
// layer runs.
type grouped struct {
	layer   *ref.Layer
	scratch ref.Scratch
	rows    []moe.Row
	at      []int // row of the batch
	pick    []int // its pick in the batch
	status  []moe.Status
	y       []float32
}

func (g *grouped) forward(b *moe.Batch, out *moe.Partials) {
	out.Reset(b.Rows, b.Hidden)
	for n, e := range g.layer.Experts {
		if e != nil {
			g.gather(b, uint16(n))
			g.add(b, g.run(e), out)
		}
	}
	for r, st := range out.Status {
		if st != moe.OK { // picks after the one at fault were added
			clear(out.Row(r))
		}
	}
}

// gather collects the picks of an expert.
func (g *grouped) gather(b *moe.Batch, n uint16) {
	g.rows, g.at, g.pick, g.status = g.rows[:0], g.at[:0], g.pick[:0], g.status[:0]
	for r := range b.Rows {
		for i := int(b.First[r]); i < int(b.First[r+1]); i++ {
			if b.Expert[i] == n {
				g.rows, g.at = append(g.rows, b.Row(r)), append(g.at, r)
				g.pick, g.status = append(g.pick, i), append(g.status, moe.OK)
			}
		}
	}
}

// run returns what an expert makes of the picks that were gathered, row by row.
func (g *grouped) run(e *ref.Expert) []float32 {
	if len(g.rows) == 0 {
		return nil
	}
	n := len(g.rows) * e.Down.Out
	if cap(g.y) < n {
		g.y = make([]float32, n)
	}
	e.ForwardRows(g.y[:n], g.rows, g.status, &g.scratch)
	return g.y[:n]
}

// add adds the picks that were gathered to the sums of their rows.
func (g *grouped) add(b *moe.Batch, y []float32, out *moe.Partials) {
	hidden := b.Hidden
	for i, r := range g.at {
		st := g.status[i]
		if st == moe.OK {
			st = ref.AddPick(out.Row(r), y[i*hidden:(i+1)*hidden], b.Weight[g.pick[i]], g.layer.Exponent)
		}
		out.Status[r] = max(out.Status[r], st)
	}
}

// levelBits is how large level makes sums.
const levelBits = 30

// level sets each gate weight so that the largest value of its pick comes to about 2^levelBits: with
// scales at their ends most sums would be nothing but zeros or out of range.
func level(l *ref.Layer, b *moe.Batch, s *source) {
	g := grouped{layer: l}
	for n, e := range l.Experts {
		if e == nil {
			continue
		}
		g.gather(b, uint16(n))
		y := g.run(e)
		for i, pick := range g.pick {
			largest := float32(0)
			for _, v := range y[i*b.Hidden : (i+1)*b.Hidden] {
				largest = max(largest, float32(math.Abs(float64(v))))
			}
			if g.status[i] == moe.OK && largest > 0 {
				exponent := int(math.Float32bits(largest)>>23) - 127
				w := power(min(max(levelBits-l.Exponent-exponent, -126), 126))
				b.Weight[pick] = float32(w * float32(gateWeight(s)+1))
			}
		}
	}
}

// want returns what a batch comes to.
func want(l *ref.Layer, b *moe.Batch) (*moe.Partials, error) {
	var out moe.Partials
	products := 0
	for _, n := range b.Expert {
		if e := l.Experts[n]; e != nil {
			products += 3 * e.Gate.In * e.Gate.Out
		}
	}
	if products > definitionMax {
		g := grouped{layer: l}
		g.forward(b, &out)
		return &out, nil
	}
	if err := l.Forward(context.Background(), b, &out); err != nil {
		return nil, fmt.Errorf("BUG: the suite made a batch that cannot be run: %w", err)
	}
	return &out, nil
}

// stale returns partials that are full of what was there before.
func stale(b *moe.Batch) *moe.Partials {
	p, err := moe.NewPartials(b.Rows, b.Hidden)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	p.Reset(b.Rows, b.Hidden)
	for i := range p.Sum {
		p.Sum[i] = 0x7777777777
	}
	for i := range p.Status {
		p.Status[i] = moe.NonFinite
	}
	return p
}

// agree returns an error unless x makes of b what ref makes of it. If some row must be good, as in
// most checks, a batch of faults alone is a mistake of the suite.
func agree(x moe.Experts, l *ref.Layer, b *moe.Batch, some bool) error {
	w, err := want(l, b)
	if err != nil {
		return err
	}
	good := 0
	for r, st := range w.Status {
		for _, v := range w.Row(r) {
			if st == moe.OK && v != 0 {
				good++
				break
			}
		}
	}
	if some && good == 0 {
		return fmt.Errorf("BUG: the suite made a batch of %d rows of which none is good", b.Rows)
	}
	return agreeWith(x, b, w)
}

// agreeWith is agree where the partials are known.
func agreeWith(x moe.Experts, b *moe.Batch, w *moe.Partials) error {
	got, before := stale(b), clone(b)
	if err := x.Forward(context.Background(), b, got); err != nil {
		return fmt.Errorf("batch of %d rows: %w", b.Rows, err)
	}
	if err := sameBatch(b, before); err != nil {
		return err
	}
	return samePartials(got, w)
}

func samePartials(got, want *moe.Partials) error {
	if got.Rows != want.Rows || got.Hidden != want.Hidden ||
		len(got.Sum) != len(want.Sum) || len(got.Status) != len(want.Status) {
		return fmt.Errorf("partials of %d rows of %d (%d sums, %d statuses), want %d of %d",
			got.Rows, got.Hidden, len(got.Sum), len(got.Status), want.Rows, want.Hidden)
	}
	for r, st := range want.Status {
		if got.Status[r] != st {
			return fmt.Errorf("row %d of %d is %s, want %s", r, want.Rows, got.Status[r], st)
		}
		g, w := got.Row(r), want.Row(r)
		for i := range w {
			if g[i] != w[i] {
				return fmt.Errorf("row %d of %d (%s), value %d of %d is %d, want %d", r, want.Rows, st, i, len(w), g[i], w[i])
			}
		}
	}
	return nil
}

func clone(b *moe.Batch) *moe.Batch {
	c := *b
	c.Q, c.Scales, c.F = append([]int8(nil), b.Q...), append([]float32(nil), b.Scales...), append([]float32(nil), b.F...)
	c.First, c.Expert = append([]int32(nil), b.First...), append([]uint16(nil), b.Expert...)
	c.Weight = append([]float32(nil), b.Weight...)
	return &c
}

// sameBatch returns an error if a batch was written.
func sameBatch(b, before *moe.Batch) error {
	same := b.Shape == before.Shape && b.Rows == before.Rows && sameFloats(b.Scales, before.Scales) == nil &&
		sameFloats(b.F, before.F) == nil && sameFloats(b.Weight, before.Weight) == nil &&
		slices.Equal(b.Q, before.Q) && slices.Equal(b.First, before.First) && slices.Equal(b.Expert, before.Expert)
	if !same {
		return fmt.Errorf("the batch of %d rows was changed", before.Rows)
	}
	return nil
}

// sameFloats compares bits, and takes every NaN for every other.
func sameFloats(got, want []float32) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d values, want %d", len(got), len(want))
	}
	for i, w := range want {
		if g := got[i]; math.Float32bits(g) != math.Float32bits(w) && !(isNaN(g) && isNaN(w)) {
			return fmt.Errorf("value %d is %g (%08x), want %g (%08x)", i, g, math.Float32bits(g), w, math.Float32bits(w))
		}
	}
	return nil
}

func isNaN(x float32) bool { return math.IsNaN(float64(x)) }

// untouched is what stands in the outputs of a product before it: a NaN that nothing computes would
// hide behind every NaN.
const untouched = 0x1.23456p77

// agreeMatMul returns an error unless mul gives the bits of m.MatMul, and for a sample of m.Dot.
func agreeMatMul(mul func(dst []float32, x []moe.Row), m *ref.Matrix, x []moe.Row, s *source) error {
	n := len(x) * m.Out
	got, w := make([]float32, n+1), make([]float32, n)
	for i := range got {
		got[i] = untouched
	}
	m.MatMul(w, x, 0, m.Out, new(ref.Scratch))
	for range min(n, 6) {
		i := s.intn(n)
		if d := m.Dot(i%m.Out, x[i/m.Out]); sameFloats(w[i:i+1], []float32{d}) != nil {
			return fmt.Errorf("BUG: ref.MatMul gives %g where ref.Dot gives %g", w[i], d)
		}
	}
	mul(got, x)
	if got[n] != untouched {
		return fmt.Errorf("%s %dx%d times %d rows: the value after the last was written", m.Format, m.In, m.Out, len(x))
	}
	for r := range x {
		lo, hi := r*m.Out, (r+1)*m.Out
		if err := sameFloats(got[lo:hi], w[lo:hi]); err != nil {
			return fmt.Errorf("%s %dx%d (in x out) times %d %s rows, row %d: %w",
				m.Format, m.In, m.Out, len(x), x[r].Format, r, err)
		}
	}
	return nil
}
