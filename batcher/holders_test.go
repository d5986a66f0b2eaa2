package batcher

import (
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
