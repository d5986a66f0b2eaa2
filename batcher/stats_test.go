package batcher

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
	"kvasir/wire/link"
)

// balanced checks that the counts of a member with nothing under way add up, as a whole and by layer.
func balanced(t *testing.T, s *Stats) {
	t.Helper()
	if s.Calls != 0 || s.InFlight != 0 {
		t.Errorf("%s: %d dispatches of %d picks are under way", s.Name, s.Calls, s.InFlight)
	}
	if c := &s.Counts; c.Dispatches != c.Answered+c.Late+c.Failures+c.Void || c.Failures != s.Faults.Sum() {
		t.Errorf("%s: %+v with faults %v do not add up", s.Name, *c, s.Faults)
	}
	var sum Counts
	for i := range s.Layers {
		sum.Add(&s.Layers[i].Counts)
	}
	if sum != s.Counts {
		t.Errorf("%s: the layers come to %+v, and the whole is %+v", s.Name, sum, s.Counts)
	}
}

func TestFaultsAreToldApart(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Fault
	}{
		{fmt.Errorf("layer 1: %w", ErrLate), FaultLate},
		{link.ErrClosed, FaultLost},
		{ErrClosed, FaultLost},
		{link.ErrDraining, FaultLeaving},
		{link.ErrInternal, FaultWorker},
		{moe.ErrNotHeld, FaultLacking},
		{ErrFull, FaultFull},
		{link.ErrBusy, FaultFull},
		{link.ErrTooBig, FaultInvalid},
		{ErrAnswer, FaultAnswer},
		{errBroken, FaultOther},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			d := NewDispatcher(Options{Local: &fake{}})
			fails := &fake{before: func(context.Context, *moe.Batch) error { return c.err }}
			m := d.Join("a", fails, mustAll(1, 32))
			forward(t, d, smallBatch(4))
			s, local := m.Stats(), d.Fallback().Stats()
			if s.Faults[c.want] != 1 || s.Failures != 1 || local.Retries != 1 || local.Answered != 1 {
				t.Errorf("faults %v, want one %v; the fallback has %+v", s.Faults, c.want, local.Counts)
			}
			balanced(t, &s)
			balanced(t, &local)
		})
	}
}

// TestStatsTellTheBreaker follows a member from health through failure to probation.
func TestStatsTellTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newStub(10*time.Millisecond, 0, 0)
		d := NewDispatcher(Options{Local: &fake{}, Probation: time.Second})
		m := d.Join("a", a, mustAll(1, 32))
		if s := m.Stats(); s.Breaker != BreakerClosed || s.Deadline != 0 || !s.Retry.IsZero() || s.Layers != nil {
			t.Errorf("new: %+v", s)
		}
		warm(t, d, 20)
		if s := m.Stats(); s.Deadline != 2*10*time.Millisecond || s.PerPick <= 0 {
			t.Errorf("deadline %v and %v a pick, want 20ms and something", s.Deadline, s.PerPick)
		}
		close(a.dead)
		warm(t, d, 1)
		if s := m.Stats(); s.Breaker != BreakerOpen || !s.Down || !s.Retry.Equal(time.Now().Add(time.Second)) {
			t.Errorf("failed: %v, to be tried again in %v", s.Breaker, time.Until(s.Retry))
		}
		time.Sleep(time.Second)
		if s := m.Stats(); s.Breaker != BreakerProbing || s.Down {
			t.Errorf("after its time: %v", s.Breaker)
		}
	})
}

func TestLaneTellsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newStub(10*time.Millisecond, 0, 0)
		l := newLane(t, x, Limits{}, 1)
		defer l.Close()
		ctx, cancel := context.WithCancel(t.Context())
		for range 3 {
			go func() {
				if err := l.Forward(ctx, smallBatch(7), &moe.Partials{}); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
			}()
			synctest.Wait()
		}
		s := l.Stats()
		if s.Rows != 14 || s.Bytes == 0 || s.Flights != 1 {
			t.Errorf("%+v, want 14 rows that wait behind one batch", s)
		}
		cancel()
		synctest.Wait()
		if s := l.Stats(); s != (LaneStats{}) {
			t.Errorf("%+v when all have left", s)
		}
	})
}
