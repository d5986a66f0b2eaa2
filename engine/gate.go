package engine

import (
	"context"
	"sync"

	"kvasir/batcher"
	"kvasir/internal/moe"
)

// gate stands before a worker's lane and knows what is under way, so that experts are taken away from the
// worker only when nothing that needs them is on its way any more.
type gate struct {
	next batcher.Timed

	mu  sync.Mutex
	now *cohort // under mu
}

// cohort is the calls that began between two flushes.
type cohort struct {
	calls  int
	closed bool
	done   chan struct{} // closed when it is closed and no call is under way
}

func newGate(next batcher.Timed) *gate { return &gate{next: next, now: newCohort()} }

func newCohort() *cohort { return &cohort{done: make(chan struct{})} }

// settle closes done when it is time. The gate's lock is held.
func (c *cohort) settle() {
	if c.closed && c.calls == 0 {
		close(c.done)
	}
}

// Forward implements moe.Experts.
func (g *gate) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	return g.ForwardTimed(ctx, b, out, nil)
}

// ForwardTimed implements batcher.Timed.
func (g *gate) ForwardTimed(ctx context.Context, b *moe.Batch, out *moe.Partials, times *batcher.Times) error {
	g.mu.Lock()
	c := g.now
	c.calls++
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		c.calls--
		c.settle()
	}()
	return g.next.ForwardTimed(ctx, b, out, times)
}

// AnswerLate implements batcher.Later.
func (g *gate) AnswerLate(b *moe.Batch, out *moe.Partials) {
	if x, ok := g.next.(batcher.Later); ok {
		x.AnswerLate(b, out)
	}
}

// flush waits until all calls have ended that have begun so far.
func (g *gate) flush(ctx context.Context) error {
	g.mu.Lock()
	old := g.now
	g.now, old.closed = newCohort(), true
	old.settle()
	g.mu.Unlock()
	select {
	case <-old.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
