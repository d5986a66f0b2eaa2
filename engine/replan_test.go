package engine_test

import (
	"context"
	"testing"
	"time"

	"kvasir/engine"
	"kvasir/internal/moe"
)

// TestReplanMovesWorkAwayFromASlowWorker measures a worker that is far slower than the other, moves experts for
// it while work goes on, and then leaves them where they are.
func TestReplanMovesWorkAwayFromASlowWorker(t *testing.T) {
	e := open(t, "")
	all := modelBytes(t, e)
	w := newWork(t, e.Model(), []int{32}, 7)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	// One layer of four at worker 0, and two at each of the others, of which one is a copy: it can make room.
	c := fetching(t, e, 3, func(i int) int64 {
		if i == 0 {
			return all * 35 / 100
		}
		return all * 65 / 100
	})
	c.Wrap = func(i int, x moe.Experts) moe.Experts {
		return executor(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
			if i == 0 {
				select {
				case <-time.After(40 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			return x.Forward(ctx, b, out)
		})
	}
	l, err := engine.NewLoopback(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w.run(ctx, t, l.Swarm.Experts())
	if c := l.Swarm.Replan(); c.Worth {
		t.Errorf("moved before anything was known: %+v", c)
	}
	for range 20 {
		w.run(ctx, t, l.Swarm.Experts())
	}
	before := l.Swarm.Metrics()
	change := l.Swarm.Replan()
	t.Logf("%+v", change)
	if !change.Worth || change.Next < 1.1*change.Now {
		t.Errorf("not moved: %+v", change)
	}
	w.run(ctx, t, l.Swarm.Experts())
	if err := l.Swarm.WaitFor(ctx, 3); err != nil {
		t.Fatal(err)
	}
	w.run(ctx, t, l.Swarm.Experts())
	now := l.Swarm.Metrics()
	if now.Moves == before.Moves || now.Plans != before.Plans+1 {
		t.Errorf("%d moves and %d plans, before %d and %d", now.Moves, now.Plans, before.Moves, before.Plans)
	}
	if c := l.Swarm.Replan(); c.Worth {
		t.Errorf("moved again at once: %+v", c)
	}
}
