package cpu

import (
	"runtime"
	"sync/atomic"
)

// A waiter is the place where one goroutine waits for another. It looks for a while before it sleeps: to
// be woken takes a system 50 microseconds, and some put the thread on the processor that its waker is
// still using, where it begins milliseconds later. Between the jobs of one token there is less than that.
//
//	waiting goroutine:  expect, then what lets others call, then wait
//	the other one:      call, once for each expect
type waiter struct {
	state atomic.Int32
	wake  chan struct{} // with room for one
}

// States of a waiter.
const (
	asleep  int32 = iota // or about to be: what comes through wake counts
	looking              // at state
	called
)

// How long a waiter looks: so many rounds, in each of which it looks so many times and lets other goroutines
// go first. Together that is about 200 microseconds. It has no clock, so that it ends on any.
const (
	lookRounds = 400
	looks      = 500
)

func newWaiter() *waiter { return &waiter{wake: make(chan struct{}, 1)} }

// expect says that wait follows.
func (w *waiter) expect() { w.state.Store(looking) }

// call ends wait.
func (w *waiter) call() {
	if !w.state.CompareAndSwap(looking, called) {
		w.wake <- struct{}{}
	}
}

// wait returns after call, or with false when wake is closed.
func (w *waiter) wait() bool {
	for range lookRounds {
		for range looks {
			if w.state.Load() == called {
				return true
			}
		}
		runtime.Gosched()
	}
	if !w.state.CompareAndSwap(looking, asleep) {
		return true
	}
	_, ok := <-w.wake
	return ok
}
