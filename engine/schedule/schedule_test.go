package schedule

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"kvasir/engine/model"
)

// one is a request with one choice.
func one(n, limit int) Request {
	return Request{Prompt: prompt(n), Limit: limit, Choices: []Chooser{&dice{vocab: fakeVocab}}}
}

func TestSubmitRefusesBeforeAnyWork(t *testing.T) {
	f := &fake{budget: testBytes(100)}
	s := newFake(t, f, limits{sequences: 4}, 0)
	d := &dice{vocab: fakeVocab}
	tests := []struct {
		name string
		r    Request
		want error
		says string
	}{
		{"no prompt", Request{Limit: 1, Choices: []Chooser{d}}, ErrRequest, "no tokens"},
		{"a prompt as long as the context", one(fakeContext, 1), ErrTooLong, "200 tokens and the model takes 200"},
		{"no limit", one(1, 0), ErrRequest, "limit of 0"},
		{"a negative limit", one(1, -1), ErrRequest, "limit of -1"},
		{"no choices", Request{Prompt: prompt(1), Limit: 1}, ErrRequest, "1 to 4"},
		{"too many choices", Request{Prompt: prompt(1), Limit: 1, Choices: []Chooser{d, d, d, d, d}}, ErrRequest, "1 to 4"},
		{"no chooser", Request{Prompt: prompt(1), Limit: 1, Choices: []Chooser{nil}}, ErrRequest, "chooser"},
		{"a class", Request{Prompt: prompt(1), Limit: 1, Choices: []Chooser{d}, Class: 2}, ErrRequest, "class 2"},
		{"a token below", Request{Prompt: []int32{1, -1}, Limit: 1, Choices: []Chooser{d}}, ErrRequest, "token 1 of the prompt is -1"},
		{"a token above", Request{Prompt: []int32{fakeVocab}, Limit: 1, Choices: []Chooser{d}}, ErrRequest, "vocabulary has 16"},
		{"the memory", one(90, 11), ErrTooLarge, "90 tokens of prompt and 11 of answer"},
	}
	for _, tt := range tests {
		st, err := s.Submit(context.Background(), tt.r)
		if !errors.Is(err, tt.want) || st != nil || !strings.Contains(fmt.Sprint(err), tt.says) {
			t.Errorf("%s: %v, want %v with %q", tt.name, err, tt.want, tt.says)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Submit(ctx, one(1, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
	if len(f.batches) != 0 || s.Stats() != (Stats{}) {
		t.Errorf("work was done: %v, %+v", f.batches, s.Stats())
	}
	if _, err := collect(submit(t, s, one(90, 10)), one(90, 10)); err != nil {
		t.Errorf("all that fits is refused: %v", err)
	}
}

func TestNewRefusesWhatIsOutOfBounds(t *testing.T) {
	for _, c := range []Config{{Rows: 513}, {Rows: -1}, {Flights: 65}, {Sequences: -1}, {Waiting: 1 << 21}, {Retries: -1}} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), "want 1 to") {
			t.Errorf("%+v: error %v", c, err)
		}
	}
	c := Config{}
	if l, err := c.limits(); err != nil || l != (limits{model.BatchRows, 1, DefaultSequences, DefaultWaiting, defaultGrow}) {
		t.Errorf("defaults: %+v, %v", l, err)
	}
}

func TestAnswersAreThoseOfARequestAlone(t *testing.T) {
	s := newFake(t, &fake{known: 3}, limits{}, 0)
	for _, a := range []ask{
		{tokens: prompt(1), limit: 1, choices: 1},
		{tokens: prompt(100), limit: 20, choices: 1, ends: true},
		{tokens: prompt(10), limit: 20, choices: 5, ends: true},
		{tokens: prompt(10), limit: 1, choices: 3},
		{tokens: prompt(190), limit: 50, choices: 2}, // the context ends it
	} {
		got, err := a.run(t, s)
		if want := fakeAlone(a); err != nil || !got.equal(want) {
			t.Errorf("%+v:\n%v, %v, want\n%v", a, got, err, want)
		}
	}
}

// TestNoSequenceForAChoiceThatIsOver counts the forks of choices that end with their first token.
func TestNoSequenceForAChoiceThatIsOver(t *testing.T) {
	forks := 0
	s := newFake(t, &fake{parting: func() { forks++ }}, limits{}, 0)
	a := ask{tokens: prompt(10), limit: 1, choices: 3}
	if _, err := a.run(t, s); err != nil || forks != 0 {
		t.Errorf("%d forks, %v", forks, err)
	}
}

func TestEventsSayWhyAChoiceEnds(t *testing.T) {
	s := newFake(t, &fake{}, limits{}, 0)
	final := func(r Request) Final {
		st := submit(t, s, r)
		var last Event
		for {
			e, err := st.Next(context.Background())
			if errors.Is(err, io.EOF) {
				return last.Final
			}
			if err != nil {
				t.Fatal(err)
			}
			last = e
		}
	}
	if f := final(one(4, 3)); f != Full {
		t.Errorf("at its limit: %v", f)
	}
	r := one(4, 150)
	r.Choices[0].(*dice).ends = true
	if f := final(r); f != Ended {
		t.Errorf("at its end: %v", f)
	}
}

func TestSlowReaderHoldsUpNobody(t *testing.T) {
	s := newFake(t, &fake{}, limits{}, 0)
	slow := submit(t, s, one(5, 60))
	quick := one(5, 100)
	if _, err := collect(submit(t, s, quick), quick); err != nil {
		t.Fatal(err)
	}
	if tokens, err := collect(slow, one(5, 60)); err != nil || len(tokens[0]) != 60 {
		t.Errorf("the slow one has %d tokens, %v", len(tokens[0]), err)
	}
}

func TestFullQueueRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, next := held()
		s := newFake(t, &fake{before: before}, limits{sequences: 1, waiting: 2}, 0)
		submit(t, s, one(5, 1))
		synctest.Wait()
		submit(t, s, one(5, 1))
		submit(t, s, one(5, 1))
		if _, err := s.Submit(t.Context(), one(5, 1)); !errors.Is(err, ErrFull) {
			t.Errorf("error %v, want %v", err, ErrFull)
		}
		next <- nil
		synctest.Wait()
		submit(t, s, one(5, 1))
		for range 3 {
			next <- nil
		}
	})
}

// TestBurstFillsPlacesThatAreFree has requests come faster than any is admitted. A request of two choices takes
// two places.
func TestBurstFillsPlacesThatAreFree(t *testing.T) {
	c := core{bytes: testBytes, limits: limits{rows: 100, flights: 1, sequences: 5, waiting: 2, grow: 10}}
	burst := func(forks int) (n int) {
		for ; !c.full(); n++ {
			c.submit(&task{class: Class(n % 2), have: 3, left: 5, forks: forks})
			checkCore(t, &c)
		}
		return n
	}
	if n := burst(0); n != 5+2 {
		t.Errorf("%d requests are taken by an idle server, want 5 that have places and 2 that wait", n)
	}
	list := c.admit(testBytes(1000))
	if n := burst(0); len(list) != 5 || n != 0 {
		t.Errorf("%d requests run and %d more are taken, want 5 and none", len(list), n)
	}
	for _, x := range list {
		c.resumed(x, 0)
		c.remove(x)
	}
	for _, x := range slices.Concat(c.queues[0], c.queues[1]) {
		c.remove(x)
	}
	if n := burst(1); n != 2+2 {
		t.Errorf("%d requests of two choices are taken, want 2 that have places and 2 that wait", n)
	}
}

func TestFlightsAreUnderWayTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, next := held()
		f := &fake{before: before}
		s := newFake(t, f, limits{flights: 3}, 0)
		st := submit(t, s, Request{Prompt: prompt(5), Limit: 2, Choices: []Chooser{
			&dice{vocab: fakeVocab}, &dice{vocab: fakeVocab}, &dice{vocab: fakeVocab},
		}})
		synctest.Wait()
		next <- nil
		synctest.Wait()
		if got := fmt.Sprint(f.batches); got != "[[5] [1] [1] [1]]" {
			t.Errorf("micro-batches %s under way, want the three choices in one each", got)
		}
		for range 3 {
			next <- nil
		}
		synctest.Wait()
		for range 6 {
			if _, err := st.Next(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestFlightsAreAsManyAsAreWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, next := held()
		var wanted atomic.Int32
		f := &fake{before: before, wanted: func() int { return int(wanted.Load()) }}
		s := newFake(t, f, limits{flights: 3}, 0)
		submit(t, s, Request{Prompt: prompt(5), Limit: 4, Choices: []Chooser{
			&dice{vocab: fakeVocab}, &dice{vocab: fakeVocab}, &dice{vocab: fakeVocab},
		}})
		synctest.Wait()
		next <- nil // the prompt; then all choices together, one micro-batch after the other
		synctest.Wait()
		next <- nil
		synctest.Wait()
		wanted.Store(2)
		next <- nil
		synctest.Wait()
		// Either of the two may be the first.
		if got := fmt.Sprint(f.batches); got != "[[5] [1 1 1] [1 1 1] [1 1] [1]]" && got != "[[5] [1 1 1] [1 1 1] [1] [1 1]]" {
			t.Errorf("micro-batches %s, want one at a time, and two when two are wanted", got)
		}
		wanted.Store(100) // more than there are
		next <- nil
		next <- nil
		synctest.Wait()
	})
}

func TestFaultFailsItsOwnRequestOnly(t *testing.T) {
	fault := errors.New("a row is damaged")
	f := &fake{fault: func(tokens []int32) error {
		if len(tokens) == 13 && tokens[0] == 10 {
			return fault
		}
		return nil
	}}
	s := newFake(t, f, limits{}, 0)
	r := one(10, 20)
	bad, fell := submit(t, s, r), submit(t, s, Request{Prompt: prompt(5), Limit: 9, Choices: []Chooser{
		&dice{vocab: fakeVocab}, &dice{vocab: fakeVocab, failAt: 8},
	}})
	good := ask{tokens: prompt(11), limit: 20, choices: 2}
	if got, err := good.run(t, s); err != nil || !got.equal(fakeAlone(good)) {
		t.Errorf("the good one: %v, %v", got, err)
	}
	if tokens, err := collect(bad, r); !errors.Is(err, fault) || len(tokens[0]) != 3 {
		t.Errorf("the damaged one: %v, %v", tokens, err)
	}
	if _, err := collect(fell, Request{Prompt: prompt(5), Choices: make([]Chooser, 2)}); !errors.Is(err, errDice) {
		t.Errorf("the one whose chooser fails: %v", err)
	}
	if st := s.Stats(); st.Failed != 2 || st.Finished != 1 {
		t.Errorf("%+v", st)
	}
}

var errGone = errors.New("the experts are gone")

func TestExpertsErrorFailsThoseUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, next := held()
		s := newFake(t, &fake{before: before}, limits{sequences: 2}, 0)
		all := together(t, s, next, one(5, 1), one(6, 1), one(7, 1))
		next <- errGone
		for _, st := range all[:2] {
			if _, err := st.Next(t.Context()); !errors.Is(err, ErrExperts) || !errors.Is(err, errGone) {
				t.Errorf("error %v", err)
			}
		}
		next <- nil
		if _, err := all[2].Next(t.Context()); err != nil {
			t.Errorf("the one that waited: %v", err)
		}
	})
}

// TestRetriesComputeAnew lets two micro-batches in eleven fail: one before anything is computed,
// one when the tokens have been chosen already.
func TestRetriesComputeAnew(t *testing.T) {
	n := 0
	fail := func(yes bool) error {
		if yes {
			return errGone
		}
		return nil
	}
	f := &fake{
		before: func(context.Context, []*step) error { n++; return fail(n%11 == 7) },
		after:  func() error { return fail(n%11 == 1) },
	}
	s := newFake(t, f, limits{rows: 512}, 100)
	a := ask{tokens: prompt(30), limit: 40, choices: 3}
	if got, err := a.run(t, s); err != nil || !got.equal(fakeAlone(a)) {
		t.Errorf("%v, %v", got, err)
	}
	if st := s.Stats(); st.Retries == 0 || st.Recomputed == 0 || st.Decoded != 120 {
		t.Errorf("%+v", st)
	}
	one := ask{tokens: prompt(30), limit: 90, choices: 1}
	f.before, f.after = func(context.Context, []*step) error { return errGone }, nil
	if _, err := one.run(t, s); !errors.Is(err, errGone) {
		t.Errorf("when all are used up: %v", err)
	}
}

func TestPreemptionChangesNoResult(t *testing.T) {
	f := &fake{budget: testBytes(150)}
	s := newFake(t, f, limits{rows: 16, flights: 2}, 0)
	var wg sync.WaitGroup
	for i := range 12 {
		a := ask{tokens: prompt(1 + i), limit: 60, choices: 1 + i%3, seed: uint32(i), class: Class(i % 2)}
		wg.Go(func() {
			if got, err := a.run(t, s); err != nil || !got.equal(fakeAlone(a)) {
				t.Errorf("request %d: %v, %v", i, got, err)
			}
		})
	}
	wg.Wait()
	st := s.Stats()
	if st.Preemptions == 0 || st.Recomputed == 0 || st.Finished != 12 || st.Rows < st.Decoded {
		t.Errorf("%+v", st)
	}
	t.Logf("%+v", st)
}

// TestNoMemoryAtAllFails gives a sequence less than was promised: it fails instead of trying for
// ever.
func TestNoMemoryAtAllFails(t *testing.T) {
	f := &fake{budget: testBytes(100)}
	s := newFake(t, f, limits{}, 0)
	f.budget = testBytes(50)
	r := one(40, 60)
	if tokens, err := collect(submit(t, s, r), r); !errors.Is(err, ErrTooLarge) || len(tokens[0]) < 10 {
		t.Errorf("%d tokens, %v", len(tokens[0]), err)
	}
	f.budget = 5
	if _, err := collect(submit(t, s, r), r); !errors.Is(err, model.ErrMemory) {
		t.Errorf("not even a sequence: %v", err)
	}
}

// TestChanceFindsNoOrder lets many requests come, go and fail to find memory, over several flights,
// and compares what comes of each with the same request alone. One seed is for each run; it is
// printed.
func TestChanceFindsNoOrder(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	var calls atomic.Int64
	f := &fake{budget: testBytes(400), known: 7, wanted: func() int { return int(calls.Add(1) % 5) }}
	s := newFake(t, f, limits{rows: 40, flights: 3, sequences: 20, waiting: 1000}, 0)
	requests := 1000
	if testing.Short() {
		requests = 200
	}
	for range 5 { // as in throng
		chance(t, s, requests, rng, func() ask {
			return ask{
				tokens: prompt(1 + rng.IntN(80)), limit: 1 + rng.IntN(60), choices: 1 + max(0, rng.IntN(6)-3),
				seed: rng.Uint32(), ends: rng.IntN(2) == 0, class: Class(rng.IntN(2)),
			}
		}, fakeAlone)
		if s.Stats().Preemptions > 0 {
			break
		}
	}
	if st := s.Stats(); st.Preemptions == 0 {
		t.Errorf("nobody was preempted: %+v", st)
	}
}

// chance runs so many requests at once, cancels one in four somewhere, and compares the others with
// want.
func chance(t *testing.T, s *Scheduler, n int, rng *rand.Rand, draw func() ask, want func(ask) answer) {
	t.Helper()
	var wg sync.WaitGroup
	together := make(chan struct{}, 64)
	for i := range n {
		a := draw()
		r, dice := a.request(s.shape.vocab)
		stop, after := rng.IntN(4) == 0, rng.IntN(2*a.limit)
		together <- struct{}{}
		st := submit(t, s, r)
		wg.Go(func() {
			defer func() { <-together }()
			if stop {
				for range after {
					if _, err := st.Next(context.Background()); err != nil {
						break
					}
				}
				st.Cancel()
				return
			}
			got := answer{}
			var err error
			if got.tokens, err = collect(st, r); err != nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
			for _, d := range dice {
				got.sums = append(got.sums, d.sum)
			}
			if w := want(a); !got.equal(w) {
				t.Errorf("request %d, %+v:\n%v, want\n%v", i, a, got, w)
			}
		})
	}
	wg.Wait()
	st := s.Stats()
	t.Logf("%+v", st)
	if st.Finished+st.Canceled != int64(n) || st.Failed != 0 {
		t.Errorf("%d requests were lost or failed", int64(n)-st.Finished-st.Canceled)
	}
	if slices.Contains([]int64{st.Decoded, st.Prefilled, st.Batches, st.Reused}, 0) {
		t.Error("something was not counted")
	}
}

// A micro-batch is as urgent as the most urgent of its sequences; whoever computes its experts is told so.
func TestAMicroBatchIsOfTheClassOfItsMostUrgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		var got []string
		before, next := held()
		f := &fake{
			mark: func(ctx context.Context, c Class) context.Context { return context.WithValue(ctx, key{}, c) },
			before: func(ctx context.Context, steps []*step) error {
				got = append(got, fmt.Sprint(ctx.Value(key{}), len(steps)))
				return before(ctx, steps)
			},
		}
		s := newFake(t, f, limits{}, 0)
		job, urgent := one(2, 3), one(2, 1)
		job.Class = Batch
		streams := []*Stream{submit(t, s, job)}
		synctest.Wait()
		next <- nil // the job alone
		synctest.Wait()
		streams = append(streams, submit(t, s, urgent))
		next <- nil // it was under way alone
		synctest.Wait()
		next <- nil // both
		synctest.Wait()
		for _, st := range streams {
			st.Cancel()
		}
		if want := []string{"1 1", "1 1", "0 2"}; !slices.Equal(got, want) {
			t.Errorf("class and steps of micro-batches %q, want %q", got, want)
		}
	})
}
