package bench

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/batcher"
	"kvasir/batcher/place"
	"kvasir/internal/moe"
)

// littleSwarm is one that takes moments to simulate.
func littleSwarm() Swarm {
	s := DefaultSwarm()
	s.Workers, s.Layers, s.Experts, s.Hidden, s.FFN, s.Batch = 12, 6, 32, 1024, 256, 64
	s.Simulate, s.Own = 20*time.Second, time.Millisecond
	return s
}

func mustSimulate(t *testing.T, s Swarm) *SwarmReport {
	t.Helper()
	r, err := s.Run(t.Context(), Observer[SwarmReport, SwarmResult]{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSwarmIsTheSameForTheSameSeed(t *testing.T) {
	s := littleSwarm()
	s.Churn = 60
	result := func(seed uint64) SwarmResult {
		s.Seed = seed
		x := mustSimulate(t, s).Result
		x.Took = 0
		return x
	}
	a, b, c := result(1), result(1), result(2)
	if a != b {
		t.Errorf("the same seed: %+v and %+v", a, b)
	}
	if a == c {
		t.Errorf("two seeds have the same result: %+v", a)
	}
}

// One micro-batch on workers that are alike, without lines, of so few rows that they are not divided: every
// layer takes what the sum says.
func TestSwarmTakesAsLongAsItsParts(t *testing.T) {
	s := littleSwarm()
	s.Spread, s.Churn, s.Flights, s.Up, s.Down = 0, 0, 1, 0, 0
	s.Batch, s.Speed = 16, Speed{Call: 3 * time.Millisecond, Row: time.Millisecond}
	x := mustSimulate(t, s).Result
	layer := s.Own + s.RTT + s.Speed.Call + time.Duration(s.Batch)*s.Speed.Row
	want := float64(s.Batch) / (layer.Seconds() * float64(s.Layers))
	if off := math.Abs(x.Tokens/want - 1); off > 0.02 {
		t.Errorf("%v tokens/s, want %v: layers of %v", x.Tokens, want, layer)
	}
}

func TestSwarmLosesNothingToChurn(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds, and with the race detector half a minute")
	}
	s := littleSwarm()
	s.Simulate, s.Layers = 2*time.Minute, 3
	still := mustSimulate(t, s).Result
	s.Churn = 10 // everybody leaves every six minutes, for one
	x := mustSimulate(t, s).Result
	if x.Left == 0 || x.Lost == 0 {
		t.Fatalf("%d workers left with %d rows: the test shows nothing", x.Left, x.Lost)
	}
	if x.Tokens <= 0 || x.Tokens >= still.Tokens {
		t.Errorf("%v tokens/s with churn, %v without", x.Tokens, still.Tokens)
	}
}

func TestSwarmNamesWhatBoundsIt(t *testing.T) {
	f := func(want place.Bound, change func(*Swarm)) {
		t.Helper()
		s := littleSwarm()
		s.Churn = 0
		change(&s)
		if x := mustSimulate(t, s).Result; x.Bound != want {
			t.Errorf("bounded by %s (%s, %v), want %s", x.Bound, x.Who, x.Busy, want)
		}
	}
	f(place.ByUpload, func(s *Swarm) { s.Up = 2e6 })
	f(place.ByDownload, func(s *Swarm) { s.Down, s.Up = 1e6, 0 })
	f(place.ByCompute, func(s *Swarm) { s.Speed.Row, s.Up, s.Down = 20*time.Millisecond, 0, 0 })
	f(place.ByAttention, func(s *Swarm) { s.Own, s.Up, s.Down = 50*time.Millisecond, 0, 0 })
	f(place.ByRoundTrips, func(s *Swarm) { s.Flights, s.RTT, s.Up, s.Down = 1, time.Second, 0, 0 })
}

func TestSwarmRefusesWhatCannotBe(t *testing.T) {
	f := func(want string, change func(*Swarm)) {
		t.Helper()
		s := DefaultSwarm()
		change(&s)
		_, err := s.Run(t.Context(), Observer[SwarmReport, SwarmResult]{})
		if !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want ErrSettings with %q", err, want)
		}
	}
	f("--workers 9, want 10 to 10000", func(s *Swarm) { s.Workers = 9 })
	f("--workers 10001, want 10 to 10000", func(s *Swarm) { s.Workers = 10_001 })
	f("--topk 9, want 1 to 8", func(s *Swarm) { s.Experts, s.TopK = 8, 9 })
	f("--churn NaN", func(s *Swarm) { s.Churn = math.NaN() })
	f("--spread -1", func(s *Swarm) { s.Spread = -1 })
	f("--worker cpu", func(s *Swarm) { s.Speed = Speed{} })
	f("raise --workers or --memory", func(s *Swarm) { s.Workers, s.Memory = 10, 1 })
	f("--simulate 0s", func(s *Swarm) { s.Simulate = 0 })
	f("--up 1", func(s *Swarm) { s.Up = 1 })
}

// home is a worker behind a line, in a bubble of testing/synctest: it takes the time that the simulation says it takes.
type home struct {
	v    place.Worker
	m    *place.Model
	call time.Duration

	mu             sync.Mutex
	down, busy, up time.Time // when each is free
}

func (h *home) until(free *time.Time, took time.Duration) {
	h.mu.Lock()
	if now := time.Now(); now.After(*free) {
		*free = now
	}
	*free = free.Add(took)
	at := *free
	h.mu.Unlock()
	time.Sleep(time.Until(at))
}

func (h *home) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	rows, picks := float64(b.Rows), float64(len(b.Expert))
	h.until(&h.down, seconds(rows*h.m.RowBytes+simPickBytes*picks, h.v.Down))
	time.Sleep(h.v.RTT / 2)
	h.until(&h.busy, h.call+time.Duration(picks/h.v.Rows*float64(time.Second)))
	h.until(&h.up, seconds(rows*h.m.PartialBytes, h.v.Up))
	time.Sleep(h.v.RTT / 2)
	out.Reset(b.Rows, b.Hidden)
	return nil
}

// The dispatcher and the lanes themselves, over workers that take time on a clock of the test's own, come to
// what the simulation of them comes to.
func TestSwarmIsWhatDispatcherAndLanesDo(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds, and with the race detector half a minute")
	}
	for _, flights := range []int{1, 4, 12} {
		s := littleSwarm()
		s.Workers, s.Flights, s.Churn, s.Spread, s.Own = 4, flights, 0, 0.5, 0
		s.Up, s.Down = 8e6, 40e6
		m, err := s.model()
		if err != nil {
			t.Fatal(err)
		}
		workers := s.draw(rand.New(rand.NewPCG(s.Seed, 0)))
		plan := place.Plan{Workers: make([]place.WorkerPlan, s.Workers), Forecast: place.Forecast{Flights: flights}}
		for i := range workers {
			plan.Workers[i].Ranges = s.share(i)
		}
		x, err := newSim(s, &m, workers, &plan, rand.New(rand.NewPCG(s.Seed, 1)))
		if err != nil {
			t.Fatal(err)
		}
		if err := x.run(t.Context(), func(float64, string) {}); err != nil {
			t.Fatal(err)
		}
		var r SwarmReport
		x.report(&r)
		got := 0.0
		synctest.Test(t, func(t *testing.T) { got = s.live(t, &m, workers) })
		if off := math.Abs(r.Result.Tokens/got - 1); off > 0.05 {
			t.Errorf("%d micro-batches: %v tokens/s simulated, %v done by dispatcher and lanes", flights, r.Result.Tokens, got)
		}
	}
}

// live runs the dispatcher and lanes over homes, and returns tokens a second.
func (s Swarm) live(t *testing.T, m *place.Model, workers []place.Worker) float64 {
	d := batcher.NewDispatcher(batcher.Options{Patience: -1})
	defer d.Close()
	for i, w := range workers {
		set := &batcher.Set{}
		for _, r := range s.share(i) {
			if err := set.Add(r.Layer, r.Lo, r.Hi); err != nil {
				t.Fatal(err)
			}
		}
		lane, err := batcher.NewLane(&home{v: w, m: m, call: s.Speed.Call}, batcher.Limits{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer lane.Close()
		d.Join(w.Name, lane, set)
	}
	micros, err := s.micros()
	if err != nil {
		t.Fatal(err)
	}
	const steps = 20
	start := time.Now()
	if err := forwardAll(t.Context(), d, micros, steps); err != nil {
		t.Fatal(err)
	}
	return float64(s.Flights*steps*s.Batch) / time.Since(start).Seconds()
}
