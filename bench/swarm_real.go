package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"kvasir/batcher/place"
	"kvasir/engine"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
)

// What is run over loopback and simulated beside it: few enough bytes and rows that this machine is not what
// is measured.
const (
	realWorkers = 4
	realLayers  = 8
	realBatch   = 64
	realFlights = 4
	realHidden  = 512
	realSteps   = 6 // of each micro-batch
	realNear    = 0.15
)

// Near reports whether the simulation is within its bar.
func (p *SwarmReal) Near() bool { return math.Abs(p.Off) <= realNear }

// small is the swarm that is run, with the round trip, the lines and the speed of s; all workers are alike.
// Rows are short, and lines as much narrower.
func (s Swarm) small() Swarm {
	s.Workers, s.Layers, s.Batch, s.Flights = realWorkers, realLayers, realBatch, realFlights
	narrow := func(r Rate) Rate { // in the proportion in which rows are shorter
		if r == 0 {
			return 0
		}
		return max(rateLeast, Rate(float64(r)*realHidden/float64(s.Hidden)))
	}
	s.Up, s.Down, s.Hidden = narrow(s.Up), narrow(s.Down), realHidden
	s.Spread, s.Churn, s.Own, s.Simulate = 0, 0, 0, 20*time.Second
	return s
}

// Compare runs a small swarm over loopback, with emulated lines and workers that take time and compute
// nothing, simulates the same, and tells how far apart they are.
func (s Swarm) Compare(ctx context.Context, o Observer[SwarmReport, SwarmResult]) (*SwarmReport, error) {
	s = s.small()
	if err := s.check(); err != nil {
		return nil, err
	}
	r := &SwarmReport{Machine: ReadMachine(), Settings: s.settings()}
	o.begin(r)
	o.progress(0, "running over loopback")
	m, err := s.model()
	if err != nil {
		return r, err
	}
	measured, err := s.loopback(ctx, &m)
	if err != nil {
		return r, err
	}
	o.progress(0.8, "simulating")
	rng := rand.New(rand.NewPCG(s.Seed, 0))
	plan := place.Plan{Workers: make([]place.WorkerPlan, s.Workers)}
	for i := range plan.Workers {
		plan.Workers[i].Ranges = s.share(i)
	}
	x, err := newSim(s, &m, s.draw(rng), &plan, rng)
	if err != nil {
		return r, err
	}
	if err := x.run(ctx, o.progress); err != nil {
		return r, err
	}
	x.report(r)
	r.Real = &SwarmReal{
		Workers: s.Workers, Tokens: round(measured), Simulated: r.Result.Tokens, Off: round(r.Result.Tokens/measured - 1),
	}
	return r, nil
}

// share is the same share of every layer for each worker, as engine.ByExpert gives it.
func (s Swarm) share(worker int) (list []place.Range) {
	for l := range s.Layers {
		list = append(list, place.Range{Layer: l, Lo: s.Experts * worker / s.Workers, Hi: s.Experts * (worker + 1) / s.Workers})
	}
	return list
}

// loopback returns the tokens a second of the swarm, run, and notes in m what its rows weighed: that depends on
// what the answers are, which a simulation does not know.
func (s Swarm) loopback(ctx context.Context, m *place.Model) (float64, error) {
	stub := newStub(s.Speed, s.TopK, s.Hidden, s.Seed)
	w, err := newSwarmWay(ctx, swarmConfig{
		kind: far, rtt: s.RTT, path: Path{Up: s.Up, Down: s.Down}, workers: s.Workers,
		place: engine.ByExpert(s.Layers, s.Experts),
		model: worker.Model{
			Experts: stub, Layers: s.Layers, PerLayer: s.Experts, Hidden: s.Hidden,
			Hash: [32]byte{1}, Profile: [32]byte{1},
		},
		wrap: func(moe.Experts) moe.Experts { return stub.another() }, // each is a device of its own
	})
	if err != nil {
		return 0, err
	}
	defer w.close()
	micros, err := s.micros()
	if err != nil {
		return 0, err
	}
	if err := forwardAll(ctx, w.x, micros, 2); err != nil { // lines and windows open
		return 0, fmt.Errorf("over loopback: %w", err)
	}
	out0, back0 := w.traffic.load()
	start := time.Now()
	if err := forwardAll(ctx, w.x, micros, realSteps); err != nil {
		return 0, fmt.Errorf("over loopback: %w", err)
	}
	took := time.Since(start)
	out, back := w.traffic.load()
	parts, picks := s.parts(micros)
	m.RowBytes = max(0, float64(out-out0)/realSteps-simPickBytes*picks) / parts
	m.PartialBytes = float64(back-back0) / realSteps / parts
	return float64(s.Flights*realSteps*s.Batch) / took.Seconds(), nil
}

// micros makes a batch for every layer of every micro-batch.
func (s Swarm) micros() (list [][]*moe.Batch, err error) {
	list = make([][]*moe.Batch, s.Flights)
	for i := range list {
		for l := range s.Layers {
			shape := moe.Shape{Layer: l, Hidden: s.Hidden, Format: moe.RowQ8K}
			b, err := makeRows(shape, s.Batch, s.Seed+uint64(i*s.Layers+l), uniform(s.Experts, s.TopK))
			if err != nil {
				return nil, err
			}
			list[i] = append(list[i], b)
		}
	}
	return list, nil
}

// parts counts the rows that workers get in a step of all micro-batches, and the picks.
func (s Swarm) parts(micros [][]*moe.Batch) (rows, picks float64) {
	for _, layers := range micros {
		for _, b := range layers {
			for r := range b.Rows {
				asked := map[int]bool{}
				expert, _ := b.Picks(r)
				for _, e := range expert {
					i := 0
					for int(e) >= s.Experts*(i+1)/s.Workers {
						i++
					}
					asked[i] = true
				}
				rows += float64(len(asked))
				picks += float64(len(expert))
			}
		}
	}
	return rows, picks
}

// forwardAll takes all micro-batches through the layers n times, at the same time.
func forwardAll(ctx context.Context, x moe.Experts, micros [][]*moe.Batch, n int) error {
	var wg sync.WaitGroup
	errs := make([]error, len(micros))
	for i, list := range micros {
		wg.Go(func() { errs[i] = forwards(ctx, x, list, n) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// forwards takes a micro-batch through the layers n times.
func forwards(ctx context.Context, x moe.Experts, layers []*moe.Batch, n int) error {
	var answer moe.Partials
	for range n {
		for _, b := range layers {
			if err := x.Forward(ctx, b, &answer); err != nil {
				return err
			}
		}
	}
	return nil
}
