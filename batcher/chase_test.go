package batcher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
)

// stub is an executor of a set speed, far away: a round trip, and a worker that computes one batch after
// the other.
type stub struct {
	rtt    time.Duration
	fixed  time.Duration // of a batch
	perRow time.Duration
	slow   int                  // times all that; 0: once
	stall  func() time.Duration // before a dispatch is answered; nil: none
	busy   chan struct{}        // one token while it computes
	dead   chan struct{}        // closed: the session is cut
	fake   fake
}

func newStub(rtt, fixed, perRow time.Duration) *stub {
	s := &stub{rtt: rtt, fixed: fixed, perRow: perRow, busy: make(chan struct{}, 1), dead: make(chan struct{})}
	s.fake.before = s.wait
	return s
}

func (s *stub) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	return s.fake.Forward(ctx, b, out)
}

func (s *stub) wait(ctx context.Context, b *moe.Batch) error {
	d := s.rtt
	if s.stall != nil {
		d += s.stall()
	}
	if err := s.sleep(ctx, d); err != nil {
		return err
	}
	select {
	case s.busy <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.dead:
		return errBroken
	}
	defer func() { <-s.busy }()
	return s.sleep(ctx, (s.fixed+time.Duration(b.Rows)*s.perRow)*time.Duration(max(1, s.slow)))
}

func (s *stub) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.dead:
		return errBroken
	}
}

func smallBatch(rows int) *moe.Batch {
	rng := rand.New(rand.NewPCG(uint64(rows), 9))
	return randomBatch(rng, moe.Shape{Hidden: 8, Format: moe.RowQ8}, rows, 4, 32)
}

// warm gives a member a history.
func warm(t *testing.T, d *Dispatcher, times int) {
	t.Helper()
	for range times {
		forward(t, d, smallBatch(16))
	}
}

func TestLateDispatchIsHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := newStub(10*time.Millisecond, 0, 0), newStub(15*time.Millisecond, 0, 0)
		d := NewDispatcher(Options{})
		ma, mb := d.Join("a", a, mustAll(1, 32)), d.Join("b", b, mustAll(1, 32))
		warm(t, d, 60)
		for _, s := range []*stub{a, b} {
			s.stall = func() time.Duration { return 0 }
		}
		stalled := 0 // a is asked by one goroutine at a time
		a.stall = func() time.Duration { stalled++; return time.Second }
		began := time.Now()
		warm(t, d, 1)
		warm(t, d, 1)
		if stalled == 0 {
			t.Fatal("a was not asked")
		}
		// Late after twice 10 ms, and 15 ms for the other.
		if took := time.Since(began); took > 70*time.Millisecond {
			t.Errorf("the calls took %v", took)
		}
		if s := ma.Stats(); s.Late != int64(stalled) || s.Failures != 0 || s.InFlight != 0 {
			t.Errorf("a: %+v, want %d late", s, stalled)
		}
		if s := mb.Stats(); s.Hedges != int64(stalled) {
			t.Errorf("b: %+v, want %d hedges", s, stalled)
		}
		want := int64(0)
		for range 62 {
			want += int64(len(smallBatch(16).Expert))
		}
		if got := drained(ma, mb); got != want {
			t.Errorf("%d picks are paid, want %d", got, want)
		}
	})
}

func TestHedgesKeepTheirBudget(t *testing.T) {
	b := budget{share: 0.05}
	if b.take(1) {
		t.Error("a pick is sent twice before any was sent once")
	}
	rng := seeded(t, 1)
	for range 100000 {
		b.send(1 + rng.IntN(4000))
		b.take(1 + rng.IntN(4000))
		if float64(b.spare) > 0.05*float64(b.sent)+1 {
			t.Fatalf("%d of %d", b.spare, b.sent)
		}
	}
	if float64(b.spare) < 0.04*float64(b.sent) {
		t.Errorf("only %d of %d were allowed", b.spare, b.sent)
	}
}

func TestVeryLateDispatchIsGivenUpWhereSomebodyElseIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newStub(10*time.Millisecond, 0, 0)
		d := NewDispatcher(Options{Local: &fake{}, Hedge: -1})
		m := d.Join("a", a, mustAll(1, 32))
		warm(t, d, 20)
		a.stall = func() time.Duration { return time.Hour }
		began := time.Now()
		warm(t, d, 1)
		if took := time.Since(began); took != giveUpFloor {
			t.Errorf("given up after %v, want %v", took, giveUpFloor)
		}
		if s := m.Stats(); s.Down || s.Failures != 1 || s.Hedges != 0 {
			t.Errorf("a: %+v, want one failure", s)
		}
	})
}

func TestOnlyHolderIsWaitedForLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newStub(10*time.Millisecond, 0, 0)
		d := NewDispatcher(Options{Wait: 20 * time.Second})
		d.Join("a", a, mustAll(1, 32))
		warm(t, d, 20)
		a.stall = func() time.Duration { return 15 * time.Second }
		warm(t, d, 1) // answered after all
		a.stall = func() time.Duration { return time.Hour }
		began := time.Now()
		err := d.Forward(t.Context(), smallBatch(16), &moe.Partials{})
		if !errors.Is(err, ErrNowhere) || !errors.Is(err, ErrLate) {
			t.Errorf("got %v, want ErrNowhere after ErrLate", err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("failed after %v", took)
		}
	})
}

func TestMemberThatIsAlwaysBeatenIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newStub(10*time.Millisecond, 0, 0)
		d := NewDispatcher(Options{Local: &fake{}, Hedge: 1})
		m := d.Join("a", a, mustAll(1, 32))
		warm(t, d, 20)
		a.stall = func() time.Duration { return time.Hour }
		for i := range maxBeaten {
			if m.Stats().Down {
				t.Fatalf("down after it was beaten %d times", i)
			}
			warm(t, d, 1)
		}
		if s := m.Stats(); !s.Down || s.Late != maxBeaten {
			t.Errorf("a: %+v, want it down", s)
		}
	})
}

func TestMemberOnProbationGetsOneSmallDispatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newStub(10*time.Millisecond, 0, 0)
		d := NewDispatcher(Options{Local: &fake{}, Probation: time.Second})
		m := d.Join("a", a, mustAll(1, 32))
		broken := true
		a.fake.before = func(ctx context.Context, b *moe.Batch) error {
			if broken {
				return errBroken
			}
			return a.wait(ctx, b)
		}
		warm(t, d, 1)
		broken = false
		time.Sleep(time.Second)
		var calls sync.WaitGroup
		for range 8 {
			calls.Go(func() { forward(t, d, smallBatch(100)) })
		}
		calls.Wait()
		if got := a.fake.rows(); !slices.Equal(got, []int{16, probeRows}) {
			t.Errorf("it got dispatches of %v rows, want the one that failed and one of %d", got, probeRows)
		}
		if m.Stats().Down {
			t.Error("it is down after it has proved itself")
		}
		forward(t, d, smallBatch(100))
		if got := a.fake.rows(); got[len(got)-1] != 100 {
			t.Errorf("after its probation it gets %d rows", got[len(got)-1])
		}
	})
}

func TestBreakerDoublesAndForgets(t *testing.T) {
	now := time.Unix(0, 0)
	b := breaker{probation: time.Second}
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 32, 32} {
		epoch, ok := b.begin(now)
		if !ok {
			t.Fatalf("failure %d: not let through at its time", i)
		}
		if _, second := b.begin(now); second != (i == 0) {
			t.Fatalf("failure %d: a second dispatch is let through: %v", i, second)
		}
		b.bad(now, epoch)
		b.bad(now, epoch) // of the same state: it counts once
		if b.ask(now.Add(want*time.Second-1)) != refuse || b.ask(now.Add(want*time.Second)) != probe {
			t.Fatalf("failure %d: not passed over for %d s", i, want)
		}
		now = now.Add(want * time.Second)
	}
	epoch, _ := b.begin(now)
	b.void(now, epoch)
	if b.ask(now) != probe {
		t.Error("a probe that says nothing is not repeated")
	}
	epoch, _ = b.begin(now)
	if !b.good(epoch) || b.ask(now) != pass {
		t.Error("not back after an answer")
	}
	epoch, _ = b.begin(now)
	b.bad(now, epoch)
	if b.ask(now.Add(time.Second)) != probe {
		t.Error("past failures count after an answer")
	}
	b.reset()
	if b.ask(now) != pass {
		t.Error("not reset")
	}
}

// A history that is kept in order judges as one that is sorted each time.
func TestHistoryAgreesWithItsTwin(t *testing.T) {
	rng := seeded(t, 1)
	var h history
	var all []time.Duration
	for range 2000 {
		took := time.Duration(rng.IntN(50)) * time.Millisecond // so some are equal
		h.add(64, took)
		if all = append(all, took); len(all) > historyLen {
			all = all[1:]
		}
		got, ok := h.late(64)
		if len(all) < historyMin {
			if ok {
				t.Fatal("judged too early")
			}
			continue
		}
		sorted := slices.Sorted(slices.Values(all))
		if want := lateFactor * sorted[len(sorted)-1-len(sorted)/lateTail]; got != want {
			t.Fatalf("late after %v, want %v: %v", got, want, all)
		}
	}
}

func TestHistoryJudgesByClassOfRows(t *testing.T) {
	var h history
	if _, ok := h.late(1); ok {
		t.Error("something is late without a history")
	}
	for i := range historyMin {
		if _, ok := h.late(64); ok {
			t.Errorf("judged after %d", i)
		}
		h.add(64, time.Duration(i+1)*time.Millisecond)
	}
	for rows, want := range map[int]time.Duration{
		64: 16 * time.Millisecond, 33: 16 * time.Millisecond, 1: 16 * time.Millisecond,
		65: 32 * time.Millisecond, 512: 128 * time.Millisecond,
	} {
		if got, ok := h.late(rows); !ok || got != want {
			t.Errorf("%d rows are late after %v %v, want %v", rows, got, ok, want)
		}
	}
	for range historyLen {
		h.add(64, time.Millisecond)
	}
	for range historyLen / lateTail { // a few stalls change nothing
		h.add(64, time.Second)
	}
	if got, _ := h.late(64); got != 2*time.Millisecond {
		t.Errorf("late after %v, want 2ms", got)
	}
	for range historyLen {
		h.add(64, 3*time.Millisecond)
	}
	if got, _ := h.late(64); got != 6*time.Millisecond {
		t.Errorf("late after %v, want 6ms: the past is not forgotten", got)
	}
}

// steps runs steps of layers one after the other and returns how long each took, sorted.
func steps(t *testing.T, d *Dispatcher, n, layers int) []time.Duration {
	t.Helper()
	var took []time.Duration
	b := smallBatch(16)
	want := truth(b)
	for range n {
		began := time.Now()
		for range layers {
			out := &moe.Partials{}
			if err := d.Forward(t.Context(), b, out); err != nil {
				t.Fatal(err)
			}
			if err := same(out, want); err != nil {
				t.Fatal(err)
			}
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took
}

// TestHedgingCutsTheTail holds the bar: a random one in a hundred dispatches stalls for a second, and
// hedging makes the 99th percentile of a step five times shorter for no more than 5 % of load more.
func TestHedgingCutsTheTail(t *testing.T) {
	for seed := range uint64(3) {
		var p99 [2]time.Duration
		for i, o := range []Options{{Patience: -1}, {}} {
			synctest.Test(t, func(t *testing.T) {
				rng := seeded(t, seed)
				var mu sync.Mutex
				d := NewDispatcher(o)
				for _, name := range []string{"a", "b"} {
					s := newStub(13*time.Millisecond, time.Millisecond, 20*time.Microsecond)
					s.stall = func() time.Duration {
						mu.Lock()
						defer mu.Unlock()
						if rng.IntN(100) == 0 {
							return time.Second
						}
						return time.Duration(rng.IntN(3)) * time.Millisecond
					}
					d.Join(name, s, mustAll(1, 32))
				}
				all := steps(t, d, 400, 8)
				p99[i] = all[len(all)*99/100]
				hedges, dispatches := int64(0), int64(0)
				for _, s := range d.Stats() {
					hedges, dispatches = hedges+s.Hedges, dispatches+s.Dispatches
				}
				if d.budget.spare*20 > d.budget.sent {
					t.Errorf("%d picks are sent twice of %d", d.budget.spare, d.budget.sent)
				}
				t.Logf("p99 of a step %v; %d hedges in %d dispatches; %d of %d picks twice",
					p99[i], hedges, dispatches, d.budget.spare, d.budget.sent)
			})
		}
		if p99[0] < 5*p99[1] {
			t.Errorf("seed %d: the p99 of a step is %v, and with hedging %v", seed, p99[0], p99[1])
		}
	}
}

// throughput runs callers side by side for a time and returns the rows answered.
func throughput(t *testing.T, d *Dispatcher, callers int, during time.Duration) int {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	rows := 0
	until := time.Now().Add(during)
	for range callers {
		all.Go(func() {
			b := smallBatch(64)
			want := truth(b)
			for time.Now().Before(until) {
				out := &moe.Partials{}
				if err := d.Forward(t.Context(), b, out); err != nil {
					t.Error(err)
					return
				}
				if err := same(out, want); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				rows += b.Rows
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return rows
}

// TestSlowWorkerCostsItsShare holds the bar: when one of three replicas becomes ten times slower,
// throughput falls by no more than its third and a tenth of the whole.
func TestSlowWorkerCostsItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(Options{})
		var stubs [3]*stub
		for i := range stubs {
			stubs[i] = newStub(13*time.Millisecond, time.Millisecond, 50*time.Microsecond)
			d.Join(fmt.Sprint(i), stubs[i], mustAll(1, 32))
		}
		throughput(t, d, 12, time.Second)
		before := throughput(t, d, 12, 4*time.Second)
		stubs[1].slow = 10
		throughput(t, d, 12, time.Second)
		after := throughput(t, d, 12, 4*time.Second)
		t.Logf("%d rows before, %d after: %.3f", before, after, float64(after)/float64(before))
		if float64(after) < (1-1./3-0.1)*float64(before) {
			t.Errorf("%d rows before, %d after", before, after)
		}
	})
}

// TestKilledWorkerFailsNoCall holds the bar: of three workers one is cut in mid-batch, others hold copies.
func TestKilledWorkerFailsNoCall(t *testing.T) {
	for _, local := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			o := Options{}
			if local {
				o.Local = &fake{}
			}
			d := NewDispatcher(o)
			const rtt = 13 * time.Millisecond
			var stubs [3]*stub
			for i := range stubs {
				stubs[i] = newStub(rtt, time.Millisecond, 50*time.Microsecond)
				holds := mustAll(1, 32)
				if local {
					holds = holding(i*11, min(32, i*11+11), 0)
				}
				d.Join(fmt.Sprint(i), stubs[i], holds)
			}
			worst := time.Duration(0)
			var mu sync.Mutex
			var callers sync.WaitGroup
			for range 6 {
				callers.Go(func() {
					for range 100 {
						began := time.Now()
						forward(t, d, smallBatch(64))
						mu.Lock()
						worst = max(worst, time.Since(began))
						mu.Unlock()
					}
				})
			}
			time.Sleep(200*time.Millisecond + rtt/2)
			close(stubs[2].dead)
			callers.Wait()
			late, _ := d.members[0].history.late(64)
			if worst > 2*rtt+max(late, giveUpFloor) {
				t.Errorf("a call took %v, want at most two round trips of %v and %v", worst, rtt, late)
			}
			t.Logf("longest call %v, late after %v", worst, late)
		})
	}
}

// ownGoroutines counts those that run code of this package: the runtime begins others of its own, for
// finalizers for instance.
func ownGoroutines() (n int) {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for one := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(one, "kvasir/batcher.") {
			n++
		}
	}
	return n
}

// TestFlappingWorkerLeavesNothingBehind holds the bar: a worker that joins and leaves every 2 s for 5 min.
func TestFlappingWorkerLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(Options{})
		d.Join("steady", newStub(13*time.Millisecond, time.Millisecond, 50*time.Microsecond), mustAll(1, 32))
		before := ownGoroutines()
		stop := make(chan struct{})
		var flapper sync.WaitGroup
		flapper.Go(func() {
			for {
				s := newStub(13*time.Millisecond, time.Millisecond, 50*time.Microsecond)
				lane := newLane(t, s, Limits{}, 2)
				m := d.Join("flapping", lane, mustAll(1, 32))
				select {
				case <-stop:
					m.Leave()
					lane.Close()
					return
				case <-time.After(2 * time.Second):
				}
				close(s.dead)
				m.Leave()
				lane.Close()
				<-m.Done()
				time.Sleep(2 * time.Second)
			}
		})
		during := 5 * time.Minute
		if raceEnabled {
			during /= 10 // it is the fakes that are slow then
		}
		if rows := throughput(t, d, 4, during); rows < 4*64*int(during.Seconds()) {
			t.Errorf("only %d rows", rows)
		}
		close(stop)
		flapper.Wait()
		synctest.Wait()
		if after := ownGoroutines(); after > before {
			t.Errorf("%d goroutines, %d before", after, before)
		}
		if n := len(d.Stats()); n != 1 {
			t.Errorf("%d members are left", n)
		}
	})
}
