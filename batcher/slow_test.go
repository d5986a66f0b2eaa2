package batcher

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
)

// Before an executor far away no row waits for company, whatever a dispatch costs: what passes between two
// answers is the line's doing.
func TestNoRowWaitsBeforeAnExecutorFarAway(t *testing.T) {
	for rtt, waits := range map[time.Duration]bool{0: true, time.Millisecond: true, 10 * time.Millisecond: false} {
		l, err := NewLane(&fake{}, Limits{Adapt: true}, 1)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			rows := 1 + i%4*100
			l.mu.Lock()
			l.learn(done{rows: rows, took: rtt + 5*time.Millisecond + time.Duration(rows)*time.Microsecond, rtt: rtt})
			l.mu.Unlock()
		}
		if got := l.core.saves > 4*time.Millisecond; got != waits {
			t.Errorf("%v away: a dispatch less is said to save %v", rtt, l.core.saves)
		}
		l.Close()
	}
}

// What is quick is not late for a few milliseconds: they are this machine's as likely as the worker's.
func TestAQuickMemberIsNotLateAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newStub(time.Millisecond, 0, 0)
		d := NewDispatcher(Options{Local: &fake{}})
		m := d.Join("a", a, mustAll(1, 32))
		warm(t, d, 60)
		a.stall = func() time.Duration { return lateFloor - 3*time.Millisecond }
		warm(t, d, 1)
		if s := m.Stats(); s.Late != 0 || s.Deadline != lateFloor {
			t.Errorf("%d late, and the deadline is %v", s.Late, s.Deadline)
		}
		a.stall = func() time.Duration { return lateFloor + 3*time.Millisecond }
		warm(t, d, 1)
		if s := m.Stats(); s.Late != 1 {
			t.Errorf("%d late after %v", s.Late, lateFloor)
		}
	})
}

// Of two that hold the same, who is ten times as slow is asked when it may have become quicker, and else not.
func TestASlowReplicaIsAskedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(Options{Hedge: -1})
		slow := d.Join("slow", newStub(100*time.Millisecond, 0, 0), mustAll(1, 32))
		quick := d.Join("quick", newStub(10*time.Millisecond, 0, 0), mustAll(1, 32))
		const calls = 1000
		for round := range 3 {
			was, all := slow.Stats().Dispatches, quick.Stats().Dispatches
			warm(t, d, calls)
			n := slow.Stats().Dispatches - was
			if n == 0 || n > calls/20 || n+quick.Stats().Dispatches-all != calls {
				t.Errorf("round %d: the slow one was asked %d times of %d", round, n, calls)
			}
		}
	})
}

// Who answers first ends the other, also where that is who was late.
func TestAHedgeEndsWhenTheLateAnswerComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hedges := 0
		local := &fake{before: func(ctx context.Context, _ *moe.Batch) error {
			hedges++
			<-ctx.Done()
			return ctx.Err()
		}}
		a := newStub(10*time.Millisecond, 0, 0)
		d := NewDispatcher(Options{Local: local})
		m := d.Join("a", a, mustAll(1, 32))
		warm(t, d, 60)
		a.stall = func() time.Duration { return 15 * time.Millisecond }
		began := time.Now()
		warm(t, d, 1)
		if took := time.Since(began); took != 25*time.Millisecond || hedges != 1 {
			t.Errorf("the call took %v and was hedged %d times, want once and the 25 ms of the late answer", took, hedges)
		}
		if s, l := m.Stats(), d.Fallback().Stats(); s.Late != 0 || s.Answered != 61 || l.Failures != 0 || l.Void != 1 {
			t.Errorf("the late one: %+v; the hedge: %+v", s.Counts, l.Counts)
		}
	})
}
