package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"kvasir/batcher"
	"kvasir/internal/moe"
)

// slow answers when it is told to.
type slow struct{ begun, answer chan struct{} }

func (s *slow) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	return s.ForwardTimed(ctx, b, out, nil)
}

func (s *slow) ForwardTimed(context.Context, *moe.Batch, *moe.Partials, *batcher.Times) error {
	s.begun <- struct{}{}
	<-s.answer
	return nil
}

func TestFlushWaitsForCallsThatHaveBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &slow{make(chan struct{}), make(chan struct{})}
		g := newGate(x)
		call := func() { _ = g.Forward(t.Context(), nil, nil) }
		if err := g.flush(t.Context()); err != nil {
			t.Fatalf("with nothing under way: %v", err)
		}
		go call()
		<-x.begun
		flushed := make(chan error, 1)
		go func() { flushed <- g.flush(t.Context()) }()
		synctest.Wait()
		go call() // begins after the flush, and holds up nobody
		<-x.begun
		synctest.Wait()
		select {
		case err := <-flushed:
			t.Fatalf("flushed (%v) while a call from before is under way", err)
		default:
		}
		x.answer <- struct{}{} // either of the two: both are needed for a wrong answer to pass
		synctest.Wait()
		x.answer <- struct{}{}
		if err := <-flushed; err != nil {
			t.Error(err)
		}

		go call()
		<-x.begun
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.flush(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("a flush that is given up returns %v", err)
		}
		x.answer <- struct{}{}
	})
}
