package batcher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
	"kvasir/wire/link"
)

const (
	chaosLayers  = 2
	chaosExperts = 16
)

// swarm is a dispatcher over executors that fail, stall, lie, come and go.
type swarm struct {
	d    *Dispatcher
	mu   sync.Mutex
	rng  *rand.Rand
	gone []worker // have left
	here []worker
}

type worker struct {
	m    *Member
	f    *fake
	lane *Lane // nil: none in front
}

func (s *swarm) intN(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.IntN(n)
}

// trouble is what befalls one dispatch.
func (s *swarm) trouble(ctx context.Context, _ *moe.Batch) error {
	wait := time.Duration(s.intN(20)) * time.Millisecond
	if s.intN(12) == 0 {
		wait = time.Second // a stall
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(wait):
	}
	switch s.intN(18) {
	case 0:
		return errBroken
	case 1:
		return moe.ErrNotHeld
	case 2:
		return ErrFull
	case 3:
		return context.Canceled // of somebody else
	case 4:
		return link.ErrDraining
	case 5:
		return link.ErrInternal
	}
	return nil
}

// join adds a worker with trouble.
func (s *swarm) join() {
	w := worker{f: &fake{narrow: s.intN(3) == 0, before: s.trouble, holds: &Set{}}}
	for layer := range chaosLayers {
		lo := s.intN(chaosExperts)
		if err := w.f.holds.Add(layer, lo, lo+1+s.intN(chaosExperts-lo)); err != nil {
			panic(err)
		}
	}
	var x moe.Experts = w.f
	if s.intN(5) == 0 {
		x = misshapen{}
	}
	if s.intN(2) == 0 {
		lane, err := NewLane(x, Limits{Rows: 1 + s.intN(12), Delay: time.Duration(s.intN(3)) * time.Millisecond}, 1+s.intN(3))
		if err != nil {
			panic(err)
		}
		w.lane, x = lane, lane
	}
	w.m = s.d.Join("worker", x, w.f.holds)
	s.here = append(s.here, w)
}

// leave takes a worker out, in good order or by a cut.
func (s *swarm) leave(i int) {
	w := s.here[i]
	s.here = append(s.here[:i], s.here[i+1:]...)
	s.gone = append(s.gone, w)
	if w.lane != nil && s.intN(2) == 0 {
		w.lane.Close()
	}
	w.m.Leave()
}

// run has workers come and go until stop is closed, and then sends all home.
func (s *swarm) run(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			for len(s.here) > 0 {
				s.leave(0)
			}
			return
		case <-time.After(time.Duration(1+s.intN(10)) * time.Millisecond):
		}
		if n := len(s.here); n > 0 && s.intN(2) == 0 {
			s.leave(s.intN(n))
		} else if n < 5 {
			s.join()
		}
	}
}

// TestChaosChangesNoBit runs callers over a swarm in which everything that may go wrong does: executors
// are killed, stall, refuse, answer out of order, narrowly or with the wrong shape, join and leave.
// Whatever a call is answered with must be the truth, and every pick is paid once, but for those that the
// budget let be sent twice. With KVASIR_CHAOS=1 there are 1,000 runs of it.
func TestChaosChangesNoBit(t *testing.T) {
	runs := uint64(50)
	if os.Getenv("KVASIR_CHAOS") == "1" {
		runs = 1000
	}
	for seed := range runs {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { chaos(t, seed) })
		})
	}
}

func chaos(t *testing.T, seed uint64) {
	o := Options{Probation: 7 * time.Millisecond, Hedge: 0.3}
	if seed%3 == 0 {
		o.Trace = func(c *Call) { traced(t, c) }
	}
	withLocal, withLeavers := seed%2 == 0, seed%4 < 2
	if withLocal {
		o.Local = &fake{}
	}
	s := &swarm{d: NewDispatcher(o), rng: rand.New(rand.NewPCG(seed, 3))}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { s.run(stop); close(ended) }()

	var sent, left int64 // picks of all calls, and of those whose caller left
	var count sync.Mutex
	var callers sync.WaitGroup
	for caller := range uint64(4) {
		callers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 50+caller))
			for range 12 {
				shape := moe.Shape{Layer: rng.IntN(chaosLayers), Hidden: 8, Format: moe.RowQ8}
				b := randomBatch(rng, shape, 1+rng.IntN(30), 6, chaosExperts)
				ctx, cancel := context.WithCancel(t.Context())
				if withLeavers && rng.IntN(3) == 0 {
					time.AfterFunc(time.Duration(rng.IntN(30))*time.Millisecond, cancel)
				}
				want, out, picks := truth(b), &moe.Partials{}, int64(len(b.Expert))
				err := s.d.Forward(ctx, b, out)
				count.Lock()
				switch sent += picks; {
				case err == nil:
					if err := same(out, want); err != nil {
						t.Error(err)
					}
				case errors.Is(err, ctx.Err()) || errors.Is(err, ErrFull):
					left += picks // a full queue with no way round is the caller's to mind
				default:
					t.Error(err)
				}
				count.Unlock()
				poison(b, out)
				cancel()
			}
		})
	}
	// Without local experts, somebody who holds all comes late and stays.
	time.Sleep(100 * time.Millisecond)
	steady := worker{f: &fake{}}
	steady.m = s.d.Join("steady", steady.f, mustAll(chaosLayers, chaosExperts))
	callers.Wait()
	close(stop)
	<-ended
	steady.m.Leave()

	var paid int64
	for _, w := range append(s.gone, steady) {
		<-w.m.Done()
		stats := w.m.Stats()
		balanced(t, &stats)
		if w.lane != nil {
			w.lane.Close()
		}
		n := drained(w.m)
		if paid += n; n > int64(w.f.picks) {
			t.Errorf("%d picks are paid to a worker who computed %d", n, w.f.picks)
		}
	}
	if withLocal {
		paid += drained(s.d.Fallback())
	}
	if twice := s.d.budget.spare; paid > sent+twice || paid < sent-left {
		t.Errorf("%d picks are paid, of %d sent, %d of them twice, %d of them by callers who left", paid, sent, twice, left)
	}
}

// traced checks a waterfall: its spans are within the call, and name who was last.
func traced(t *testing.T, c *Call) {
	rows := 0
	for _, s := range c.Spans {
		if s.At < 0 || s.End() > c.Took || s.Lane+s.Out+s.Work+s.Back > s.Took {
			t.Errorf("span %+v of a call that took %v", s, c.Took)
		}
		if s.Result == "answered" {
			rows += s.Rows
		}
	}
	if c.Err == nil && (rows < c.Rows && c.Straggler == "" || c.Lag > c.Took) {
		t.Errorf("call %+v", c)
	}
}
