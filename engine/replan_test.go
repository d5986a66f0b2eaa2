package engine_test

import (
	"context"
	"os"
	"testing"
	"time"

	"kvasir/engine"
	"kvasir/internal/moe"
)

// TestReplanMovesWorkAwayFromASlowWorker has a worker far slower than the others, moves experts away from it while
// work goes on, and then leaves them where they are. In the long form it is slow, and measured; else it is told so:
// what is measured on a machine with other work says little.
func TestReplanMovesWorkAwayFromASlowWorker(t *testing.T) {
	long := os.Getenv("KVASIR_SOAK") != ""
	e := open(t, "")
	all := modelBytes(t, e)
	w := newWork(t, e.Model(), []int{32}, 7)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
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
			if i == 0 && long {
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
	if long {
		for range 20 {
			w.run(ctx, t, l.Swarm.Experts())
		}
	} else {
		l.Swarm.Measure(func(memory int64) float64 {
			if memory < all/2 {
				return 10
			}
			return 10_000
		})
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
