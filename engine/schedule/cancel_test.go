package schedule

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// held is a hook that holds each Forward until something comes in on its channel.
func held() (before func(context.Context, []*step) error, next chan error) {
	next = make(chan error)
	return func(ctx context.Context, _ []*step) error {
		select {
		case err := <-next:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}, next
}

// together submits requests while a micro-batch is under way, and lets that end: they are in the
// next one.
func together(t *testing.T, s *Scheduler, next chan error, requests ...Request) (streams []*Stream) {
	t.Helper()
	submit(t, s, one(1, 1))
	synctest.Wait()
	for _, r := range requests {
		streams = append(streams, submit(t, s, r))
	}
	next <- nil
	synctest.Wait()
	return streams
}

func TestCancelFreesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, next := held()
		f := &fake{before: before}
		s := newFake(t, f, limits{sequences: 2}, 0)
		r := one(10, 50)
		all := together(t, s, next, r, one(10, 1), one(10, 50))
		under, other, waits := all[0], all[1], all[2]
		// under and other are in a micro-batch. waits has no memory, and is over at once.
		waits.Cancel()
		under.Cancel()
		for _, st := range []*Stream{waits, under} {
			if _, err := st.Next(t.Context()); !errors.Is(err, ErrCanceled) {
				t.Errorf("error %v, want %v", err, ErrCanceled)
			}
		}
		if st := s.Stats(); st.Waiting != 0 || st.Running != 2 || f.sequence != 2 {
			t.Errorf("%+v, %d sequences", st, f.sequence)
		}
		next <- nil
		synctest.Wait()
		if st := s.Stats(); st.Running != 0 || f.sequence != 0 || f.used != 0 || st.Canceled != 2 || st.Finished != 2 {
			t.Errorf("%+v, %d sequences", st, f.sequence)
		}
		if d := r.Choices[0].(*dice); d.pos != 0 {
			t.Error("a chooser was asked after its request was cancelled")
		}
		if e, err := other.Next(t.Context()); err != nil || e.Final != Full {
			t.Errorf("the other: %+v, %v", e, err)
		}
		if len(f.batches) != 2 {
			t.Errorf("micro-batches %v", f.batches)
		}
	})
}

// TestCancelBetweenMicroBatches cancels a sequence that nobody uses while another is under way.
func TestCancelBetweenMicroBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, next := held()
		f := &fake{before: before}
		s := newFake(t, f, limits{rows: 1, sequences: 2}, 0)
		all := together(t, s, next, one(1, 9), one(1, 9))
		a, b := all[0], all[1]
		for range 2 { // each has one token then; a is in a micro-batch
			next <- nil
			synctest.Wait()
		}
		b.Cancel()
		if f.sequence != 1 {
			t.Errorf("%d sequences, want 1", f.sequence)
		}
		if _, err := b.Next(t.Context()); err != nil {
			t.Errorf("what was made before is lost: %v", err)
		}
		if _, err := b.Next(t.Context()); !errors.Is(err, ErrCanceled) {
			t.Errorf("error %v", err)
		}
		a.Cancel()
	})
}

func TestContextOfSubmitEndsTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFake(t, &fake{before: func(context.Context, []*step) error { time.Sleep(time.Second); return nil }}, limits{}, 0)
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		st, err := s.Submit(ctx, one(5, 100))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for ; err == nil; n++ {
			_, err = st.Next(t.Context())
		}
		if !errors.Is(err, context.DeadlineExceeded) || n != 4 {
			t.Errorf("after %d tokens: %v", n-1, err)
		}
	})
}

// TestNobodyWaitsForAMicroBatchOfNobody cancels all that are in a micro-batch whose experts hang.
func TestNobodyWaitsForAMicroBatchOfNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, next := held()
		s := newFake(t, &fake{before: before}, limits{}, 0)
		all := together(t, s, next, one(5, 1), one(5, 1))
		a, b := all[0], all[1]
		a.Cancel()
		synctest.Wait()
		if s.Stats().Running != 2 {
			t.Error("the micro-batch was cut although somebody waits for it")
		}
		b.Cancel()
		synctest.Wait()
		if s.Stats().Running != 0 {
			t.Error("the micro-batch goes on for nobody")
		}
		c := submit(t, s, one(5, 1)) // the flight goes on
		next <- nil
		if _, err := c.Next(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestCancelWhileChoicesPart cancels a request when its choices have got their first tokens, and
// their sequences are made or about to be.
func TestCancelWhileChoicesPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, next := held()
		f := &fake{before: before}
		s := newFake(t, f, limits{}, 0)
		var st *Stream
		f.parting = func() { st.Cancel() }
		st = together(t, s, next, Request{Prompt: prompt(5), Limit: 9, Choices: []Chooser{
			&dice{vocab: fakeVocab}, &dice{vocab: fakeVocab}, &dice{vocab: fakeVocab},
		}})[0]
		next <- nil
		if _, err := st.Next(t.Context()); !errors.Is(err, ErrCanceled) {
			t.Errorf("error %v, want %v", err, ErrCanceled)
		}
		synctest.Wait()
		if f.sequence != 0 {
			t.Errorf("%d sequences are left", f.sequence)
		}
	})
}

// TestCancelWhileASequenceIsMade cancels a request that is being admitted, with and without memory
// for it.
func TestCancelWhileASequenceIsMade(t *testing.T) {
	for _, spare := range []int64{0, testBytes(0)} {
		synctest.Test(t, func(t *testing.T) {
			before, next := held()
			f := &fake{before: before}
			s := newFake(t, f, limits{}, 0)
			submit(t, s, one(1, 1))
			synctest.Wait()
			st := submit(t, s, one(5, 9))
			f.making = func() {
				st.Cancel()
				f.budget = f.used + spare
			}
			next <- nil
			if _, err := st.Next(t.Context()); !errors.Is(err, ErrCanceled) {
				t.Errorf("error %v, want %v", err, ErrCanceled)
			}
			synctest.Wait()
			if f.sequence != 0 || s.Stats().Running != 0 {
				t.Errorf("%d sequences, %+v", f.sequence, s.Stats())
			}
		})
	}
}

func TestNextEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, next := held()
		s := newFake(t, &fake{before: before}, limits{}, 0)
		st := submit(t, s, one(5, 1))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := st.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		next <- nil
		if e, err := st.Next(t.Context()); err != nil || e.Final != Full { // the request itself goes on
			t.Errorf("%+v, %v", e, err)
		}
	})
}

func TestCloseDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{before: func(context.Context, []*step) error { time.Sleep(time.Second); return nil }}
		s := newFake(t, f, limits{sequences: 1, flights: 2}, 0)
		a, b := submit(t, s, one(5, 3)), submit(t, s, one(5, 3))
		began := time.Now()
		if err := s.Close(t.Context()); err != nil || time.Since(began) != 6*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		for _, st := range []*Stream{a, b} {
			if tokens, err := collect(st, one(5, 3)); err != nil || len(tokens[0]) != 3 {
				t.Errorf("%v, %v", tokens, err)
			}
		}
		if _, err := s.Submit(t.Context(), one(5, 3)); !errors.Is(err, ErrClosed) {
			t.Errorf("error %v, want %v", err, ErrClosed)
		}
	})
}

func TestCloseCutsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, _ := held()
		s := newFake(t, &fake{before: before}, limits{sequences: 1, flights: 2}, 0)
		a, b := submit(t, s, one(5, 3)), submit(t, s, one(5, 3))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		for _, st := range []*Stream{a, b} {
			if _, err := st.Next(t.Context()); !errors.Is(err, ErrClosed) {
				t.Errorf("error %v, want %v", err, ErrClosed)
			}
		}
	})
}
