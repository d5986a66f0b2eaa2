package bench

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"kvasir/batcher/place"
	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

// SwarmName is the name of the scenario Swarm.
const SwarmName = "swarm"

// Swarm simulates a swarm that is larger than this machine. Nothing is computed and nothing is sent: events
// happen on a clock of its own. What decides is the product: package place says who holds what, the dispatcher's
// choice and breakers who is asked, a lane's queue what travels together, and the Pilot how many micro-batches
// are under way. What takes time is modelled: a backbone that computes one micro-batch at a time, workers that
// compute one dispatch at a time, a line each way of every worker, and light.
//
// Not modelled: lanes that wait for company, answers that are asked for twice because they are late, slices
// that are fetched, a placement that changes, and lines whose pace grows. A worker that leaves comes back
// after a while with what it held.
type Swarm struct {
	Workers       int
	Layers        int
	Experts, TopK int
	Hidden, FFN   int
	Batch         int           // rows of a micro-batch
	Own           time.Duration // of the backbone for a layer of a micro-batch
	Flights       int           // micro-batches under way; 0: the Pilot says
	Seed          uint64
	Simulate      time.Duration // on the simulated clock

	// The middle worker. Spread is how much others differ: two thirds of them by a factor of up to 1+Spread.
	RTT      time.Duration
	Up, Down Rate
	Speed    Speed
	Memory   float64 // 10^9 bytes
	Spread   float64
	Churn    float64 // share of workers that leave in an hour
}

// DefaultSwarm is 100 home computers behind home lines.
func DefaultSwarm() Swarm {
	d := DefaultDispatch()
	return Swarm{
		Workers: 100, Layers: 48, Experts: d.Experts, TopK: d.TopK, Hidden: d.Hidden, FFN: d.FFN, Batch: 512,
		Own: 4 * time.Millisecond, Seed: 1, Simulate: time.Minute,
		RTT: 30 * time.Millisecond, Up: 50e6, Down: 250e6, Speed: Speed{2 * time.Millisecond, 200 * time.Microsecond},
		Memory: 16, Spread: 0.5, Churn: 0.1,
	}
}

// Limits of Swarm.
const (
	simulatedLeast   = 10 // workers
	simulatedMost    = 10_000
	simulateMost     = time.Hour
	churnMost        = 1000
	spreadFactorMost = 10
	layersMost       = 256
	ownMost          = 10 * time.Second
	flightsMost      = 256
)

// Check returns an error, wrapping ErrSettings, that names the flag to change.
func (s Swarm) Check() error {
	if s.Workers < simulatedLeast || s.Workers > simulatedMost {
		return fmt.Errorf("%w: --workers %d, want %d to %d", ErrSettings, s.Workers, simulatedLeast, simulatedMost)
	}
	if err := s.check(); err != nil {
		return err
	}
	m, err := s.model()
	if err != nil {
		return err
	}
	room := 0.0 // of which a plan fills four fifths
	for _, w := range s.draw(rand.New(rand.NewPCG(s.Seed, 0))) {
		room += 0.8 * float64(w.Memory)
	}
	if need := float64(m.Bytes()); room < need {
		return noRoom(s, need)
	}
	return nil
}

func noRoom(s Swarm, need float64) error {
	return fmt.Errorf("%w: %d workers of about %v GB, filled to four fifths, have no room for %.0f GB of experts; raise --workers or --memory",
		ErrSettings, s.Workers, s.Memory, need/1e9)
}

// check is Check without the least number of workers.
func (s Swarm) check() error {
	for _, x := range []struct {
		name           string
		value, lo, top int
	}{
		{"workers", s.Workers, 1, simulatedMost},
		{"layers", s.Layers, 1, layersMost},
		{"experts", s.Experts, 1, moe.MaxExperts},
		{"topk", s.TopK, 1, min(moe.MaxTopK, s.Experts)},
		{"hidden", s.Hidden, 256, moe.MaxHidden},
		{"ffn", s.FFN, 256, ffnMax},
		{"batch", s.Batch, 1, moe.MaxRows},
		{"flights", s.Flights, 0, flightsMost},
	} {
		if x.value < x.lo || x.value > x.top {
			return fmt.Errorf("%w: --%s %d, want %d to %d", ErrSettings, x.name, x.value, x.lo, x.top)
		}
	}
	switch {
	case s.RTT < 0 || s.RTT > rttMax:
		return fmt.Errorf("%w: --rtt %v, want 0 to %v", ErrSettings, s.RTT, rttMax)
	case s.Up != 0 && s.Up < rateLeast, s.Down != 0 && s.Down < rateLeast:
		return fmt.Errorf("%w: --up %v, --down %v, want %v or more, or 0 for no limit", ErrSettings, s.Up, s.Down, Rate(rateLeast))
	case s.Speed == Speed{}:
		return fmt.Errorf("%w: --worker cpu, want the time that a simulated worker takes, such as stub:2ms+200us", ErrSettings)
	case !(s.Memory > 0 && s.Memory <= 1e6):
		return fmt.Errorf("%w: --memory %v, want more than 0 and up to 1000000 GB", ErrSettings, s.Memory)
	case !(s.Spread >= 0 && s.Spread <= spreadFactorMost):
		return fmt.Errorf("%w: --spread %v, want 0 to %d", ErrSettings, s.Spread, spreadFactorMost)
	case !(s.Churn >= 0 && s.Churn <= churnMost):
		return fmt.Errorf("%w: --churn %v, want 0 to %d: the share of workers that leave in an hour", ErrSettings, s.Churn, churnMost)
	case s.Own < 0 || s.Own > ownMost:
		return fmt.Errorf("%w: --backbone %v, want 0 to %v", ErrSettings, s.Own, ownMost)
	case s.Simulate < time.Second || s.Simulate > simulateMost:
		return fmt.Errorf("%w: --simulate %v, want 1s to %v", ErrSettings, s.Simulate, simulateMost)
	}
	return nil
}

// What a value of a row and of an answer weighs on the wire, in bytes, with what is around it; and a pick.
const (
	simRowValue     = 1.02
	simPartialValue = 1.7
	simPickBytes    = 6
)

// model is what the planner knows of it.
func (s Swarm) model() (place.Model, error) {
	n := 0
	for _, m := range [][2]int{{s.Hidden, s.FFN}, {s.Hidden, s.FFN}, {s.FFN, s.Hidden}} {
		row, err := quant.Q4K.RowBytes(m[0])
		if err != nil {
			return place.Model{}, fmt.Errorf("%w: --hidden %d, --ffn %d: %w", ErrSettings, s.Hidden, s.FFN, err)
		}
		n += row * m[1]
	}
	return place.Model{
		Layers: s.Layers, Experts: s.Experts, TopK: s.TopK, ExpertBytes: []int64{int64(n)},
		RowBytes: simRowValue * float64(s.Hidden), PartialBytes: simPartialValue * float64(s.Hidden),
	}, nil
}

// draw makes the workers: each of their properties is the middle one's times a factor of its own, whose
// logarithm is normally distributed.
func (s Swarm) draw(rng *rand.Rand) []place.Worker {
	sigma := math.Log1p(s.Spread)
	factor := func() float64 { return math.Exp(sigma * rng.NormFloat64()) }
	list := make([]place.Worker, s.Workers)
	for i := range list {
		list[i] = place.Worker{
			Name:   fmt.Sprintf("worker %d", i+1),
			Memory: int64(s.Memory * 1e9 * factor()),
			Rows:   float64(s.TopK) / s.Speed.Row.Seconds() * factor(),
			RTT:    time.Duration(float64(s.RTT) * factor()),
			Up:     float64(s.Up) / 8 * factor(),
			Down:   float64(s.Down) / 8 * factor(),
		}
		if s.Speed.Row == 0 {
			list[i].Rows = 1e12
		}
	}
	return list
}

// Run simulates. When ctx ends it returns what is finished together with ctx's error.
func (s Swarm) Run(ctx context.Context, o Observer[SwarmReport, SwarmResult]) (*SwarmReport, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	m, err := s.model()
	if err != nil {
		return nil, err
	}
	r := &SwarmReport{Machine: ReadMachine(), Settings: s.settings()}
	start := time.Now()
	o.begin(r)
	o.progress(0, "placing the experts")
	rng := rand.New(rand.NewPCG(s.Seed, 0))
	workers := s.draw(rng)
	plan := place.Make(m, place.Backbone{Batch: s.Batch, Layer: s.Own, Flights: s.Flights}, workers)
	if len(plan.Missing) > 0 {
		return nil, noRoom(s, float64(m.Bytes()))
	}
	x, err := newSim(s, &m, workers, &plan, rng)
	if err != nil {
		return nil, err
	}
	r.Plan = newSwarmPlan(&plan)
	r.Settings.Placed = round(time.Since(start).Seconds())
	err = x.run(ctx, o.progress)
	x.report(r)
	r.Result.Took = round(time.Since(start).Seconds())
	return r, err
}
