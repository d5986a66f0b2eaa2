package schedule

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// A request that comes while as many micro-batches are under way as are wanted waits for the next: each that is
// more would make the others smaller.
func TestNoMoreFlightsThanAreWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, next := held()
		var under, wanted atomic.Int32
		wanted.Store(1)
		f := &fake{wanted: func() int { return int(wanted.Load()) }}
		f.before = func(ctx context.Context, steps []*step) error {
			under.Add(1)
			defer under.Add(-1)
			return before(ctx, steps)
		}
		s := newFake(t, f, limits{flights: 3}, 0)
		for range 4 {
			submit(t, s, one(5, 1))
			synctest.Wait()
		}
		if got := under.Load(); got != 1 {
			t.Errorf("%d micro-batches are under way, and 1 is wanted", got)
		}
		wanted.Store(2)
		submit(t, s, one(5, 1))
		synctest.Wait()
		if got := under.Load(); got != 2 {
			t.Errorf("%d micro-batches are under way, and 2 are wanted", got)
		}
		for under.Load() > 0 {
			next <- nil
			synctest.Wait()
		}
	})
}

// watched notes what it is told.
type watched struct {
	of    []context.Context
	words []string
}

func (w *watched) Begin(ctx context.Context) {
	w.of, w.words = append(w.of, ctx), append(w.words, "begin")
}

func (w *watched) End(ctx context.Context, err error) {
	word := "end"
	if errors.Is(err, errGone) {
		word = "failure"
	}
	w.of, w.words = append(w.of, ctx), append(w.words, word)
}

// The context that a watcher is told is that of the experts, by which it knows the calls of a micro-batch.
func TestAWatcherIsToldOfEachMicroBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, n := &watched{}, 0
		f := &fake{watch: w}
		f.before = func(ctx context.Context, _ []*step) error {
			w.of, w.words = append(w.of, ctx), append(w.words, "experts")
			if n++; n == 2 {
				return errGone
			}
			return nil
		}
		s := newFake(t, f, limits{}, 0)
		for i, want := range []error{nil, ErrExperts} {
			if _, err := submit(t, s, one(5, 1)).Next(t.Context()); !errors.Is(err, want) {
				t.Errorf("request %d: %v, want %v", i, err, want)
			}
		}
		synctest.Wait()
		if want := []string{"begin", "experts", "end", "begin", "experts", "failure"}; !slices.Equal(w.words, want) {
			t.Fatalf("the watcher was told %q, want %q", w.words, want)
		}
		for i, ctx := range w.of {
			if ctx != w.of[i/3*3] {
				t.Errorf("%s, the %dth, has another context", w.words[i], i)
			}
		}
	})
}
