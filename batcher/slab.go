package batcher

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"kvasir/internal/moe"
)

// slab is the memory of one part of a call, kept from one use to the next. It has one owner at a time.
type slab struct {
	batch  moe.Batch    // of rows that lie in the call's
	answer moe.Partials // rows that lie in the call's, or in own
	own    moe.Partials // page-locked
	sheet  sheet
	job    job
	spread *spread // whose part it is
}

// serve sees the part to its end.
func (k *slab) serve() {
	s := k.spread
	defer s.wg.Done()
	s.serve(&k.job)
}

// maxIdle is how many slabs without an owner are kept. Page-locked memory is not collected: what nobody keeps
// goes back to the arena.
const maxIdle = 64

// slabs is slabs without an owner. It is safe for concurrent use.
type slabs struct {
	mu     sync.Mutex // a leaf
	idle   []*slab    // at most maxIdle
	closed bool
}

// take returns a slab, whose memory is stale.
func (l *slabs) take() *slab {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.idle)
	if n == 0 {
		k := &slab{}
		k.own.Pin()
		k.job.serve = k.serve
		return k
	}
	k := l.idle[n-1]
	l.idle[n-1], l.idle = nil, l.idle[:n-1]
	return k
}

// put takes slabs back from their owner.
func (l *slabs) put(list []*slab) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range list {
		if l.closed || len(l.idle) == maxIdle {
			k.own.Release()
			continue
		}
		k.spread = nil
		clear(k.job.tried)
		l.idle = append(l.idle, k)
	}
}

// close gives all memory back: what is idle now, and the rest as soon as it is.
func (l *slabs) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.idle {
		k.own.Release()
	}
	l.idle, l.closed = nil, true
}

// spreads is spreads that no call uses. It is safe for concurrent use.
type spreads struct {
	d *Dispatcher

	mu     sync.Mutex // a leaf
	idle   []*spread  // at most maxIdle; those used last come last
	closed bool
}

// take returns a spread for a call with the given context: one that was used for another with the same, if
// there is one.
func (l *spreads) take(ctx context.Context) *spread {
	s := l.find(ctx)
	if s == nil {
		s = &spread{d: l.d}
	}
	s.ctx.tie(ctx)
	return s
}

func (l *spreads) find(ctx context.Context) *spread {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.idle) - 1
	if last < 0 {
		return nil
	}
	i, of := last, ctx.Done()
	for i >= 0 && !l.idle[i].ctx.watches(of) {
		i--
	}
	s := l.idle[max(i, 0)]
	l.idle = slices.Delete(l.idle, max(i, 0), max(i, 0)+1)
	return s
}

// put takes a spread back from its call.
func (l *spreads) put(s *spread) {
	s.ctx.untie()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.idle) == maxIdle {
		s.ctx.leave()
		return
	}
	l.idle = append(l.idle, s)
}

// close lets the contexts go that calls had.
func (l *spreads) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.idle {
		s.ctx.leave()
	}
	l.idle, l.closed = nil, true
}

// copies is the memory of a batch that rows are copied into, and of its answer.
type copies struct {
	batches [moe.RowQ8 + 1]struct { // one a row format: the layers of a model may differ in it
		batch       *moe.Batch
		rows, picks int // room
	}
	answer moe.Partials
}

// batch returns an empty batch of the given shape with room for rows rows and picks picks. The shape has
// been checked.
func (s *copies) batch(shape moe.Shape, rows, picks int) *moe.Batch {
	k := &s.batches[shape.Format]
	if k.batch != nil && k.batch.Hidden == shape.Hidden && k.rows >= rows && k.picks >= picks {
		k.batch.Reset(shape.Layer)
		return k.batch
	}
	if k.batch != nil {
		k.batch.Release()
	}
	k.rows = min(ceilPow2(rows), moe.MaxRows)
	k.picks = min(max(ceilPow2(picks), k.rows), k.rows*moe.MaxTopK)
	b, err := moe.NewPinnedBatch(shape, k.rows, k.picks)
	if err != nil {
		panic(fmt.Sprintf("BUG: %d rows with %d picks of a checked batch have no room: %v", rows, picks, err))
	}
	k.batch = b
	s.answer.Pin()
	return b
}

// release gives all of it back.
func (s *copies) release() {
	for i := range s.batches {
		if b := s.batches[i].batch; b != nil {
			b.Release()
		}
	}
	s.answer.Release()
}

func ceilPow2(n int) int { return 1 << bits.Len(uint(n-1)) }

// copyAnswer makes an answer that of others.
func copyAnswer(dst, src *moe.Partials) {
	dst.Size(src.Rows, src.Hidden)
	copy(dst.Status, src.Status)
	for r := range src.Rows {
		copy(dst.Row(r), src.Row(r))
	}
}

// copyRow copies the values of a row; both have the same shape.
func copyRow(dst, src moe.Row) {
	copy(dst.Q, src.Q)
	copy(dst.Scales, src.Scales)
	copy(dst.F, src.F)
}
