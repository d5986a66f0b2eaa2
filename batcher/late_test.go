package batcher

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
)

// tardy is an executor like a session: it has sent a batch at once, and its answer comes in a while, whether
// anybody waits or not.
type tardy struct {
	delay func() time.Duration

	mu    sync.Mutex
	sent  int // picks
	wg    sync.WaitGroup
	wrong error // of what AnswerLate was told
	told  int   // picks of that
}

func (x *tardy) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	sent := copyHeld(b)
	x.mu.Lock()
	x.sent += len(b.Expert)
	delay := x.delay()
	x.mu.Unlock()
	answered := time.After(delay)
	select {
	case <-answered:
		answer := truth(sent)
		out.Size(answer.Rows, answer.Hidden)
		copy(out.Status, answer.Status)
		for r := range answer.Rows {
			copy(out.Hold(r), answer.Row(r))
			out.Let(r)
		}
		return nil
	case <-ctx.Done():
	}
	if late := moe.LateOf(ctx); late != nil {
		x.wg.Go(func() {
			<-answered
			late.Answer(0, truth(sent), 0, sent.Rows)
		})
	}
	return ctx.Err()
}

// AnswerLate implements Later.
func (x *tardy) AnswerLate(b *moe.Batch, out *moe.Partials) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.told += len(b.Expert)
	own := copyBatch(b)
	if want := truth(own); x.wrong == nil {
		for r := range b.Rows {
			if out.Status[r] != want.Status[r] || !slices.Equal(out.Row(r), want.Row(r)) {
				x.wrong = fmt.Errorf("row %d of %d is another's", r, b.Rows)
			}
		}
	}
}

// copyHeld copies rows that were lent; those whose callers have left are zeros.
func copyHeld(b *moe.Batch) *moe.Batch {
	c, err := moe.NewBatch(b.Shape, b.Rows, len(b.Expert))
	if err != nil {
		panic(err)
	}
	c.Reset(b.Layer)
	for r := range b.Rows {
		to := c.Row(c.Grow(b.Picks(r)))
		if from, ok := b.Hold(r); ok {
			copyRow(to, from)
			b.Let(r)
		}
	}
	return c
}

// lendable is a tardy that is lent rows.
type lendable struct{ *tardy }

func (lendable) Borrows() {}

// laned is a lane before a tardy.
type laned struct {
	*Lane
	x *tardy
}

// AnswerLate implements Later.
func (l laned) AnswerLate(b *moe.Batch, out *moe.Partials) { l.x.AnswerLate(b, out) }

// TestLosersArePaid has several callers ask a member whose answers are late, so that others are asked too: what
// it answers all the same is counted, and looked at, and is what the callers had asked for.
func TestLosersArePaid(t *testing.T) {
	for name, lane := range map[string]func(x *tardy) moe.Experts{
		"alone": func(x *tardy) moe.Experts { return x },
		"lane":  func(x *tardy) moe.Experts { return laned{newLane(t, x, Limits{Delay: time.Millisecond}, 2), x} },
		"lent": func(x *tardy) moe.Experts {
			return laned{newLane(t, lendable{x}, Limits{Delay: time.Millisecond}, 2), x}
		},
		"pieces": func(x *tardy) moe.Experts { return laned{newLane(t, lendable{x}, Limits{Rows: 5}, 8), x} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { losers(t, lane) })
		})
	}
}

func losers(t *testing.T, lane func(x *tardy) moe.Experts) {
	slow, stalled := 10*time.Millisecond, false
	a := &tardy{delay: func() time.Duration {
		if stalled {
			return time.Second
		}
		return slow
	}}
	x := lane(a)
	d := NewDispatcher(Options{Hedge: 1, Local: &fake{}})
	m := d.Join("a", x, mustAll(1, 32))
	want := 0
	for range 20 {
		forward(t, d, smallBatch(16))
		want += len(smallBatch(16).Expert)
	}
	var calls sync.WaitGroup
	stalled = true
	for i := range 4 {
		calls.Go(func() {
			b, out := smallBatch(3+i), &moe.Partials{}
			if err := d.Forward(t.Context(), b, out); err != nil {
				t.Error(err)
			} else if err := same(out, truth(smallBatch(3+i))); err != nil {
				t.Error(err)
			}
			poison(b, out)
		})
		want += len(smallBatch(3 + i).Expert)
	}
	calls.Wait()
	if s := m.Stats(); s.Late == 0 || s.Spare != 0 {
		t.Errorf("before it has answered: %+v", s)
	}
	time.Sleep(3 * time.Second)
	a.wg.Wait()
	s := m.Stats()
	if got := drained(m); got != int64(want) || s.Picks+s.Spare != got || s.Spare != int64(a.told) || a.told == 0 || a.sent != want {
		t.Errorf("%d picks are paid, want %d; %d were looked at; %+v", got, want, a.told, s)
	}
	if a.wrong != nil {
		t.Error(a.wrong)
	}
	if l, ok := x.(laned); ok {
		l.Close()
	}
}

// TestAPickIsPaidOnceAMember has a member that is given up, asked again when nobody else is left, and then gives
// both answers.
func TestAPickIsPaidOnceAMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		delays := slices.Repeat([]time.Duration{10 * time.Millisecond}, 20)
		delays = append(delays, 2*time.Second, time.Second, 10*time.Millisecond)
		a := &tardy{}
		a.delay = func() time.Duration {
			next := delays[0]
			delays = delays[1:]
			return next
		}
		d := NewDispatcher(Options{Hedge: -1})
		m := d.Join("a", a, mustAll(1, 32))
		broken := d.Join("b", &fake{before: func(context.Context, *moe.Batch) error { return errBroken }}, &Set{})
		for range 20 {
			forward(t, d, smallBatch(16))
		}
		time.AfterFunc(time.Millisecond, func() { broken.Update(mustAll(1, 32)) })
		forward(t, d, smallBatch(16))
		time.Sleep(5 * time.Second)
		a.wg.Wait()
		one := int64(len(smallBatch(16).Expert))
		if s := m.Stats(); len(delays) != 1 || s.Retries != 1 || s.Faults[FaultLate] != 1 {
			t.Fatalf("%d delays are left; %+v", len(delays), s)
		}
		if got := drained(m); got != 21*one || int64(a.sent) != 22*one {
			t.Errorf("%d picks are paid of %d that it has computed, want %d", got, a.sent, 21*one)
		}
	})
}
