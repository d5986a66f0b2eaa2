package link

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
)

// listener takes answers that come late.
type listener struct {
	mu  sync.Mutex
	got []*moe.Partials
}

func (l *listener) Late() moe.Late { return l }

func (l *listener) Answer(_ int, out *moe.Partials, _, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got = append(l.got, &moe.Partials{Rows: n, Hidden: out.Hidden, Sum: slices.Clone(out.Sum), Status: slices.Clone(out.Status)})
}

// TestLateAnswersAreTaken gives calls up of which an answer is of interest: the worker goes on, and what it
// answers is taken; of too many, and after a time, it is told to stop.
func TestLateAnswersAreTaken(t *testing.T) {
	for _, c := range []struct {
		name     string
		calls    int
		after    time.Duration // the worker answers; 0: never
		late     int
		stranger bool // nobody is interested
	}{
		{"one", 1, time.Second, 1, false},
		{"nobody is interested", 3, time.Second, 0, true},
		{"too many", maxLates + 3, time.Second, maxLates, false},
		{"too late", 2, 0, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				release := make(chan struct{})
				var running atomic.Int32
				x := fakes(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
					running.Add(1)
					defer running.Add(-1)
					return waits(release).Forward(ctx, b, out)
				})
				r := join(t, a, b, Worker{Experts: x}, Options{}, Options{Parallel: 64})
				var l listener
				ctx, cancel := context.WithCancel(context.Background())
				if !c.stranger {
					ctx = &moe.LateContext{Context: ctx, Lates: &l}
				}
				done := make(chan error, c.calls)
				for i := range c.calls {
					go func() {
						batch, out := small(t, uint64(i), 2), &moe.Partials{}
						err := r.Forward(ctx, batch, out)
						spoil(batch, out)
						done <- err
					}()
				}
				synctest.Wait()
				cancel()
				for range c.calls {
					if err := <-done; !errors.Is(err, context.Canceled) {
						t.Errorf("%v, want Canceled", err)
					}
				}
				synctest.Wait()
				if want := int32(min(c.calls, maxLates)); !c.stranger && running.Load() != want || c.stranger && running.Load() != 0 {
					t.Errorf("%d are computed still, want %d", running.Load(), want)
				}
				if c.after > 0 {
					time.Sleep(c.after)
					close(release)
				} else {
					time.Sleep(lateWait + time.Second)
				}
				synctest.Wait()
				if st := r.Stats(); st.Calls != 0 || running.Load() != 0 || r.Session.m.lates != 0 {
					t.Errorf("left over: %+v, %d are computed, %d late", st, running.Load(), r.Session.m.lates)
				}
				wantLate(t, &l, c.calls, c.late)
				if c.after > 0 {
					if err := check(r.Session, small(t, 99, 2)); err != nil {
						t.Error(err)
					}
				}
				_ = r.end()
			})
		})
	}
}

// wantLate looks at what came: the right answers, to n of so many calls.
func wantLate(t *testing.T, l *listener, calls, n int) {
	t.Helper()
	if len(l.got) != n {
		t.Errorf("%d answers, want %d", len(l.got), n)
	}
	for _, got := range l.got {
		known := false
		for i := range calls {
			var want moe.Partials
			if err := (hashes{}).Forward(t.Context(), small(t, uint64(i), 2), &want); err != nil {
				t.Fatal(err)
			}
			known = known || slices.Equal(got.Sum, want.Sum) && slices.Equal(got.Status, want.Status)
		}
		if !known {
			t.Error("an answer that nobody was asked for")
		}
	}
}
