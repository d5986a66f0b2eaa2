package batcher

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
)

// pass and then nothing is what offer and next are, where a call is a batch of its own at once: two cores see the
// same calls, of which one may let them pass.
func TestCoreLetsPassWhatWouldBeABatch(t *testing.T) {
	rng := seeded(t, 1)
	passed := 0
	for range 500 {
		l := Limits{Rows: 1 + rng.IntN(6), Bytes: 1 + rng.IntN(150), QueueRows: 1 + rng.IntN(30), QueueBytes: 600,
			Delay: time.Duration(rng.IntN(3))}
		one, two := core{Limits: l}, core{Limits: l}
		now := time.Unix(0, 0)
		for range 40 {
			now = now.Add(time.Duration(rng.IntN(2)))
			for rng.IntN(3) == 0 && two.rows > 0 {
				now = now.Add(l.Delay)
				one.next(now, nil)
				two.next(now, nil)
			}
			layer, rows, picks := rng.IntN(3), 1+rng.IntN(8), 1+rng.IntN(3)
			a, b := newTicket(layer, rows, picks), newTicket(layer, rows, picks)
			a.caller.Class = Class(rng.IntN(2))
			b.caller = a.caller
			waited := two.rows > 0
			errTwo := two.offer(now, b)
			if one.pass(now, a) {
				passed++
				if got := two.next(now, nil); waited || len(got) != 1 || got[0] != (piece{b, 0, rows, rows * picks}) {
					t.Fatalf("%+v: a call of %d rows passed, but offered it is %v", l, rows, got)
				}
			} else if errOne := one.offer(now, a); (errOne == nil) != (errTwo == nil) {
				t.Fatalf("%v and %v", errOne, errTwo)
			} else {
				got, want := one.next(now, nil), two.next(now, nil)
				if len(got) != len(want) {
					t.Fatalf("%+v: %v and %v", l, got, want)
				}
				if !waited && len(want) == 1 && want[0] == (piece{b, 0, rows, rows * picks}) {
					t.Fatalf("%+v: a call of %d rows is a batch at once, and did not pass", l, rows)
				}
			}
			if one.rows != two.rows || one.bytes != two.bytes || one.passed != two.passed || one.gap != two.gap {
				t.Fatalf("%+v and %+v", one, two)
			}
		}
	}
	if passed < 500 {
		t.Errorf("only %d calls passed", passed)
	}
}

// A call that need not wait is computed by its caller: what it is computed with is the caller's context, and
// another waits as long as the window has no place.
func TestLaneComputesStraightWhatNeedNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		var mine []bool
		f := &fake{}
		f.before = func(ctx context.Context, _ *moe.Batch) error {
			mine = append(mine, ctx.Value(key{}) != nil)
			time.Sleep(time.Millisecond)
			return nil
		}
		lane := newLane(t, f, Limits{Rows: 8}, 1)
		ctx := context.WithValue(t.Context(), key{}, true)
		var calls []<-chan result
		for _, rows := range []int{8, 3, 4} {
			calls = append(calls, start(ctx, lane, smallBatch(rows)))
			synctest.Wait()
		}
		for i, c := range calls {
			if r := <-c; r.err != nil {
				t.Errorf("call %d: %v", i, r.err)
			}
		}
		if r := <-start(ctx, lane, smallBatch(9)); r.err != nil {
			t.Error(r.err)
		}
		if got, want := f.rows(), []int{8, 7, 8, 1}; !slices.Equal(got, want) {
			t.Errorf("batches of %v rows, want %v", got, want)
		}
		if want := []bool{true, false, false, false}; !slices.Equal(mine, want) {
			t.Errorf("computed by the caller: %v, want %v", mine, want)
		}
		lane.Close()
	})
}

// Close lets what is computed straight finish, and returns after it.
func TestLaneCloseWaitsForWhatIsComputedStraight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lane := newLane(t, newStub(time.Second, 0, 0), Limits{}, 1)
		call := start(t.Context(), lane, smallBatch(3))
		synctest.Wait()
		began := time.Now()
		lane.Close()
		if took := time.Since(began); took != time.Second {
			t.Errorf("Close returned after %v, want 1s", took)
		}
		if r := <-call; r.err != nil {
			t.Error(r.err)
		}
		if r := <-start(t.Context(), lane, smallBatch(3)); !errors.Is(r.err, ErrClosed) {
			t.Errorf("a call after Close: %v", r.err)
		}
	})
}

// A caller who leaves gets his own context's error, whatever the executor says, and his place is free.
func TestLaneLetsGoOfWhatIsComputedStraight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{before: func(ctx context.Context, _ *moe.Batch) error { <-ctx.Done(); return errBroken }}
		lane := newLane(t, f, Limits{}, 1)
		defer lane.Close()
		ctx, cancel := context.WithCancel(t.Context())
		call := start(ctx, lane, smallBatch(3))
		synctest.Wait()
		if s := lane.Stats(); s.Flights != 1 || s.Rows != 0 {
			t.Errorf("%+v, want one under way", s)
		}
		cancel()
		if r := <-call; !errors.Is(r.err, context.Canceled) || r.out.Rows != 0 {
			t.Errorf("%v with %d rows, want cancelled and none", r.err, r.out.Rows)
		}
		f.before = nil
		if r := <-start(t.Context(), lane, smallBatch(3)); r.err != nil {
			t.Error(r.err)
		}
		if s := lane.Stats(); s != (LaneStats{}) {
			t.Errorf("%+v at the end", s)
		}
	})
}
