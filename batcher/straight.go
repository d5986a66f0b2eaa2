package batcher

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"kvasir/internal/moe"
)

// board takes a place for a call that need not wait, nor be cut. It returns false if there is none.
func (l *Lane) board(b *moe.Batch, caller Caller) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.busy >= l.places() {
		return false
	}
	t := ticket{shape: b.Shape, first: b.First, caller: caller}
	if !l.core.pass(time.Now(), &t) {
		return false
	}
	l.busy++
	l.wg.Add(1)
	return true
}

// straight has the executor compute a call that has a place.
func (l *Lane) straight(ctx context.Context, b *moe.Batch, out *moe.Partials, times *Times) error {
	c := l.pool.Get().(*call) // for its times
	defer l.pool.Put(c)
	rows, layer := b.Rows, b.Layer
	d, err := l.compute(ctx, b, out, &c.times)
	l.mu.Lock()
	if err == nil {
		l.learn(d)
	}
	l.busy--
	l.wake(d.end)
	l.mu.Unlock()
	l.wg.Done()
	if err != nil {
		out.Reset(0, b.Hidden)
		return cmp.Or(ctx.Err(), fmt.Errorf("batch of %d rows for layer %d: %w", rows, layer, err))
	}
	if times != nil {
		*times = c.times
	}
	return nil
}

// roundTrip is an executor that knows how far away it is.
type roundTrip interface{ RTT() time.Duration }

// done is what is learnt of a batch that was computed.
type done struct {
	rows      int
	took, rtt time.Duration
	end       time.Time
}

// compute has the executor compute a batch, and tells where the time went.
func (l *Lane) compute(ctx context.Context, b *moe.Batch, out *moe.Partials, times *Times) (d done, err error) {
	start := time.Now()
	*times = Times{}
	if x, ok := l.x.(Timed); ok {
		err = x.ForwardTimed(ctx, b, out, times)
	} else {
		err = l.x.Forward(ctx, b, out)
	}
	if err == nil {
		err = checkAnswer(b, out)
	}
	d.end = time.Now()
	if err != nil {
		return d, err
	}
	d.rows, d.took = b.Rows, d.end.Sub(start)
	if x, ok := l.x.(roundTrip); ok {
		d.rtt = min(x.RTT(), d.took)
	}
	if *times == (Times{}) {
		*times = Times{Out: d.rtt / 2, Work: d.took - d.rtt/2*2, Back: d.rtt / 2}
	}
	return d, nil
}

// learn adjusts how long rows wait and how many batches are under way. l.mu is held.
func (l *Lane) learn(d done) {
	if places := l.places(); l.rtt == 0 || d.rtt > 0 && d.rtt < l.rtt {
		l.rtt = d.rtt
		if l.places() > places {
			l.idle.Broadcast() // what is due has more places than it had
		}
	}
	l.fit.add(d.rows, d.took)
	if l.core.saves = max(0, l.fit.fixed()-l.rtt); l.rtt > nearby {
		l.core.saves = 0
	}
}
