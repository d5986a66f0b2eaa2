package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"kvasir/kernels/variant"
)

// A call ends the wait that it belongs to, whether it comes before the other goroutine looks, while it does,
// or when it sleeps; and none is left over for the next.
func TestWaiterIsCalledOnceForEachWait(t *testing.T) {
	for _, x := range []struct {
		name  string
		while func() // between expect and call
		state int32  // that says how it was called; -1: it may have gone to sleep or not
	}{
		{"before it looks", nil, called},
		{"while it looks", runtime.Gosched, -1},
		{"when it sleeps", synctest.Wait, asleep},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, ended := newWaiter(), make(chan struct{}, 1)
				for range 3 {
					w.expect()
					if x.while == nil {
						w.call()
					}
					go func() {
						w.wait()
						ended <- struct{}{}
					}()
					if x.while != nil {
						x.while()
						if len(ended) > 0 {
							t.Fatal("the wait ended before the call")
						}
						w.call()
					}
					<-ended
					if got := w.state.Load(); x.state >= 0 && got != x.state || len(w.wake) > 0 {
						t.Fatalf("state %d and %d calls left over, want %d and none", got, len(w.wake), x.state)
					}
				}
				w.expect()
				go func() {
					w.wait()
					ended <- struct{}{}
				}()
				synctest.Wait()
				if len(ended) > 0 {
					t.Fatal("a wait ended without a call")
				}
				w.call()
				<-ended
			})
		})
	}
}

// Who sleeps and who looks when the channel is closed both end.
func TestWaiterEndsWhenItIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, ended := newWaiter(), make(chan bool)
		w.expect()
		go func() { ended <- w.wait() }()
		close(w.wake)
		if <-ended {
			t.Error("a closed waiter was called")
		}
	})
}

// Each calls once for each number, never twice at the same time with one thread, from several goroutines
// that take turns, also when helpers have gone to sleep in between.
func TestEachSharesOutOnce(t *testing.T) {
	const threads, numbers, rounds, users = 3, 40, 50, 2
	b := New(variant.Portable, threads)
	defer b.Close()
	var in [threads]atomic.Int32
	var wg sync.WaitGroup
	for range users {
		wg.Go(func() {
			for round := range rounds {
				var times [numbers]atomic.Int32
				n := round % (numbers + 1)
				b.Each(n, func(thread, i int) {
					if in[thread].Add(1) != 1 {
						t.Errorf("thread %d is twice at work", thread)
					}
					times[i].Add(1)
					if i%7 == 0 {
						runtime.Gosched()
					}
					in[thread].Add(-1)
				})
				for i := range times {
					want := int32(0)
					if i < n {
						want = 1
					}
					if got := times[i].Load(); got != want {
						t.Errorf("%d of %d was called for %d times", i, n, got)
					}
				}
			}
		})
	}
	wg.Wait()
}
