package bench

import (
	"context"
	"math/rand/v2"
	"runtime"
	"time"

	"kvasir/kernels/matmul"
	"kvasir/kernels/quant"
	"kvasir/kernels/variant"
)

// Slices of a turn, in their order: two that are compared with each other are neighbours.
const (
	peakSlice  = iota // bare int8 products
	largeSlice        // many rows of one expert, which stays in a cache
	smallSlice        // a row that picks experts which no cache holds
	readSlice         // as many bytes as that, of others
	slicesATurn
)

const (
	turnsKept    = 10              // of each ratio, for each pair of --repeat
	turnsBudget  = 8 * time.Second // that they are collected at most
	peakProducts = 1 << 26         // a third of a millisecond of a Zen 3
)

// gateSubject is the layer of the kernels' ratios. One thread computes it: ratios are those of a core.
type gateSubject struct {
	*subject
	k     Kernels
	bare  *matmul.Kernel // nil: portable, which has no bare loop
	large *pool          // uniform is the small one
	slow  float64        // part of a dispatch's time that is lost after it, for tests
	next  int            // byte of the weights that is read next
}

// newGateSubject makes the layer, and rows for it.
func (k Kernels) newGateSubject(ctx context.Context, v variant.Variant) (*gateSubject, error) {
	s, reference, err := k.newBare(quant.Q4K, v, 1)
	if err != nil {
		return nil, err
	}
	g := &gateSubject{subject: s, k: k, bare: matmul.For(v)}
	if g.large, err = k.newPool(ctx, s, reference, func(*rand.Rand, int) []int { return []int{0} }); err == nil {
		k.Batch = k.Experts / k.TopK // rows that pick each expert once
		s.uniform, err = k.newPool(ctx, s, reference, inOrder(k.TopK))
	}
	if err == nil {
		err = g.large.use(g.k.Batch)
	}
	if err == nil {
		err = s.uniform.use(1)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	g.next = k.Experts / 2 * s.expert // far from the first expert, so that what was read is not in a cache
	runtime.GC()                      // what the weights were made of
	return g, nil
}

// inOrder lets rows pick all experts in their order.
func inOrder(topK int) picker {
	return func(_ *rand.Rand, row int) []int {
		list := make([]int, topK)
		for i := range list {
			list[i] = row*topK + i
		}
		return list
	}
}

// close gives the layer up.
func (g *gateSubject) close() {
	if g != nil {
		g.subject.close()
	}
}

// slices are those of a turn. Each returns what it has done: products, or bytes read.
func (g *gateSubject) slices(ctx context.Context) *[slicesATurn]func() (float64, error) {
	k := &g.k
	products := float64(k.Batch) * 3 * float64(k.Hidden) * float64(k.FFN)
	bytes := k.TopK * g.expert
	return &[slicesATurn]func() (float64, error){
		peakSlice: func() (float64, error) {
			if g.bare == nil {
				return 0, nil
			}
			return float64(g.bare.Peak(peakProducts)), nil
		},
		largeSlice: func() (float64, error) { return products, g.dispatch(ctx, g.large) },
		smallSlice: func() (float64, error) { return float64(bytes), g.dispatch(ctx, g.uniform) },
		readSlice: func() (float64, error) {
			g.next = g.arena.Load(g.next, bytes)
			return float64(bytes), nil
		},
	}
}

// dispatch computes the next rows of a pool.
func (g *gateSubject) dispatch(ctx context.Context, q *pool) error {
	t := startThread()
	if _, err := g.once(ctx, q); err != nil {
		return err
	}
	if g.slow > 0 {
		for lost := float64(t.took()) * (1 + g.slow); float64(t.took()) < lost; {
		}
	}
	return nil
}

// turns are what was measured of a layer.
type turns struct {
	list    []turn
	best    look    // of a core that is ours alone
	perByte float64 // products, when a row is computed with an expert, for each byte of it
}

func (g *gateSubject) newTurns() *turns {
	return &turns{perByte: 3 * float64(g.k.Hidden) * float64(g.k.FFN) / float64(g.expert)}
}

// ratio compares two slices, the second by the first, in each turn in which the core was ours alone.
func (t *turns) ratio(first, second int) []float64 {
	var kept []float64
	lo, hi := min(first, second), max(first, second)
	for i := range t.list {
		x := &t.list[i]
		if a, b := x.rates[first], x.rates[second]; a > 0 && b > 0 && x.alone(lo, hi, t.best) {
			if first == smallSlice {
				a *= t.perByte
			}
			kept = append(kept, b/a)
		}
	}
	return kept
}

// gateTurnRatios are the slices that are compared, the second by the first.
var gateTurnRatios = [][2]int{{peakSlice, largeSlice}, {readSlice, smallSlice}, {smallSlice, largeSlice}}

// enough reports whether each ratio has so many.
func (t *turns) enough(kept int) bool {
	for _, x := range gateTurnRatios {
		measured := len(t.list) > 0 && t.list[0].rates[x[0]] > 0 // portable kernels have no bare loop
		if measured && len(t.ratio(x[0], x[1])) < kept {
			return false
		}
	}
	return true
}

// collectTurns measures until each ratio has enough, or time is over.
func (r *gateRun) collectTurns(ctx context.Context) error {
	t := r.subject.newTurns()
	parts, start := r.subject.slices(ctx), time.Now()
	return undisturbed(func() error {
		for n := turnsKept * r.g.Rounds; n > 0 && (len(t.list) == 0 || time.Since(start) < turnsBudget); {
			for range turnsKept {
				x, err := takeTurn(parts)
				if err == nil {
					err = ctx.Err()
				}
				if err != nil {
					return err
				}
				t.list = append(t.list, x)
			}
			t.best = bestLook(t.list)
			r.turns, r.report.Adds = t, round(t.best.free/t.best.chain)
			// Where somebody had a part of the core all the time, there was no best to be seen.
			t.best.free = max(t.best.free, float64(r.base.ratios.Adds*t.best.chain))
			if len(t.list) >= n && t.enough(n) {
				break
			}
		}
		return nil
	})
}

// ofTurns compares two slices. Several ratios are of the same turns, unless they are to be measured again.
func ofTurns(first, second int) func(context.Context, *gateRun, bool) ([]float64, int, error) {
	return func(ctx context.Context, r *gateRun, again bool) ([]float64, int, error) {
		if err := r.makeSubject(ctx); err != nil {
			return nil, 0, err
		}
		if first == peakSlice && r.subject.bare == nil {
			return nil, 0, nil
		}
		if r.turns == nil || again {
			r.progress("kernels against bare loops")
			if err := r.collectTurns(ctx); err != nil {
				return nil, 0, err
			}
		}
		return r.turns.ratio(first, second), len(r.turns.list), nil
	}
}

func (r *gateRun) makeSubject(ctx context.Context) error {
	if r.subject != nil {
		return nil
	}
	kernel, err := variant.Active()
	if err != nil {
		return err
	}
	r.progress("making the weights")
	if r.subject, err = r.g.kernels.newGateSubject(ctx, kernel.Variant); err != nil {
		return err
	}
	r.subject.slow = r.g.slow
	return nil
}
