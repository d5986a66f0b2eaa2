package batcher

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Where a layer is divided, those who hold the rest of it cannot answer for who is late: nothing is sent
// twice, nothing is taken from the budget, and the answer is waited for.
func TestWhoHoldsTheRestOfALayerIsNoReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newStub(10*time.Millisecond, 0, 0), newStub(10*time.Millisecond, 0, 0)
		d := NewDispatcher(Options{})
		lower, upper := &Set{}, &Set{}
		if lower.Add(0, 0, 16) != nil || upper.Add(0, 16, 32) != nil {
			t.Fatal("the sets are not made")
		}
		ma, mb := d.Join("a", a, lower), d.Join("b", b, upper)
		warm(t, d, 60)
		sent := ma.Stats().Dispatches
		a.stall = func() time.Duration { return 2 * time.Second }
		began := time.Now()
		warm(t, d, 1)
		if took := time.Since(began); took > 2100*time.Millisecond {
			t.Errorf("the call took %v, want the two seconds of the stall", took)
		}
		if s := ma.Stats(); s.Dispatches != sent+1 || s.Failures != 0 || s.Late != 0 {
			t.Errorf("a: %+v, want one dispatch after %d, waited for", s.Counts, sent)
		}
		if s := mb.Stats(); s.Hedges != 0 {
			t.Errorf("b was asked %d times for what it does not hold", s.Hedges)
		}
		if d.budget.spare != 0 {
			t.Errorf("%d picks are taken from the budget, and nobody could be sent them", d.budget.spare)
		}
	})
}

// Who is waited for because nobody else holds it is given up as soon as somebody else does.
func TestWhoJoinsIsAskedForWhatIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newStub(10*time.Millisecond, 0, 0), newStub(10*time.Millisecond, 0, 0)
		d := NewDispatcher(Options{})
		d.Join("a", a, mustAll(1, 32))
		warm(t, d, 20)
		a.stall = func() time.Duration { return time.Hour }
		time.AfterFunc(3*time.Second, func() { d.Join("b", b, mustAll(1, 32)) })
		began := time.Now()
		warm(t, d, 1)
		if took := time.Since(began); took > 3*time.Second+2*giveUpFloor {
			t.Errorf("the call took %v, and somebody else was there after 3s", took)
		}
	})
}

// Who is to prove itself gets a few rows: it is no replica for more than those.
func TestWhoIsOnProbationIsAReplicaForFewRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(Options{Probation: time.Second})
		a := d.Join("a", &fake{}, mustAll(1, 32))
		b := d.Join("b", &fake{}, mustAll(1, 32))
		for _, tt := range []struct {
			what  string
			rows  int
			after time.Duration
			want  bool
		}{
			{"before it fails", 2 * probeRows, 0, true},
			{"after it has failed", probeRows, 0, false},
			{"on probation, many rows", probeRows + 1, time.Second, false},
			{"on probation, a few rows", probeRows, 0, true},
		} {
			if tt.what == "after it has failed" {
				d.mu.Lock()
				b.breaker.bad(time.Now(), b.breaker.epoch)
				d.mu.Unlock()
			}
			time.Sleep(tt.after)
			if got := d.others(&job{batch: smallBatch(tt.rows)}, a); got != tt.want {
				t.Errorf("%s: there are others is %v, want %v", tt.what, got, tt.want)
			}
		}
	})
}

// Who waits because the only holder is proving itself goes on as soon as it has.
func TestTheEndOfAProbationWakesWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(Options{})
		m := d.Join("m", newStub(10*time.Millisecond, 0, 0), mustAll(1, 32))
		d.mu.Lock()
		m.breaker.bad(time.Now(), m.breaker.epoch)
		d.mu.Unlock()
		time.Sleep(DefaultProbation)
		began := time.Now()
		var calls sync.WaitGroup
		for range 3 {
			calls.Go(func() { forward(t, d, smallBatch(16)) })
		}
		calls.Wait()
		if took := time.Since(began); took != 20*time.Millisecond {
			t.Errorf("the calls took %v, want 10 ms for the first and as much for the others", took)
		}
	})
}
