package batcher

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func ended(l *leash) bool {
	select {
	case <-l.Done():
		return true
	default:
		return false
	}
}

func TestLeashEndsWithWhatItIsTiedTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), callerKey{}, Caller{ID: 7}), time.Second)
		defer cancel()
		var up, a, b leash
		up.tie(ctx)
		a.tie(&up)
		b.tie(&up)
		if CallerOf(&a).ID != 7 {
			t.Error("the values of the caller's context are gone")
		}
		if at, ok := a.Deadline(); !ok || !at.Equal(time.Now().Add(time.Second)) {
			t.Errorf("deadline %v %v", at, ok)
		}
		b.end(context.Canceled)
		if !ended(&b) || ended(&up) || ended(&a) {
			t.Error("one that ends takes others with it, or none has ended")
		}
		b.untie()
		time.Sleep(time.Second)
		synctest.Wait()
		for _, l := range []*leash{&up, &a} {
			if !ended(l) || !errors.Is(l.Err(), context.DeadlineExceeded) {
				t.Errorf("ended %v, %v", ended(l), l.Err())
			}
		}
		if b.tie(&up); !ended(&b) {
			t.Error("tied to one that has ended, it has not")
		}
		b.untie()
		a.untie()
		up.untie()
		if up.tie(t.Context()); ended(&up) || up.Err() != nil {
			t.Error("used again, it has ended already")
		}
		up.untie()
		up.leave()
	})
}

// A leash stays with a context after its use. When that ends, it is nothing to a use with another.
func TestLeashForgetsWhatItWasTiedTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, cancel := context.WithCancel(t.Context())
		second, cancelSecond := context.WithCancel(t.Context())
		defer cancelSecond()
		var up, l leash
		up.tie(second)
		defer up.leave()
		for _, other := range []context.Context{second, &up} {
			l.tie(first)
			early := l.watch
			l.untie()
			l.tie(other)
			cancel()
			synctest.Wait()
			l.follow(early, context.Canceled) // as if it had been on its way before
			if ended(&l) {
				t.Error("it ends with the context of an earlier use")
			}
			l.untie()
			first, cancel = context.WithCancel(t.Context())
		}
		l.tie(first)
		l.untie()
		cancel()
		synctest.Wait()
		if l.tie(first); !ended(&l) {
			t.Error("tied to the same context again, which has ended, it has not")
		}
		l.untie()
		if l.tie(second); ended(&l) {
			t.Error("it has ended in its next use")
		}
		l.untie()
		l.leave()
	})
}

// Calls whose contexts end at any moment, one after the other with the same spreads: who is told to stop is a
// call whose context has ended, and nobody else.
func TestLeashOfCallsThatEndAtAnyMoment(t *testing.T) {
	d := NewDispatcher(Options{})
	defer d.Close()
	rng := seeded(t, 1)
	for range 2000 {
		ctx, cancel := context.WithCancel(t.Context())
		left, stays := d.spreads.take(ctx), d.spreads.take(t.Context())
		var wg sync.WaitGroup
		wg.Go(cancel)
		if rng.IntN(2) == 0 {
			<-left.ctx.Done()
		}
		d.spreads.put(left)
		next := d.spreads.take(t.Context())
		wg.Wait()
		if ended(&next.ctx) || ended(&stays.ctx) {
			t.Fatal("a call ended with another's context")
		}
		d.spreads.put(next)
		d.spreads.put(stays)
	}
}
