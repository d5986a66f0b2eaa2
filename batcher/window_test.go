package batcher

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
)

// distant computes at once, a round trip away, and knows how many were under way.
type distant struct {
	rtt time.Duration

	mu        sync.Mutex
	now, most int
}

func (d *distant) RTT() time.Duration { return d.rtt }

func (d *distant) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	d.mu.Lock()
	d.now++
	d.most = max(d.most, d.now)
	d.mu.Unlock()
	time.Sleep(d.rtt)
	d.mu.Lock()
	d.now--
	d.mu.Unlock()
	out.Reset(b.Rows, b.Hidden)
	return nil
}

// TestALaneHasMoreUnderWayTheFartherItGoes lets thirty callers with full batches at a lane.
func TestALaneHasMoreUnderWayTheFartherItGoes(t *testing.T) {
	for _, c := range []struct {
		rtt    time.Duration
		window int
		want   int
	}{
		{time.Millisecond, 0, DefaultWindow}, {80 * time.Millisecond, 0, FarWindow}, {80 * time.Millisecond, 3, 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &distant{rtt: c.rtt}
			l, err := NewLane(d, Limits{}, c.window)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			var callers sync.WaitGroup
			for range 30 {
				callers.Go(func() {
					var out moe.Partials
					for range 3 {
						if err := l.Forward(t.Context(), smallBatch(512), &out); err != nil {
							t.Error(err)
						}
					}
				})
			}
			callers.Wait()
			if d.most != c.want {
				t.Errorf("%v away, window %d: %d batches under way at most, want %d", c.rtt, c.window, d.most, c.want)
			}
		})
	}
}
