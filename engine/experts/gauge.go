package experts

import (
	"context"
	"math"
	"slices"

	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// Gauge is an executor that measures what an arithmetic profile is made of while it passes batches on:
// the median magnitude of each row's partial, and the largest single pick, a layer. It is used by one
// caller at a time.
//
// It asks next for one pick a row, so that a partial is the pick itself, and adds them up: sums are
// integers, so the result is that of the whole row.
type Gauge struct {
	next    moe.Experts
	profile ref.Profile

	single   *moe.Batch   // rows of one pick each
	origin   []int        // row of the batch for each row of single
	partials moe.Partials // of single

	medians [][]float32 // by layer, one a row
	largest []int64     // by layer, largest |v| of a pick, in units of 2^-E
}

// NewGauge returns a gauge before next, which computes with the given profile.
func NewGauge(next moe.Experts, p ref.Profile) *Gauge {
	return &Gauge{
		next:    next,
		profile: p,
		medians: make([][]float32, len(p.Exponents)),
		largest: make([]int64, len(p.Exponents)),
	}
}

// Forward fills out with the partials of b and remembers their sizes. Faulted rows do not count.
func (g *Gauge) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	var err error
	if g.single == nil || g.single.Format != b.Format || g.single.Hidden != b.Hidden {
		if g.single, err = moe.NewBatch(b.Shape, moe.MaxRows, moe.MaxRows); err != nil {
			return err
		}
	}
	out.Reset(b.Rows, b.Hidden)
	g.clear(b.Layer)
	for r := range b.Rows {
		expert, weight := b.Picks(r)
		for i := range expert {
			if !g.single.Room(1) {
				if err := g.flush(ctx, out); err != nil {
					return err
				}
			}
			from, to := b.Row(r), g.single.Row(g.single.Grow(expert[i:i+1], weight[i:i+1]))
			copy(to.Q, from.Q)
			copy(to.Scales, from.Scales)
			copy(to.F, from.F)
			g.origin = append(g.origin, r)
		}
	}
	if err := g.flush(ctx, out); err != nil {
		return err
	}
	for r := range out.Rows {
		if out.Status[r] == moe.OK {
			g.medians[b.Layer] = append(g.medians[b.Layer], median(out.Row(r), g.profile.Exponents[b.Layer]))
		}
	}
	return nil
}

func (g *Gauge) clear(layer int) {
	g.single.Reset(layer)
	g.origin = g.origin[:0]
}

// flush computes the collected picks and adds them to their rows.
func (g *Gauge) flush(ctx context.Context, out *moe.Partials) error {
	layer := g.single.Layer
	if err := g.next.Forward(ctx, g.single, &g.partials); err != nil {
		return err
	}
	for i, r := range g.origin {
		out.AddRow(r, &g.partials, i)
		for _, v := range g.partials.Row(i) {
			g.largest[layer] = max(g.largest[layer], v, -v)
		}
	}
	g.clear(layer)
	return nil
}

// Rows is how many rows have been measured in the layer that has the fewest.
func (g *Gauge) Rows() int {
	least := math.MaxInt
	for _, m := range g.medians {
		least = min(least, len(m))
	}
	return least
}

// Profile returns the profile that follows from what was measured.
func (g *Gauge) Profile(model string) (ref.Profile, error) {
	p := ref.Profile{Arithmetic: ref.Arithmetic, Model: model, Rows: g.Rows(), Exponents: make([]int, len(g.medians))}
	for l, medians := range g.medians {
		e, err := ref.Exponent(medians, ref.Float(g.largest[l], g.profile.Exponents[l]))
		if err != nil {
			return p, err
		}
		p.Exponents[l] = e
	}
	return p, nil
}

// median returns the median of |sum| in real units; of an even number of values the mean of the middle
// two.
func median(sum []int64, exponent int) float32 {
	abs := make([]int64, len(sum))
	for i, v := range sum {
		abs[i] = max(v, -v)
	}
	slices.Sort(abs)
	hi := abs[len(abs)/2]
	lo := abs[(len(abs)-1)/2]
	return float32(ref.Float(lo, exponent)/2) + float32(ref.Float(hi, exponent)/2)
}
