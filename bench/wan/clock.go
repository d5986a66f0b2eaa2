package wan

import (
	"math"
	"os"
	"time"
)

// never is a time that does not come.
const never = time.Duration(math.MaxInt64)

// waiter is what one goroutine at a time waits with.
type waiter struct {
	timer *time.Timer // without a bell

	// With a bell.
	rung  chan struct{}
	lax   bool          // some microseconds are of no matter; set before await
	at    time.Duration // guarded by bell.mu
	up    time.Duration // when the bell gets up for it, guarded by bell.mu
	index int           // in the heap, guarded by bell.mu; -1 outside
}

// await waits until the link's time t, a change, or due, whichever is first. It may also come back
// early: the caller looks again.
func (l *Link) await(t time.Duration, change, due <-chan struct{}, w *waiter) error {
	if t == never {
		select {
		case <-change:
			return nil
		case <-due:
			return os.ErrDeadlineExceeded
		}
	}
	left := t - l.now()
	if left <= 0 {
		return nil
	}
	if l.bell != nil {
		return l.bell.await(t, change, due, w)
	}
	if w.timer == nil {
		w.timer = time.NewTimer(left)
	} else {
		w.timer.Reset(left)
	}
	defer w.timer.Stop()
	select {
	case <-w.timer.C:
		return nil
	case <-change:
		return nil
	case <-due:
		return os.ErrDeadlineExceeded
	}
}

// clockMoves tells whether time passes while the caller runs. In a testing/synctest bubble it does
// not, and what waits for the kernel would not move it.
func clockMoves() bool {
	start := time.Now()
	for range 1000 {
		if time.Since(start) > 0 {
			return true
		}
	}
	return false
}
