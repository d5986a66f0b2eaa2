package wan

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestBellRingsEachInItsTurn has waiters of many times come in any order, behind one that waits for
// an hour: none is forgotten, and none is woken before its time.
func TestBellRingsEachInItsTurn(t *testing.T) {
	start := time.Now()
	now := func() time.Duration { return time.Since(start) }
	b := newBell(now)
	if b == nil {
		t.Fatal("no timerfd on this Linux")
	}
	var tasks sync.WaitGroup
	tasks.Go(b.run)

	count := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.waiters)
	}
	change := make(chan struct{})
	var long sync.WaitGroup
	long.Go(func() {
		if err := b.await(time.Hour, change, nil, &waiter{}); err != nil {
			t.Error(err)
		}
	})
	for count() == 0 {
		runtime.Gosched()
	}
	var short sync.WaitGroup
	rng := newRand(1)
	for range 100 {
		d := time.Duration(rng.Int64N(int64(5 * msec)))
		short.Go(func() {
			var w waiter
			for range 3 {
				at := now() + d
				if err := b.await(at, nil, nil, &w); err != nil {
					t.Error(err)
				}
				if got := now(); got < at {
					t.Errorf("woken at %v, want %v", got, at)
				}
			}
		})
	}
	short.Wait()
	if n := count(); n != 1 {
		t.Errorf("%d wait, want the one for an hour", n)
	}
	close(change)
	long.Wait()

	due := make(chan struct{})
	close(due)
	if err := b.await(now()+time.Hour, nil, due, &waiter{}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want a time-out", err)
	}
	if n := count(); n != 0 {
		t.Errorf("%d wait, want none", n)
	}
	b.close()
	tasks.Wait()
}
