package batches

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// budget bounds the bytes that are held at once. Whoever waits has them in the order of asking.
type budget struct {
	free *semaphore.Weighted
	max  int64
}

func newBudget(limit int64) *budget { return &budget{semaphore.NewWeighted(limit), limit} }

// take waits for n bytes, or as many as there ever are, and returns how to give them back.
func (b *budget) take(ctx context.Context, n int) (func(), error) {
	k := min(int64(n), b.max)
	if err := b.free.Acquire(ctx, k); err != nil {
		return nil, err
	}
	return func() { b.free.Release(k) }, nil
}
