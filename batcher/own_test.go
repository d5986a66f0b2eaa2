package batcher

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
	arena "kvasir/internal/slab" // a slab is something else here
)

// lender notes where the rows and the sums lie that it is given, and answers as fake does. It takes rows that
// are lent, but for the test's sake in one piece.
type lender struct {
	fake

	mu   sync.Mutex
	rows map[*int8]bool  // by the first value
	sums map[*int64]bool // by the first sum
}

func (l *lender) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	if err := l.fake.Forward(ctx, b, out); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rows == nil {
		l.rows, l.sums = map[*int8]bool{}, map[*int64]bool{}
	}
	for r := range b.Rows {
		l.rows[&b.Row(r).Q[0]] = true
		l.sums[&out.Row(r)[0]] = true
	}
	return nil
}

func (l *lender) Borrows() {}

// copied returns how many rows of a call were not computed where they lie, and how many sums.
func (l *lender) copied(b *moe.Batch, out *moe.Partials) (rows, sums int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for r := range b.Rows {
		if !l.rows[&b.Row(r).Q[0]] {
			rows++
		}
		if !l.sums[&out.Row(r)[0]] {
			sums++
		}
	}
	return rows, sums
}

func TestLaneCopiesNothing(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limits Limits
		calls  []int // rows
	}{
		{"a call that is a batch", Limits{}, []int{9}},
		{"a call in several batches", Limits{Rows: 4}, []int{11}},
		{"calls that share a batch", Limits{Delay: time.Millisecond}, []int{1, 5, 3}},
		{"calls cut and shared", Limits{Rows: 4, Delay: time.Millisecond}, []int{3, 6, 2, 7}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng, x := seeded(t, 3), &lender{}
				lane := newLane(t, x, tt.limits, 2)
				batches, calls := []*moe.Batch(nil), []<-chan result(nil)
				for _, rows := range tt.calls {
					b := randomBatch(rng, q8, rows, 4, 8)
					batches, calls = append(batches, b), append(calls, start(t.Context(), lane, b))
				}
				for i, c := range calls {
					r := <-c
					if r.err != nil {
						t.Fatal(r.err)
					}
					if err := same(r.out, truth(batches[i])); err != nil {
						t.Errorf("call %d: %v", i, err)
					}
					if rows, sums := x.copied(batches[i], r.out); rows > 0 || sums > 0 {
						t.Errorf("call %d: %d rows and %d answers of %d were copied", i, rows, sums, r.out.Rows)
					}
				}
				lane.Close()
			})
		})
	}
}

// A layer that is divided costs the additions that the division makes, and nothing else: the row of each part
// is the caller's, and of n answers to a row one is written where it belongs.
func TestDispatcherCopiesNothingAndAddsWhatItMust(t *testing.T) {
	for _, n := range []int{1, 2, 4} {
		d, xs := NewDispatcher(Options{}), []*lender(nil)
		for i := range n {
			x := &lender{}
			lane := newLane(t, x, Limits{}, 0)
			defer lane.Close()
			d.Join("worker", lane, holding(32*i/n, 32*(i+1)/n, 1))
			xs = append(xs, x)
		}
		b, out := randomBatch(seeded(t, 1), q8, 40, 8, 32), &moe.Partials{}
		for range 3 {
			if err := d.Forward(t.Context(), b, out); err != nil {
				t.Fatal(err)
			}
		}
		if err := same(out, truth(b)); err != nil {
			t.Error(err)
		}
		var all lender
		all.rows, all.sums = map[*int8]bool{}, map[*int64]bool{}
		for _, x := range xs {
			for p := range x.rows {
				all.rows[p] = true
			}
			for p := range x.sums {
				all.sums[p] = true
			}
		}
		if rows, sums := all.copied(b, out); rows > 0 || sums > 0 || len(all.rows) != b.Rows {
			t.Errorf("%d workers: %d rows and %d answers of %d were copied", n, rows, sums, b.Rows)
		}
		d.Close()
	}
}

func TestDispatcherAllocatesNothingOnceWarm(t *testing.T) {
	if raceEnabled {
		t.Skip("sync.Pool drops items under the race detector")
	}
	for _, n := range []int{1, 2, 4} {
		for _, rows := range []int{16, 512} {
			d := NewDispatcher(Options{})
			for i := range n {
				lane := newLane(t, free{}, Limits{}, 0)
				defer lane.Close()
				d.Join("worker", lane, holding(ownExperts*i/n, ownExperts*(i+1)/n, 0))
			}
			b, out := fullBatch(seeded(t, 1), moe.Shape{Hidden: 32, Format: moe.RowQ8K}, rows), &moe.Partials{}
			if got := testing.AllocsPerRun(200, func() {
				if err := d.Forward(t.Context(), b, out); err != nil {
					t.Fatal(err)
				}
			}); got != 0 {
				t.Errorf("%d workers: a call of %d rows allocates %v times", n, rows, got)
			}
			d.Close()
		}
	}
}

// TestSlabsAreGivenBack holds that what parts and copies take of the arena goes back: a dispatcher's when it is
// closed, a lane's with its goroutines.
func TestSlabsAreGivenBack(t *testing.T) {
	before := arena.Shared.Stats().InUse
	d := NewDispatcher(Options{})
	var lanes []*Lane
	for i := range 3 {
		lane := newLane(t, &fake{}, Limits{}, 1)
		lanes = append(lanes, lane)
		d.Join("worker", lane, holding(32*i/3, 32*(i+1)/3, 1))
	}
	rng := seeded(t, 1)
	call := func() {
		b, out := randomBatch(rng, q8, 50, 8, 32), &moe.Partials{}
		if err := d.Forward(t.Context(), b, out); err != nil {
			t.Error(err)
		} else if err := same(out, truth(b)); err != nil {
			t.Error(err)
		}
	}
	var wg sync.WaitGroup
	for range 4 {
		b := randomBatch(rng, q8, 50, 8, 32)
		wg.Go(func() {
			if err := d.Forward(t.Context(), b, &moe.Partials{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if now := arena.Shared.Stats().InUse; now <= before {
		t.Errorf("%d bytes of slabs are in use, and %d before: answers lie elsewhere", now, before)
	}
	d.Close()
	call() // it still works
	for _, lane := range lanes {
		lane.Close()
	}
	if now := arena.Shared.Stats().InUse; now != before {
		t.Errorf("%d bytes of slabs are in use at the end, want %d", now, before)
	}
}

// The sums of a hedge lie in the arena too, and go back.
func TestHedgesUseSlabs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := arena.Shared.Stats().InUse
		slow, quick := newStub(10*time.Millisecond, 0, 0), &lender{}
		d := NewDispatcher(Options{Local: quick})
		m := d.Join("slow", slow, mustAll(1, 32))
		warm(t, d, 60)
		if now := arena.Shared.Stats().InUse; now != before {
			t.Errorf("%d bytes of slabs are in use, and %d before: nothing was divided or hedged", now, before)
		}
		slow.stall = func() time.Duration { return time.Second }
		warm(t, d, 1)
		if s := m.Stats(); s.Late != 1 || len(quick.sums) == 0 {
			t.Fatalf("%+v: nothing was hedged", s)
		}
		if now := arena.Shared.Stats().InUse; now <= before {
			t.Errorf("%d bytes of slabs are in use, and %d before: the hedge's answer lies elsewhere", now, before)
		}
		d.Close()
		if now := arena.Shared.Stats().InUse; now != before {
			t.Errorf("%d bytes of slabs are in use at the end, want %d", now, before)
		}
	})
}
