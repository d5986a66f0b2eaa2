package batcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
)

// holding returns the set of experts lo up to hi of the layers given.
func holding(lo, hi int, layers ...int) *Set {
	s := &Set{}
	for _, l := range layers {
		if err := s.Add(l, lo, hi); err != nil {
			panic(err)
		}
	}
	return s
}

// forward runs b and compares the answer with the truth.
func forward(t *testing.T, x moe.Experts, b *moe.Batch) {
	t.Helper()
	out := &moe.Partials{}
	if err := x.Forward(t.Context(), b, out); err != nil {
		t.Fatal(err)
	}
	if err := same(out, truth(b)); err != nil {
		t.Fatal(err)
	}
}

// drained adds up what the members report for pay.
func drained(members ...*Member) (picks int64) {
	for _, m := range members {
		for _, l := range m.Drain(nil) {
			picks += l.Picks
		}
	}
	return picks
}

func TestDispatcherSplitsByWhatIsHeld(t *testing.T) {
	d := NewDispatcher(Options{})
	low := &fake{holds: holding(0, 16, 0, 1)}
	high := &fake{holds: holding(16, 32, 0, 1)}
	a, b := d.Join("low", low, low.holds), d.Join("high", high, high.holds)
	rng := seeded(t, 1)
	var picks [2]int64
	for range 20 {
		batch := randomBatch(rng, randomShape(rng, 2), 1+rng.IntN(30), 8, 32)
		forward(t, d, batch)
		for _, e := range batch.Expert {
			picks[e/16]++
		}
	}
	if got := [2]int64{drained(a), drained(b)}; got != picks {
		t.Errorf("%v picks are reported, want %v", got, picks)
	}
	if got := drained(a, b); got != 0 {
		t.Errorf("%d picks are reported twice", got)
	}
	for i, s := range d.Stats() {
		if s.Picks != picks[i] || s.Failures != 0 || s.InFlight != 0 || s.Down || s.Dispatches == 0 || s.Rows == 0 {
			t.Errorf("stats of %s: %+v, want %d picks", s.Name, s, picks[i])
		}
	}
}

func TestDispatcherReportsPicksByLayer(t *testing.T) {
	d := NewDispatcher(Options{Local: &fake{}})
	f := &fake{holds: holding(0, 8, 3, 5)}
	m := d.Join("f", f, f.holds)
	rng := seeded(t, 1)
	forward(t, d, randomBatch(rng, moe.Shape{Layer: 5, Hidden: 4}, 6, 1, 8))
	forward(t, d, randomBatch(rng, moe.Shape{Layer: 3, Hidden: 4}, 2, 1, 8))
	forward(t, d, randomBatch(rng, moe.Shape{Layer: 4, Hidden: 4}, 7, 1, 8)) // nobody but local
	if got := m.Drain(nil); !slices.Equal(got, []LayerPicks{{3, 2}, {5, 6}}) {
		t.Errorf("f: %v, want 2 in layer 3 and 6 in layer 5", got)
	}
	if got := d.Fallback().Drain(nil); !slices.Equal(got, []LayerPicks{{4, 7}}) {
		t.Errorf("local: %v, want 7 in layer 4", got)
	}
}

func TestDispatcherSharesReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // all are equally quick
		d := NewDispatcher(Options{})
		var fakes [3]*fake
		for i := range fakes {
			fakes[i] = &fake{}
			d.Join(fmt.Sprint(i), fakes[i], mustAll(1, 32))
		}
		rng := seeded(t, 1)
		forward(t, d, randomBatch(rng, moe.Shape{Hidden: 8}, 300, 1, 32))
		for i, f := range fakes {
			if got := f.rows(); !slices.Equal(got, []int{100}) {
				t.Errorf("replica %d got batches of %v rows, want one of 100", i, got)
			}
		}
		for range 30 { // one row at a time: they take turns
			forward(t, d, randomBatch(rng, moe.Shape{Hidden: 8}, 1, 8, 32))
		}
		for i, f := range fakes {
			if got := len(f.rows()); got != 11 {
				t.Errorf("replica %d got %d batches, want 11", i, got)
			}
		}
	})
}

func TestDispatcherSendsAFailedPartElsewhere(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		down bool // the member is passed over afterwards
		full bool // it is sent the same layer again, next time
	}{
		{"any error", errBroken, true, false},
		{"another's cancelled context", context.Canceled, true, false},
		{"not held", moe.ErrNotHeld, false, false},
		{"full", ErrFull, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := NewDispatcher(Options{})
			bad := &fake{before: func(context.Context, *moe.Batch) error { return tt.err }}
			good := &fake{}
			mb := d.Join("bad", bad, mustAll(2, 32))
			mg := d.Join("good", good, mustAll(2, 32))
			rng := seeded(t, 1)
			batch := randomBatch(rng, moe.Shape{Layer: 1, Hidden: 8}, 80, 8, 32)
			forward(t, d, batch)
			if got := mb.Stats(); got.Failures != 1 || got.Picks != 0 || got.Down != tt.down || got.InFlight != 0 {
				t.Errorf("bad: %+v, want one failure, down %v", got, tt.down)
			}
			if got := drained(mb, mg); got != int64(len(batch.Expert)) {
				t.Errorf("%d picks are reported of %d", got, len(batch.Expert))
			}
			forward(t, d, batch)
			want := 1
			if tt.full {
				want = 2
			}
			if got := len(bad.rows()); got != want {
				t.Errorf("bad was asked %d times, want %d", got, want)
			}
		})
	}
}

// invalidBatch can be walked, and has a value that no row may have.
func invalidBatch(t *testing.T, rows int) *moe.Batch {
	t.Helper()
	b := randomBatch(seeded(t, 1), moe.Shape{Hidden: 8, Format: moe.RowQ8}, rows, 8, 32)
	b.Q[0] = -128
	return b
}

// A member that calls a valid batch invalid has failed, as one that calls it anything else: others are asked,
// and it is passed over.
func TestDispatcherDoesNotBelieveThatABatchIsInvalid(t *testing.T) {
	d := NewDispatcher(Options{Local: &fake{}})
	liar := d.Join("liar", &fake{before: func(context.Context, *moe.Batch) error { return moe.ErrInvalid }}, holding(0, 16, 0))
	d.Join("good", &fake{}, holding(16, 32, 0))
	forward(t, d, randomBatch(seeded(t, 1), moe.Shape{Hidden: 8, Format: moe.RowQ8}, 9, 8, 32))
	if s := liar.Stats(); !s.Down || s.Failures != 1 || s.Faults[FaultInvalid] != 1 {
		t.Errorf("the liar: %+v, want one failure, and that it is passed over", s)
	}
}

func TestDispatcherEndsACallThatNobodyCanMend(t *testing.T) {
	t.Run("invalid", func(t *testing.T) {
		d := NewDispatcher(Options{Local: &fake{}})
		f := &fake{before: func(context.Context, *moe.Batch) error { return moe.ErrInvalid }}
		m := d.Join("f", f, mustAll(1, 32))
		out := &moe.Partials{}
		err := d.Forward(t.Context(), invalidBatch(t, 2), out)
		if !errors.Is(err, moe.ErrInvalid) || !strings.Contains(err.Error(), "layer 0 to f") {
			t.Errorf("got %v, want ErrInvalid that names layer and member", err)
		}
		if m.Stats().Down {
			t.Error("the member is marked down for a caller's mistake")
		}
	})
	t.Run("not to be walked", func(t *testing.T) {
		b := randomBatch(seeded(t, 1), moe.Shape{Hidden: 8}, 2, 8, 32)
		b.Expert[0] = moe.MaxExperts
		if err := NewDispatcher(Options{}).Forward(t.Context(), b, &moe.Partials{}); !errors.Is(err, moe.ErrInvalid) {
			t.Errorf("got %v, want ErrInvalid", err)
		}
	})
	t.Run("full and nobody else", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := NewDispatcher(Options{})
			d.Join("full", &fake{before: func(context.Context, *moe.Batch) error { return ErrFull }}, mustAll(1, 32))
			began := time.Now()
			err := d.Forward(t.Context(), randomBatch(seeded(t, 1), moe.Shape{Hidden: 8}, 2, 8, 32), &moe.Partials{})
			if !errors.Is(err, ErrFull) || time.Since(began) != 0 {
				t.Errorf("after %v: %v, want ErrFull at once", time.Since(began), err)
			}
		})
	})
	t.Run("one part invalid, the other under way", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := NewDispatcher(Options{})
			slow := &fake{before: func(ctx context.Context, _ *moe.Batch) error { <-ctx.Done(); return ctx.Err() }}
			m := d.Join("slow", slow, holding(0, 16, 0))
			d.Join("bad", &fake{before: func(context.Context, *moe.Batch) error { return moe.ErrInvalid }}, holding(16, 32, 0))
			err := d.Forward(t.Context(), invalidBatch(t, 9), &moe.Partials{})
			if !errors.Is(err, moe.ErrInvalid) {
				t.Errorf("got %v, want ErrInvalid", err)
			}
			if s := m.Stats(); s.Failures != 0 || s.Down || s.InFlight != 0 {
				t.Errorf("slow was given up, not at fault: %+v", s)
			}
		})
	})
	t.Run("an answer after the end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := NewDispatcher(Options{})
			slow := &fake{before: func(ctx context.Context, _ *moe.Batch) error { <-ctx.Done(); return nil }}
			m := d.Join("slow", slow, holding(0, 16, 0))
			bad := &fake{before: func(context.Context, *moe.Batch) error {
				time.Sleep(time.Millisecond) // until the other is under way
				return moe.ErrInvalid
			}}
			d.Join("bad", bad, holding(16, 32, 0))
			err := d.Forward(t.Context(), invalidBatch(t, 9), &moe.Partials{})
			if !errors.Is(err, moe.ErrInvalid) || slow.picks == 0 {
				t.Errorf("got %v after %d picks, want ErrInvalid after some", err, slow.picks)
			}
			if got := drained(m); got != 0 {
				t.Errorf("%d picks are reported that were not used", got)
			}
		})
	})
}

func TestDispatcherFallsBackToLocal(t *testing.T) {
	local := &fake{}
	d := NewDispatcher(Options{Local: local})
	bad := &fake{before: func(context.Context, *moe.Batch) error { return errBroken }}
	d.Join("bad", bad, holding(0, 16, 0))
	good := &fake{holds: holding(8, 16, 0)}
	mg := d.Join("good", good, good.holds)
	batch := randomBatch(seeded(t, 1), moe.Shape{Hidden: 8}, 30, 8, 32)
	forward(t, d, batch)
	var held int64
	for _, e := range batch.Expert {
		if good.holds.Has(0, int(e)) {
			held++
		}
	}
	if got := drained(mg); got != held {
		t.Errorf("good computed %d picks, want the %d that it holds: local is the last to be asked", got, held)
	}
	if got := drained(d.Fallback()); got != int64(len(batch.Expert))-held {
		t.Errorf("local computed %d picks, want the other %d", got, int64(len(batch.Expert))-held)
	}
	d.Fallback().Leave() // does nothing
	forward(t, d, batch)
	stats := d.Stats()
	if last := stats[len(stats)-1]; !last.Local || last.Name != "local" || last.Picks == 0 {
		t.Errorf("the last line of the table is %+v, want local", last)
	}
}

func TestDispatcherAsksNobodyTwiceForAPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(Options{Wait: time.Minute, Probation: time.Second})
		var fakes [4]*fake
		for i := range fakes {
			fakes[i] = &fake{before: func(context.Context, *moe.Batch) error { return errBroken }}
			d.Join(fmt.Sprint(i), fakes[i], mustAll(1, 32))
		}
		// Every member leaves its probation many times over while the call waits.
		batch := randomBatch(seeded(t, 1), moe.Shape{Hidden: 8}, 40, 1, 32)
		began := time.Now()
		err := d.Forward(t.Context(), batch, &moe.Partials{})
		if !errors.Is(err, ErrNowhere) || !errors.Is(err, errBroken) {
			t.Errorf("got %v, want ErrNowhere and the last answer", err)
		}
		if took := time.Since(began); took != time.Minute {
			t.Errorf("gave up after %v, want a minute", took)
		}
		for i, f := range fakes {
			rows := 0
			for _, n := range f.rows() {
				rows += n
			}
			if rows > 40 {
				t.Errorf("member %d was sent %d rows of 40", i, rows)
			}
		}
	})
}

func TestDispatcherWaitsForSomebodyToJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(Options{Wait: 10 * time.Second})
		d.Join("low", &fake{}, holding(0, 16, 0))
		batch := randomBatch(seeded(t, 1), moe.Shape{Hidden: 8}, 30, 8, 32)
		began := time.Now()
		call := start(t.Context(), d, batch)
		time.Sleep(4 * time.Second)
		d.Join("other layer", &fake{}, holding(0, 32, 1)) // wakes, and is of no use
		time.Sleep(2 * time.Second)
		m := d.Join("empty", &fake{}, &Set{})
		time.Sleep(2 * time.Second)
		m.Update(holding(16, 24, 0)) // half of what is missing
		d.Join("rest", &fake{}, holding(24, 30, 0))
		time.Sleep(time.Second)
		m.Update(holding(16, 32, 0))
		r := <-call
		if r.err != nil || r.at.Sub(began) != 9*time.Second {
			t.Fatalf("ended after %v with %v, want at 9s", r.at.Sub(began), r.err)
		}
		if err := same(r.out, truth(batch)); err != nil {
			t.Error(err)
		}
	})
}

func TestDispatcherGivesUpWithANamedError(t *testing.T) {
	for _, tt := range []struct {
		name    string
		options Options
		want    time.Duration
	}{
		{"default", Options{}, DefaultWait},
		{"set", Options{Wait: 3 * time.Second}, 3 * time.Second},
		{"at once", Options{Wait: -1}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := NewDispatcher(tt.options)
				d.Join("low", &fake{}, holding(0, 17, 4))
				b := randomBatch(seeded(t, 1), moe.Shape{Layer: 4, Hidden: 8}, 3, 8, 17)
				b.Expert[len(b.Expert)-1] = 17
				out, began := &moe.Partials{}, time.Now()
				err := d.Forward(t.Context(), b, out)
				if took := time.Since(began); took != tt.want {
					t.Errorf("gave up after %v, want %v", took, tt.want)
				}
				if !errors.Is(err, ErrNowhere) || !strings.Contains(err.Error(), "layer 4, expert 17") {
					t.Errorf("got %v, want ErrNowhere that names layer 4, expert 17", err)
				}
				if out.Rows != 0 {
					t.Errorf("a failed call has an answer of %d rows", out.Rows)
				}
			})
		})
	}
}

func TestDispatcherReturnsWhenItsCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(Options{})
		f := &fake{before: func(ctx context.Context, _ *moe.Batch) error { <-ctx.Done(); return errBroken }}
		m := d.Join("f", f, holding(0, 16, 0))
		for _, experts := range []int{16, 32} { // computed, and partly waiting
			ctx, cancel := context.WithCancel(t.Context())
			call := start(ctx, d, randomBatch(seeded(t, 1), moe.Shape{Hidden: 8}, 10, 8, experts))
			synctest.Wait()
			cancel()
			if r := <-call; !errors.Is(r.err, context.Canceled) {
				t.Errorf("got %v, want context.Canceled", r.err)
			}
		}
		if s := m.Stats(); s.Down || s.Failures != 0 {
			t.Errorf("the member is blamed for a caller who left: %+v", s)
		}
	})
}

func TestDispatcherPutsAFailedMemberOnProbation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := true
		f := &fake{before: func(context.Context, *moe.Batch) error {
			if broken {
				return errBroken
			}
			return nil
		}}
		local := &fake{}
		rng := seeded(t, 1)
		ask := func(d *Dispatcher, m *Member, dispatches int64, down bool) {
			t.Helper()
			forward(t, d, randomBatch(rng, moe.Shape{Hidden: 8}, 2, 8, 32))
			if s := m.Stats(); s.Dispatches != dispatches || s.Down != down {
				t.Errorf("%d dispatches, down %v; want %d, %v", s.Dispatches, s.Down, dispatches, down)
			}
		}
		d := NewDispatcher(Options{Local: local, Probation: 5 * time.Second})
		m := d.Join("f", f, mustAll(1, 32))
		ask(d, m, 1, true)
		time.Sleep(5*time.Second - time.Nanosecond)
		ask(d, m, 1, true)
		time.Sleep(time.Nanosecond)
		ask(d, m, 2, true) // asked again, failed again
		broken = false
		time.Sleep(10*time.Second - time.Nanosecond)
		ask(d, m, 2, true) // for twice as long
		time.Sleep(time.Nanosecond)
		ask(d, m, 3, false)

		broken = true
		d = NewDispatcher(Options{Local: local, Probation: -1})
		m = d.Join("f", f, mustAll(1, 32))
		ask(d, m, 1, true)
		broken = false
		time.Sleep(time.Hour)
		ask(d, m, 1, true) // without probation, only Update brings it back
		m.Update(mustAll(1, 32))
		ask(d, m, 2, false)
	})
}

func TestDispatcherWaitsForAProbationToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := true
		f := &fake{before: func(context.Context, *moe.Batch) error {
			if broken {
				broken = false
				return errBroken
			}
			return nil
		}}
		d := NewDispatcher(Options{Wait: time.Minute, Probation: 5 * time.Second})
		d.Join("f", f, mustAll(1, 32))
		ctx, cancel := context.WithCancel(t.Context())
		first := start(ctx, d, randomBatch(seeded(t, 1), moe.Shape{Hidden: 8}, 2, 8, 32))
		synctest.Wait() // it broke on this one, which waits for somebody else
		began := time.Now()
		forward(t, d, randomBatch(seeded(t, 2), moe.Shape{Hidden: 8}, 2, 8, 32))
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("served after %v, want when the probation ended", took)
		}
		cancel()
		<-first
	})
}

func TestMemberUpdateOutlivesOldFailures(t *testing.T) {
	for _, refusal := range []error{errBroken, moe.ErrNotHeld} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{}
			var release chan struct{}
			f.before, release = stuck()
			d := NewDispatcher(Options{Local: &fake{}})
			older := true
			m := d.Join("f", &fake{before: func(ctx context.Context, b *moe.Batch) error {
				if !older {
					return nil
				}
				older = false
				_ = f.before(ctx, b)
				return refusal
			}}, mustAll(1, 32))
			call := start(t.Context(), d, randomBatch(seeded(t, 1), moe.Shape{Hidden: 8}, 2, 8, 32))
			synctest.Wait()
			m.Update(mustAll(1, 32)) // a new slice is ready while a dispatch of the old one is under way
			close(release)
			if r := <-call; r.err != nil {
				t.Error(r.err)
			}
			if m.Stats().Down || !m.set.Has(0, 31) {
				t.Errorf("after %v of an older dispatch the member is down %v and holds %v", refusal, m.Stats().Down, m.set)
			}
		})
	}
}

func TestMemberLeavesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var release chan struct{}
		f.before, release = stuck()
		d := NewDispatcher(Options{Local: &fake{}})
		m := d.Join("f", f, mustAll(1, 32))
		batch := randomBatch(seeded(t, 1), moe.Shape{Hidden: 8}, 5, 8, 32)
		call := start(t.Context(), d, batch)
		synctest.Wait()
		m.Leave()
		m.Leave()
		forward(t, d, batch) // goes to local
		select {
		case <-m.Done():
			t.Error("done while a dispatch is under way")
		default:
		}
		if n := len(d.Stats()); n != 1 {
			t.Errorf("%d lines in the table, want local's", n)
		}
		close(release)
		<-m.Done()
		if got := drained(m); got != int64(len(batch.Expert)) {
			t.Errorf("%d picks are reported when done, want %d: what was under way counts", got, len(batch.Expert))
		}
		if r := <-call; r.err != nil {
			t.Error(r.err)
		} else if err := same(r.out, truth(batch)); err != nil {
			t.Error(err)
		}
		idle := d.Join("idle", f, mustAll(1, 32))
		idle.Leave()
		<-idle.Done()
	})
}

func TestDispatcherSendsWideRowsElsewhere(t *testing.T) {
	for _, tt := range []struct {
		name  string
		holds [2]*Set // of the narrow member and of another
		local bool
	}{
		{"whole batch, replica", [2]*Set{mustAll(1, 32), mustAll(1, 32)}, false},
		{"whole batch, local", [2]*Set{mustAll(1, 32), {}}, true},
		{"a part, local", [2]*Set{holding(0, 16, 0), holding(16, 32, 0)}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := Options{}
			if tt.local {
				o.Local = &fake{}
			}
			d := NewDispatcher(o)
			narrow := &fake{narrow: true}
			members := []*Member{d.Join("narrow", narrow, tt.holds[0]), d.Join("other", &fake{}, tt.holds[1])}
			if tt.local {
				members = append(members, d.Fallback())
			}
			batch := randomBatch(seeded(t, 1), moe.Shape{Hidden: 8}, 60, 8, 32)
			forward(t, d, batch)
			if got := members[0].Stats().Picks; got != int64(narrow.picks) || got == 0 {
				t.Errorf("narrow is reported with %d picks, want the %d that were not wide", got, narrow.picks)
			}
			if got := drained(members...); got != int64(len(batch.Expert)) {
				t.Errorf("%d picks are reported of %d", got, len(batch.Expert))
			}
		})
	}
}

func TestDispatcherLeavesRowsWideThatNobodyElseHolds(t *testing.T) {
	for name, holds := range map[string][2]*Set{
		"whole": {mustAll(1, 32), {}}, "part": {holding(0, 16, 0), holding(16, 32, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := NewDispatcher(Options{Wait: time.Second})
				d.Join("narrow", &fake{narrow: true}, holds[0])
				d.Join("other", &fake{}, holds[1])
				batch, out := randomBatch(seeded(t, 1), moe.Shape{Hidden: 8}, 60, 8, 32), &moe.Partials{}
				if err := d.Forward(t.Context(), batch, out); err != nil {
					t.Fatal(err)
				}
				want := truth(batch)
				for r := range batch.Rows {
					expert, _ := batch.Picks(r)
					low := slices.ContainsFunc(expert, func(e uint16) bool { return holds[0].Has(0, int(e)) })
					if low && hashRow(batch, r)%4 == 0 {
						want.Fault(r, moe.Wide)
					}
				}
				if err := same(out, want); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestDispatcherCopiesAndAllocatesNothingWhenOneHoldsAll(t *testing.T) {
	batch, out := randomBatch(seeded(t, 1), moe.Shape{Hidden: 8}, 64, 8, 32), &moe.Partials{}
	ours := false
	d := NewDispatcher(Options{Patience: -1})
	d.Join("f", forwardFunc(func(_ context.Context, b *moe.Batch, o *moe.Partials) error {
		ours = b == batch && o == out
		o.Reset(b.Rows, b.Hidden)
		return nil
	}), mustAll(1, 32))
	ctx := t.Context()
	run := func() {
		if err := d.Forward(ctx, batch, out); err != nil {
			t.Fatal(err)
		}
	}
	if run(); !ours {
		t.Error("the batch was copied")
	}
	if raceEnabled {
		t.Skip("sync.Pool drops items under the race detector")
	}
	if n := testing.AllocsPerRun(200, run); n != 0 {
		t.Errorf("Forward allocates %v times", n)
	}
}

func TestDispatcherReusesTheMemoryOfParts(t *testing.T) {
	if raceEnabled {
		t.Skip("sync.Pool drops items under the race detector")
	}
	d := NewDispatcher(Options{})
	d.Join("low", &constant{}, holding(0, 16, 0))
	d.Join("high", &constant{}, holding(16, 32, 0))
	batch, out := randomBatch(seeded(t, 1), moe.Shape{Hidden: 4096}, 64, 8, 32), &moe.Partials{}
	ctx := t.Context()
	// Two jobs with who has had its turn, one goroutine, three contexts: nothing that grows with the rows.
	if n := testing.AllocsPerRun(200, func() {
		if err := d.Forward(ctx, batch, out); err != nil {
			t.Fatal(err)
		}
	}); n > 18 {
		t.Errorf("Forward of a batch in two parts allocates %v times, want at most 18", n)
	}
}

// TestDispatcherAllocatesNothingARow compares dispatches of 64 and of 2,048 rows, watched as usual.
func TestDispatcherAllocatesNothingARow(t *testing.T) {
	if raceEnabled {
		t.Skip("sync.Pool drops items under the race detector")
	}
	for name, split := range map[string]bool{"whole": false, "halves": true} {
		var allocs [2]float64
		for i, rows := range []int{64, 2048} {
			d := NewDispatcher(Options{})
			if split {
				d.Join("low", &constant{}, holding(0, 16, 0))
				d.Join("high", &constant{}, holding(16, 32, 0))
			} else {
				d.Join("all", &constant{}, mustAll(1, 32))
			}
			batch, out := randomBatch(seeded(t, 1), moe.Shape{Hidden: 64}, rows, 8, 32), &moe.Partials{}
			ctx := t.Context()
			allocs[i] = testing.AllocsPerRun(200, func() {
				if err := d.Forward(ctx, batch, out); err != nil {
					t.Fatal(err)
				}
			})
		}
		if allocs[0] != allocs[1] {
			t.Errorf("%s: %v allocations for 64 rows and %v for 2,048", name, allocs[0], allocs[1])
		}
	}
}

type forwardFunc func(context.Context, *moe.Batch, *moe.Partials) error

func (f forwardFunc) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	return f(ctx, b, out)
}
