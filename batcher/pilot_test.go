package batcher

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/batcher/place"
	"kvasir/internal/moe"
)

// world is a backbone that computes one layer of one micro-batch at a time, and workers far away.
type world struct {
	d       *Dispatcher
	own     time.Duration
	self    chan struct{}
	pilot   *Pilot
	layers  int
	batches []*moe.Batch // one a layer
}

// newWorld gives every layer to one of the workers in turn.
func newWorld(t *testing.T, rtt, work, own time.Duration, layers, workers int) *world {
	t.Helper()
	w := &world{own: own, self: make(chan struct{}, 1), pilot: &Pilot{}, layers: layers}
	w.d = NewDispatcher(Options{Trace: w.pilot.Call})
	for i := range workers {
		lane := newLane(t, near{newStub(rtt, work, 0)}, Limits{}, 64)
		t.Cleanup(lane.Close)
		holds := &Set{}
		for l := i; l < layers; l += workers {
			if err := holds.Add(l, 0, 32); err != nil {
				t.Fatal(err)
			}
		}
		w.d.Join(fmt.Sprint(i), lane, holds)
	}
	rng := seeded(t, 1)
	for l := range layers {
		w.batches = append(w.batches, randomBatch(rng, moe.Shape{Layer: l, Hidden: 4, Format: moe.RowQ8}, 8, 2, 32))
	}
	return w
}

// step takes one micro-batch through all layers.
func (w *world) step(t *testing.T) {
	out := &moe.Partials{}
	for l, b := range w.batches {
		w.self <- struct{}{}
		time.Sleep(w.own)
		<-w.self
		w.pilot.Own(l, w.own)
		if err := w.d.Forward(t.Context(), b, out); err != nil {
			t.Error(err)
			return
		}
	}
}

// run walks flights micro-batches side by side, n steps each, and returns the time of a step of them all.
func (w *world) run(t *testing.T, flights, n int) time.Duration {
	began := time.Now()
	var all sync.WaitGroup
	for range flights {
		all.Go(func() {
			for range n {
				w.step(t)
			}
		})
	}
	all.Wait()
	return time.Since(began) / time.Duration(n*flights)
}

// TestPilotHidesAllWaiting compares the formula with a simulation: with the number of micro-batches that
// the pilot advises the busiest part is at work for nearly all of the time, with one less or two it is not
// far from that, and one alone takes the sum.
func TestPilotHidesAllWaiting(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name           string
		rtt, work, own time.Duration
		workers        int
		want           int
		pace           time.Duration // of the busiest, a step of 6 layers
	}{
		{"the backbone is busiest", 13 * ms, 2 * ms, 4 * ms, 2, 5, 24 * ms},
		{"50 ms away", 50 * ms, 2 * ms, 4 * ms, 2, 14, 24 * ms},
		{"80 ms away", 80 * ms, 2 * ms, 4 * ms, 2, 22, 24 * ms},
		{"one worker is busiest", 13 * ms, 9 * ms, 2 * ms, 1, 4, 54 * ms},
		{"two workers are busiest", 13 * ms, 9 * ms, 2 * ms, 2, 6, 27 * ms},
		{"no distance", 0, 2 * ms, 4 * ms, 2, 2, 24 * ms},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, tt.rtt, tt.work, tt.own, 6, tt.workers)
				if n := w.pilot.Flights(8, 0, 64); n != 1 {
					t.Errorf("%d micro-batches before anything is known", n)
				}
				alone := w.run(t, 1, 3)
				if want := 6 * (tt.own + tt.rtt + tt.work); alone != want {
					t.Errorf("one micro-batch takes %v, want %v", alone, want)
				}
				n := w.pilot.Flights(8, 0, 64)
				if n != tt.want {
					t.Errorf("%d micro-batches, want %d", n, tt.want)
				}
				pace := w.run(t, n, 40)
				t.Logf("%d micro-batches: a step in %v, %.3f of the bound; alone %v", n, pace, float64(tt.pace)/float64(pace), alone)
				if float64(tt.pace) < 0.98*float64(pace) {
					t.Errorf("with %d micro-batches a step takes %v, want about %v", n, pace, tt.pace)
				}
				if again := w.pilot.Flights(8, 0, 64); again < tt.want-1 || again > tt.want+2 {
					t.Errorf("under load it advises %d micro-batches, and %d before", again, tt.want)
				}
				if got := w.pilot.Flights(8, 24, 64); got != min(3, tt.want) {
					t.Errorf("%d micro-batches of 8 rows where 24 have room", got)
				}
				if got := w.pilot.Flights(8, 0, 2); got != 2 {
					t.Errorf("%d micro-batches, want at most 2", got)
				}
			})
		})
	}
}

// TestForecastAgreesWithASimulation lets place.Make plan a swarm, walks micro-batches through stub workers
// that hold what the plan says, and compares what comes out with the forecast.
func TestForecastAgreesWithASimulation(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name   string
		own    time.Duration
		rtts   []time.Duration
		rows   []float64 // expert-rows a second
		copies int
		most   int // flights; 0: as many as are needed
	}{
		{"backbone bound, 13 ms", 5 * ms, []time.Duration{13 * ms, 13 * ms}, []float64{40e3, 40e3}, 1, 0},
		{"compute bound, 50 ms", ms, []time.Duration{50 * ms, 50 * ms}, []float64{8e3, 8e3}, 1, 0},
		{"uneven workers, 80 ms", ms, []time.Duration{80 * ms, 13 * ms, 13 * ms}, []float64{20e3, 10e3, 5e3}, 1, 0},
		{"round trips", ms, []time.Duration{80 * ms, 80 * ms}, []float64{40e3, 40e3}, 1, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const layers, experts, topK, rows = 12, 32, 2, 16
				m := place.Model{Layers: layers, Experts: experts, TopK: topK, ExpertBytes: []int64{1 << 20}}
				b := place.Backbone{Batch: rows, Layer: tt.own, Copies: tt.copies, Flights: tt.most}
				var ws []place.Worker
				for i, rtt := range tt.rtts {
					ws = append(ws, place.Worker{Name: fmt.Sprint(i), Memory: 1 << 40, Rows: tt.rows[i], RTT: rtt})
				}
				plan := place.Make(m, b, ws)
				f := plan.Forecast
				w := &world{own: tt.own, self: make(chan struct{}, 1), pilot: &Pilot{}, layers: layers}
				w.d = NewDispatcher(Options{Trace: w.pilot.Call, Hedge: -1, Patience: -1})
				for i, x := range ws {
					perRow := time.Duration(topK / x.Rows * float64(time.Second))
					lane := newLane(t, near{newStub(x.RTT, 0, perRow)}, Limits{Rows: rows}, 64)
					defer lane.Close()
					holds := &Set{}
					for _, r := range plan.Workers[i].Ranges {
						if err := holds.Add(r.Layer, r.Lo, r.Hi); err != nil {
							t.Fatal(err)
						}
					}
					w.d.Join(x.Name, lane, holds)
				}
				for l := range layers {
					batch, err := moe.NewBatch(moe.Shape{Layer: l, Hidden: 4, Format: moe.RowQ8}, rows, rows*topK)
					if err != nil {
						t.Fatal(err)
					}
					for r := range rows {
						batch.Grow([]uint16{uint16(r % experts), uint16((7*r + 3) % experts)}, []float32{1, 1})
					}
					w.batches = append(w.batches, batch)
				}
				tokens := rows / w.run(t, f.Flights, 30).Seconds()
				t.Logf("%.1f tokens/s by %s of %s with %d micro-batches; forecast %.1f: %.3f of it",
					tokens, f.Bound, f.Who, f.Flights, f.Tokens, tokens/f.Tokens)
				if tokens < 0.8*f.Tokens || tokens > 1.05*f.Tokens {
					t.Errorf("%.1f tokens a second, forecast %.1f", tokens, f.Tokens)
				}
			})
		})
	}
}

// TestWaterfallNamesTheStraggler has two workers with a half of the layer each, one of them slow.
func TestWaterfallNamesTheStraggler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w Waterfall
		d := NewDispatcher(Options{Trace: w.Call})
		for i, work := range []time.Duration{2 * time.Millisecond, 9 * time.Millisecond} {
			lane := newLane(t, near{newStub(10*time.Millisecond, work, 0)}, Limits{}, 1)
			defer lane.Close()
			d.Join([]string{"quick", "slow"}[i], lane, holding(16*i, 16*i+16, 0))
		}
		for range 10 {
			forward(t, d, smallBatch(64))
		}
		lines, calls, took := w.Take()
		if calls != 10 || took != 190*time.Millisecond || len(lines) != 2 {
			t.Fatalf("%d calls in %v: %+v", calls, took, lines)
		}
		slow, quick := lines[0], lines[1]
		if slow.To != "slow" || slow.Last != 10 || slow.Lag != 70*time.Millisecond || slow.Work != 90*time.Millisecond ||
			slow.Out != 50*time.Millisecond || slow.Back != 50*time.Millisecond || slow.Lane != 0 {
			t.Errorf("slow: %+v", slow)
		}
		if quick.Last != 0 || quick.Lag != 0 || quick.Took != 120*time.Millisecond || quick.Dispatches != 10 || quick.Late != 0 {
			t.Errorf("quick: %+v", quick)
		}
		if lines, calls, _ := w.Take(); calls != 0 || lines != nil {
			t.Error("what was taken is told again")
		}
	})
}

// answeredBy is one call of a layer that one worker has answered.
func answeredBy(layer int, to string, lane, work, took time.Duration) *Call {
	return &Call{
		Layer: layer, Took: took, Straggler: to, Lag: took,
		Spans: []Span{{To: to, Took: took, Times: Times{Lane: lane, Work: work}, Result: answered.String()}},
	}
}

// What a micro-batch waited in a lane for others it would not have waited alone, so it calls for none more.
func TestPilotTakesWaitingForOthersOff(t *testing.T) {
	const ms = time.Millisecond
	for _, lane := range []time.Duration{0, 100 * ms} {
		p := &Pilot{}
		for range pilotWindow {
			p.Own(0, 5*ms)
			p.Call(answeredBy(0, "a", lane, 2*ms, 20*ms+lane))
		}
		if got := p.Flights(8, 0, 64); got != 1+20/5 {
			t.Errorf("%d micro-batches where %v is waited for others, want 5", got, lane)
		}
	}
}

// A worker that has left sets the pace no more, after a while.
func TestPilotForgetsWhoHasLeft(t *testing.T) {
	const ms = time.Millisecond
	p := &Pilot{}
	p.Own(0, 5*ms)
	p.Call(answeredBy(0, "slow", 0, 20*ms, 40*ms))
	if got := p.Flights(8, 0, 64); got != 1+40/20 {
		t.Errorf("%d micro-batches before a worker that takes 20 ms, want 3", got)
	}
	for range pilotForget + 1 {
		p.Call(answeredBy(0, "quick", 0, 2*ms, 40*ms))
	}
	if got := p.Flights(8, 0, 64); got != 1+40/5 {
		t.Errorf("%d micro-batches after it has left, want 9", got)
	}
}
