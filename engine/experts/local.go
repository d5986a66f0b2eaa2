package experts

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// Local computes batches on this machine's processors with the portable arithmetic of kernels/ref. It
// implements moe.Experts.
//
// Rows are grouped by expert, so that each weight is decoded once a batch; experts are shared out among
// goroutines, each of which adds its picks into sums of its own. The sums are integers, so neither the
// grouping nor who computed what can be seen in the result.
type Local struct {
	store   *Store
	workers int
	works   sync.Pool // *work
}

// NewLocal returns an executor for all experts of s.
func NewLocal(s *Store) *Local {
	l := &Local{store: s, workers: runtime.GOMAXPROCS(0)}
	l.works.New = func() any { return &work{} }
	return l
}

// work is the memory of one goroutine of one Forward.
type work struct {
	scratch ref.Scratch
	rows    []moe.Row
	status  []moe.Status
	y       []float32
	part    moe.Partials
}

// pick is one pick of a batch, in a list that is grouped by expert.
type pick struct {
	row    int32
	weight float32
}

// Forward computes all picks of b.
func (l *Local) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	if b.Layer < 0 || b.Layer >= len(l.store.layers) {
		return fmt.Errorf("layer %d: %w", b.Layer, moe.ErrNotHeld)
	}
	ly := &l.store.layers[b.Layer]
	if err := b.Validate(len(ly.experts)); err != nil {
		return err
	}
	if b.Format != ly.format || b.Hidden != l.store.Hidden {
		return fmt.Errorf("%w: %s rows of %d for layer %d, want %s rows of %d",
			moe.ErrInvalid, b.Format, b.Hidden, b.Layer, ly.format, l.store.Hidden)
	}
	out.Reset(b.Rows, b.Hidden)
	picks, first := group(b, len(ly.experts))

	var next atomic.Int64 // next expert to take
	run := func(w *work) {
		w.part.Reset(b.Rows, b.Hidden)
		for ctx.Err() == nil {
			e := int(next.Add(1)) - 1
			if e >= len(ly.experts) {
				return
			}
			if mine := picks[first[e]:first[e+1]]; len(mine) > 0 {
				w.expert(ly, e, b, mine)
			}
		}
	}
	works := make([]*work, max(1, min(l.workers, used(first))))
	var wg sync.WaitGroup
	for i := range works {
		works[i] = l.works.Get().(*work)
		if i > 0 {
			wg.Go(func() { run(works[i]) })
		}
	}
	run(works[0])
	wg.Wait()
	for _, w := range works {
		for r := range b.Rows {
			out.AddRow(r, &w.part, r)
		}
		l.works.Put(w)
	}
	return ctx.Err()
}

// expert computes one expert for the rows that picked it and adds the results to w.part.
func (w *work) expert(ly *storeLayer, e int, b *moe.Batch, picks []pick) {
	w.rows, w.status = w.rows[:0], w.status[:0]
	for _, p := range picks {
		w.rows = append(w.rows, b.Row(int(p.row)))
		w.status = append(w.status, moe.OK)
	}
	if n := len(picks) * b.Hidden; cap(w.y) < n {
		w.y = make([]float32, n)
	}
	w.y = w.y[:len(picks)*b.Hidden]
	ly.experts[e].ForwardRows(w.y, w.rows, w.status, &w.scratch)
	for i, p := range picks {
		r := int(p.row)
		status := max(w.status[i], w.part.Status[r])
		if status == moe.OK {
			status = ref.AddPick(w.part.Row(r), w.y[i*b.Hidden:(i+1)*b.Hidden], p.weight, ly.exponent)
		}
		w.part.Fault(r, status)
	}
}

// group sorts the picks of b by expert: those of expert e are list[first[e]:first[e+1]].
func group(b *moe.Batch, experts int) (list []pick, first []int32) {
	first = make([]int32, experts+1)
	for _, e := range b.Expert {
		first[e+1]++
	}
	for e := range experts {
		first[e+1] += first[e]
	}
	at := append([]int32(nil), first...)
	list = make([]pick, len(b.Expert))
	for r := range b.Rows {
		expert, weight := b.Picks(r)
		for i, e := range expert {
			list[at[e]] = pick{row: int32(r), weight: weight[i]}
			at[e]++
		}
	}
	return list, first
}

// used counts the experts that have picks.
func used(first []int32) int {
	n := 0
	for e := 1; e < len(first); e++ {
		if first[e] > first[e-1] {
			n++
		}
	}
	return n
}
