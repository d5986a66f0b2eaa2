package batcher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
)

var q8 = moe.Shape{Layer: 1, Hidden: 32, Format: moe.RowQ8}

func newLane(t testing.TB, x moe.Experts, l Limits, window int) *Lane {
	t.Helper()
	lane, err := NewLane(x, l, window)
	if err != nil {
		t.Fatal(err)
	}
	return lane
}

// result is how a Forward in a goroutine of its own ended.
type result struct {
	err error
	out *moe.Partials
	at  time.Time
}

// start runs a Forward and hands over how it ended. The batch is the caller's again by then.
func start(ctx context.Context, x moe.Experts, b *moe.Batch) <-chan result {
	done := make(chan result, 1)
	go func() {
		out := &moe.Partials{}
		err := x.Forward(ctx, b, out)
		done <- result{err, out, time.Now()}
	}()
	return done
}

func TestLaneAnswersEachCallerWithItsOwnRows(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limits Limits
		window int
	}{
		{"defaults", Limits{}, 0},
		{"one row a batch", Limits{Rows: 1}, 3},
		{"calls cut and shared", Limits{Rows: 5, Delay: time.Microsecond}, 2},
		{"by bytes", Limits{Bytes: 200}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &fake{}
			lane := newLane(t, f, tt.limits, tt.window)
			var wg sync.WaitGroup
			for caller := range uint64(8) {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(caller, 2))
					for range 30 {
						b := randomBatch(rng, randomShape(rng, 2), 1+rng.IntN(20), 8, 32)
						want, out := truth(b), &moe.Partials{}
						if err := lane.Forward(t.Context(), b, out); err != nil {
							t.Error(err)
						} else if err := same(out, want); err != nil {
							t.Error(err)
						}
						poison(b, out)
					}
				})
			}
			wg.Wait()
			lane.Close()
			if limit := lane.core.Rows; slices.Max(f.rows()) > limit {
				t.Errorf("a batch of %d rows, want up to %d", slices.Max(f.rows()), limit)
			}
		})
	}
}

func TestLaneMakesOneBatchOfManyCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		lane := newLane(t, f, Limits{Rows: 8, Delay: 3 * time.Millisecond}, 2)
		rng, began := seeded(t, 1), time.Now()
		var calls []<-chan result
		for range 5 {
			calls = append(calls, start(t.Context(), lane, randomBatch(rng, q8, 1, 4, 8)))
		}
		for _, c := range calls {
			if r := <-c; r.err != nil || r.at.Sub(began) != 3*time.Millisecond {
				t.Errorf("ended after %v with %v, want at the deadline", r.at.Sub(began), r.err)
			}
		}
		// Full: it goes at once, and the row that is too many at its own deadline.
		began = time.Now()
		r := <-start(t.Context(), lane, randomBatch(rng, q8, 9, 4, 8))
		if r.err != nil || r.at.Sub(began) != 3*time.Millisecond {
			t.Errorf("ended after %v with %v", r.at.Sub(began), r.err)
		}
		lane.Close()
		if got := f.rows(); !slices.Equal(got, []int{5, 8, 1}) {
			t.Errorf("batches of %v rows, want 5, 8 and 1", got)
		}
	})
}

func TestLaneKeepsItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{before: func(context.Context, *moe.Batch) error { time.Sleep(10 * time.Millisecond); return nil }}
		lane := newLane(t, f, Limits{Rows: 4}, 3)
		rng := seeded(t, 1)
		var calls []<-chan result
		for range 3 {
			calls = append(calls, start(t.Context(), lane, randomBatch(rng, q8, 1, 4, 8)))
			synctest.Wait()
		}
		// Three are under way. These come while there is no place, and share.
		for range 6 {
			calls = append(calls, start(t.Context(), lane, randomBatch(rng, q8, 1, 4, 8)))
			synctest.Wait()
		}
		if got := f.rows(); !slices.Equal(got, []int{1, 1, 1}) {
			t.Errorf("batches of %v rows are under way, want three of 1", got)
		}
		began := time.Now()
		for i, c := range calls {
			want := 10 * time.Millisecond
			if i >= 3 {
				want = 20 * time.Millisecond
			}
			if r := <-c; r.err != nil || r.at.Sub(began) != want {
				t.Errorf("call %d ended after %v with %v, want %v", i, r.at.Sub(began), r.err, want)
			}
		}
		lane.Close()
		got := f.rows()
		slices.Sort(got) // the last two begin at the same moment
		if !slices.Equal(got, []int{1, 1, 1, 2, 4}) {
			t.Errorf("batches of %v rows, want three of 1, one of 4 and one of 2", got)
		}
	})
}

// stuck returns a hook that holds each batch until release is closed, and ignores its context.
func stuck() (before func(context.Context, *moe.Batch) error, release chan struct{}) {
	release = make(chan struct{})
	return func(context.Context, *moe.Batch) error { <-release; return nil }, release
}

func TestLaneCancelReturnsAtOnceAndDropsTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var release chan struct{}
		f.before, release = stuck()
		lane := newLane(t, f, Limits{Rows: 4}, 1)
		rng := seeded(t, 1)
		ctx, cancel := context.WithCancel(t.Context())

		// Its first rows are under way, beside those of a caller who stays; the rest waits.
		first := start(t.Context(), lane, randomBatch(rng, q8, 2, 4, 8))
		synctest.Wait()
		stays, want := randomBatch(rng, q8, 2, 4, 8), &moe.Partials{}
		compute(stays, want)
		second := start(t.Context(), lane, stays)
		synctest.Wait()
		b, out := randomBatch(rng, q8, 5, 4, 8), &moe.Partials{}
		left := make(chan error, 1)
		go func() { left <- lane.Forward(ctx, b, out) }()
		synctest.Wait()
		release <- struct{}{} // the first batch; the second is now under way, two rows of each
		synctest.Wait()
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		if out.Rows != 0 {
			t.Errorf("a cancelled call has an answer of %d rows", out.Rows)
		}
		poison(b, out)
		close(release)
		if r := <-first; r.err != nil {
			t.Error(r.err)
		}
		if r := <-second; r.err != nil {
			t.Error(r.err)
		} else if err := same(r.out, want); err != nil {
			t.Errorf("the caller who stayed: %v", err)
		}
		lane.Close()
		for _, v := range out.Sum[:cap(out.Sum)] {
			if v != -1 {
				t.Fatal("an answer was written into the partials of a call that was over")
			}
		}
		if got := f.rows(); !slices.Equal(got, []int{2, 4}) {
			t.Errorf("batches of %v rows, want 2 and 4: what waits of a cancelled call is not sent", got)
		}
	})
}

func TestLaneCancelsABatchThatNobodyWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended []error
		f := &fake{before: func(ctx context.Context, _ *moe.Batch) error {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			ended = append(ended, ctx.Err())
			return ctx.Err()
		}}
		lane := newLane(t, f, Limits{Delay: time.Millisecond}, 1)
		rng := seeded(t, 1)
		for _, leave := range []int{1, 2, 0} {
			var calls []<-chan result
			var cancels []context.CancelFunc
			for range 2 {
				ctx, cancel := context.WithCancel(t.Context())
				calls = append(calls, start(ctx, lane, randomBatch(rng, q8, 1, 4, 8)))
				cancels = append(cancels, cancel)
				synctest.Wait()
			}
			time.Sleep(100 * time.Millisecond)
			for _, cancel := range cancels[:leave] {
				cancel()
			}
			for i, c := range calls {
				if r := <-c; (r.err != nil) != (i < leave) {
					t.Errorf("%d of 2 left: call %d ended with %v", leave, i, r.err)
				}
			}
			for _, cancel := range cancels {
				cancel()
			}
			time.Sleep(2 * time.Second)
		}
		lane.Close()
		if want := []error{nil, context.Canceled, nil}; !slices.Equal(ended, want) {
			t.Errorf("batches ended with %v, want %v", ended, want)
		}
	})
}

func TestLaneCloseFailsWhatWaitsAndFinishesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var release chan struct{}
		f.before, release = stuck()
		lane := newLane(t, f, Limits{Rows: 4}, 1)
		rng := seeded(t, 1)
		under := start(t.Context(), lane, randomBatch(rng, q8, 4, 4, 8))
		synctest.Wait()
		waits := start(t.Context(), lane, randomBatch(rng, q8, 4, 4, 8))
		synctest.Wait()
		closed := make(chan struct{})
		go func() { lane.Close(); close(closed) }()
		if r := <-waits; !errors.Is(r.err, ErrClosed) {
			t.Errorf("the call that waited ended with %v, want ErrClosed", r.err)
		}
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close returned while a batch was under way")
		default:
		}
		close(release)
		if r := <-under; r.err != nil {
			t.Errorf("the call that was under way ended with %v", r.err)
		}
		<-closed
		lane.Close() // again does nothing
		if err := lane.Forward(t.Context(), randomBatch(rng, q8, 1, 1, 1), &moe.Partials{}); !errors.Is(err, ErrClosed) {
			t.Errorf("Forward after Close: %v, want ErrClosed", err)
		}
	})
}

func TestLaneCloseForgetsItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lane := newLane(t, &fake{}, Limits{Delay: time.Hour}, 1)
		r := start(t.Context(), lane, randomBatch(seeded(t, 1), q8, 1, 4, 8))
		synctest.Wait()
		lane.Close()
		if got := <-r; !errors.Is(got.err, ErrClosed) {
			t.Errorf("got %v, want ErrClosed", got.err)
		}
	})
}

func TestLaneRefusesWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var release chan struct{}
		f.before, release = stuck()
		lane := newLane(t, f, Limits{Rows: 4, QueueRows: 6}, 1)
		rng := seeded(t, 1)
		under := start(t.Context(), lane, randomBatch(rng, q8, 4, 4, 8))
		synctest.Wait()
		waits := start(t.Context(), lane, randomBatch(rng, q8, 6, 4, 8))
		synctest.Wait()
		if r := <-start(t.Context(), lane, randomBatch(rng, q8, 1, 4, 8)); !errors.Is(r.err, ErrFull) {
			t.Errorf("got %v, want ErrFull", r.err)
		}
		close(release)
		for _, c := range []<-chan result{under, waits} {
			if r := <-c; r.err != nil {
				t.Error(r.err)
			}
		}
		lane.Close()
	})
}

func TestLaneFailsTheCallsOfTheBatchThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The batch that holds the marked row breaks.
		f := &fake{before: func(_ context.Context, b *moe.Batch) error {
			if slices.Contains(b.Weight, 77) {
				return errBroken
			}
			return nil
		}}
		lane := newLane(t, f, Limits{Rows: 4, Delay: time.Millisecond}, 1)
		rng := seeded(t, 1)
		batches := []*moe.Batch{
			randomBatch(rng, q8, 4, 4, 8), // a batch by itself
			randomBatch(rng, q8, 9, 4, 8), // in batches 2, 3 and 4; 4 breaks
			randomBatch(rng, q8, 3, 4, 8), // in batch 4
			randomBatch(rng, q8, 4, 4, 8), // after
		}
		batches[2].Weight[0] = 77
		var calls []<-chan result
		for _, b := range batches {
			calls = append(calls, start(t.Context(), lane, b))
			synctest.Wait()
		}
		for i, c := range calls {
			r := <-c
			if broken := i == 1 || i == 2; broken != errors.Is(r.err, errBroken) || !broken && r.err != nil {
				t.Errorf("call %d ended with %v", i, r.err)
			}
			if r.err != nil && r.out.Rows != 0 {
				t.Errorf("call %d failed and has an answer of %d rows", i, r.out.Rows)
			}
		}
		lane.Close()
	})
}

func TestLaneLetsAnInvalidCallFailAlone(t *testing.T) {
	for _, refusal := range []error{moe.ErrInvalid, moe.ErrNotHeld} {
		t.Run(refusal.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{before: func(_ context.Context, b *moe.Batch) error {
					if slices.Contains(b.Weight, 77) {
						return fmt.Errorf("weight 77: %w", refusal)
					}
					return nil
				}}
				lane := newLane(t, f, Limits{Delay: time.Millisecond}, 1)
				rng := seeded(t, 1)
				var calls []<-chan result
				for i := range 3 {
					b := randomBatch(rng, q8, 2, 4, 8)
					if i == 1 {
						b.Weight[0] = 77
					}
					calls = append(calls, start(t.Context(), lane, b))
				}
				for i, c := range calls {
					if r := <-c; errors.Is(r.err, refusal) != (i == 1) || i != 1 && r.err != nil {
						t.Errorf("call %d ended with %v", i, r.err)
					}
				}
				lane.Close()
				if got := f.rows(); !slices.Equal(got, []int{6, 2, 2, 2}) {
					t.Errorf("batches of %v rows, want one of 6 and each call alone", got)
				}
			})
		})
	}
}

func TestLaneChecksBeforeAndAfter(t *testing.T) {
	lane := newLane(t, misshapen{}, Limits{}, 1)
	defer lane.Close()
	b, out := randomBatch(seeded(t, 1), q8, 3, 4, 8), &moe.Partials{}
	if err := lane.Forward(t.Context(), b, out); !errors.Is(err, ErrAnswer) {
		t.Errorf("a short answer: %v, want ErrAnswer", err)
	}
	b.First[1] = 60
	if err := lane.Forward(t.Context(), b, out); !errors.Is(err, moe.ErrInvalid) {
		t.Errorf("offsets that fall: %v, want ErrInvalid", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := lane.Forward(ctx, b, out); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: %v, want context.Canceled", err)
	}
}

// misshapen is an executor that answers one row too few.
type misshapen struct{}

func (misshapen) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	out.Reset(b.Rows-1, b.Hidden)
	return nil
}

// TestLaneSurvivesCallersWhoLeave has callers come, leave at any moment and poison what is theirs, while
// the executor fails now and then. Under the race detector, a late touch is a failure.
func TestLaneSurvivesCallersWhoLeave(t *testing.T) {
	for seed := range uint64(20) {
		var mu sync.Mutex
		fail := rand.New(rand.NewPCG(seed, 9))
		f := &fake{before: func(ctx context.Context, _ *moe.Batch) error {
			mu.Lock()
			dice := fail.IntN(10)
			mu.Unlock()
			switch dice {
			case 0:
				return errBroken
			case 1:
				return moe.ErrInvalid
			}
			return ctx.Err()
		}}
		var x moe.Experts = f
		if seed%2 == 1 {
			x = polite{f}
		}
		lane := newLane(t, x, Limits{Rows: 6, Delay: 20 * time.Microsecond}, 3)
		var wg sync.WaitGroup
		for caller := range uint64(6) {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(seed, caller+100))
				for range 20 {
					ctx, cancel := context.WithCancel(context.Background())
					if rng.IntN(2) == 0 {
						time.AfterFunc(time.Duration(rng.IntN(100))*time.Microsecond, cancel)
					}
					b := randomBatch(rng, q8, 1+rng.IntN(15), 4, 8)
					want, out := truth(b), &moe.Partials{}
					err := lane.Forward(ctx, b, out)
					switch {
					case err == nil:
						if err := same(out, want); err != nil {
							t.Errorf("seed %d: %v", seed, err)
						}
					case !errors.Is(err, context.Canceled) && !errors.Is(err, errBroken) && !errors.Is(err, moe.ErrInvalid):
						t.Errorf("seed %d: %v", seed, err)
					case errors.Is(err, context.Canceled) && ctx.Err() == nil:
						t.Errorf("seed %d: cancelled by somebody else: %v", seed, err)
					}
					poison(b, out)
					cancel()
				}
			})
		}
		wg.Wait()
		lane.Close()
		if lane.core.rows != 0 || lane.core.bytes != 0 || len(lane.core.queues) != 0 {
			t.Errorf("seed %d: %d rows and %d bytes are left", seed, lane.core.rows, lane.core.bytes)
		}
	}
}

// polite is an executor that keeps the promise of a moe.Borrower.
type polite struct{ *fake }

func (p polite) Borrows() {}

func (p polite) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	own, err := moe.NewBatch(b.Shape, b.Rows, len(b.Expert))
	if err != nil {
		return err
	}
	for r := range b.Rows {
		to := own.Row(own.Grow(b.Picks(r)))
		if row, ok := b.Hold(r); ok {
			copyRow(to, row)
			b.Let(r)
		}
	}
	var answer moe.Partials
	if err := p.fake.Forward(ctx, own, &answer); err != nil {
		return err
	}
	out.Size(b.Rows, b.Hidden)
	copy(out.Status, answer.Status)
	for r := range b.Rows {
		copy(out.Hold(r), answer.Row(r))
		out.Let(r)
	}
	return nil
}

// A caller who shares a batch that hangs is gone at once; a caller alone in one waits until the executor has
// let go, which is what its context is for.
func TestLaneLetsACallerLeaveASharedBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{before: func(ctx context.Context, _ *moe.Batch) error {
			time.Sleep(time.Second) // deaf
			return nil
		}}
		lane := newLane(t, polite{f}, Limits{Delay: time.Millisecond}, 2)
		rng, began := seeded(t, 1), time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		b := randomBatch(rng, q8, 2, 4, 8)
		stays, goes := start(t.Context(), lane, b), start(ctx, lane, randomBatch(rng, q8, 2, 4, 8))
		time.Sleep(10 * time.Millisecond)
		alone := start(ctx, lane, randomBatch(rng, q8, 2, 4, 8))
		time.Sleep(10 * time.Millisecond)
		cancel()
		if r := <-goes; !errors.Is(r.err, context.Canceled) || r.at.Sub(began) != 20*time.Millisecond {
			t.Errorf("who left a shared batch has %v after %v", r.err, r.at.Sub(began))
		}
		if r := <-alone; !errors.Is(r.err, context.Canceled) || r.at.Sub(began) != time.Second+11*time.Millisecond {
			t.Errorf("who left a batch of his own has %v after %v", r.err, r.at.Sub(began))
		}
		r := <-stays
		if r.err != nil {
			t.Fatal(r.err)
		}
		if err := same(r.out, truth(b)); err != nil {
			t.Errorf("who stayed: %v", err)
		}
		lane.Close()
	})
}

func TestLaneAllocatesNothingOnceWarm(t *testing.T) {
	if raceEnabled {
		t.Skip("sync.Pool drops items under the race detector")
	}
	lane := newLane(t, &constant{}, Limits{}, 1)
	defer lane.Close()
	b, out := randomBatch(seeded(t, 1), q8, 64, 8, 32), &moe.Partials{}
	ctx := t.Context()
	if n := testing.AllocsPerRun(200, func() {
		if err := lane.Forward(ctx, b, out); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Forward allocates %v times", n)
	}
}

// constant is an executor that costs nothing: every answer is zero.
type constant struct{}

func (*constant) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	out.Reset(b.Rows, b.Hidden)
	return nil
}
