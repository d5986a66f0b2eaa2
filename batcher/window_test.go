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

func (d *distant) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	d.mu.Lock()
	d.now++
	d.most = max(d.most, d.now)
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.now--
	}()
	select {
	case <-time.After(d.rtt):
	case <-ctx.Done():
		return ctx.Err()
	}
	return (&fake{}).Forward(ctx, b, out)
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

// TestWhoIsOnlyLateIsAskedAgain has a member become slow, so that it is given up when another joins, which turns
// out to hold nothing: nobody is left but who was slow, and its answer is waited for.
func TestWhoIsOnlyLateIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(Options{Wait: -1, Hedge: -1})
		defer d.Close()
		slow := &distant{rtt: time.Millisecond}
		d.Join("slow", slow, mustAll(1, 32))
		warm(t, d, 40)
		slow.rtt = 2 * time.Second
		go func() {
			time.Sleep(giveUpFloor / 2)
			d.Join("empty", lackingAll{}, mustAll(1, 32))
		}()
		began := time.Now()
		forward(t, d, smallBatch(16))
		if took := time.Since(began); took < 2*time.Second || took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// lackingAll holds nothing, whatever it said.
type lackingAll struct{}

func (lackingAll) Forward(context.Context, *moe.Batch, *moe.Partials) error { return moe.ErrNotHeld }
