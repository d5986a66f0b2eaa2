package bench

import (
	"fmt"
	"time"

	"kvasir/batcher/place"
)

// SwarmReport is what a simulated swarm comes to. As JSON it is what docs/bench-json.md tells.
type SwarmReport struct {
	Machine  Machine       `json:"machine"` // that simulated
	Settings SwarmSettings `json:"settings"`
	Plan     SwarmPlan     `json:"plan"`
	Result   SwarmResult   `json:"result"`
	Real     *SwarmReal    `json:"real,omitempty"` // the same, run over loopback
}

// SwarmSettings are what was simulated, defaults filled in.
type SwarmSettings struct {
	Scenario string  `json:"scenario"`
	Workers  int     `json:"workers"`
	Layers   int     `json:"layers"`
	Experts  int     `json:"experts"`
	TopK     int     `json:"topk"`
	Hidden   int     `json:"hidden"`
	FFN      int     `json:"ffn"`
	Batch    int     `json:"batch"`
	Own      float64 `json:"backbone_ms"` // a layer of a micro-batch
	Worker   string  `json:"worker"`      // the middle one
	Memory   float64 `json:"memory_gb"`
	RTT      float64 `json:"rtt_ms"`
	Up       Rate    `json:"up_bits"`
	Down     Rate    `json:"down_bits"`
	Spread   float64 `json:"spread"`
	Churn    float64 `json:"churn_per_hour"`
	Seed     uint64  `json:"seed"`
	Simulate float64 `json:"simulate_s"`
	Placed   float64 `json:"placed_in_s"` // of the real clock: to place the experts
}

func (s Swarm) settings() SwarmSettings {
	return SwarmSettings{
		Scenario: SwarmName, Workers: s.Workers, Layers: s.Layers, Experts: s.Experts, TopK: s.TopK, Hidden: s.Hidden,
		FFN: s.FFN, Batch: s.Batch, Own: milliseconds(s.Own), Worker: s.Speed.String(), Memory: s.Memory,
		RTT: milliseconds(s.RTT), Up: s.Up, Down: s.Down, Spread: s.Spread, Churn: s.Churn, Seed: s.Seed,
		Simulate: s.Simulate.Seconds(),
	}
}

// SwarmPlan is what the planner made of it, and its forecast, which knows no queues, no churn and no chance.
type SwarmPlan struct {
	Used     int            `json:"workers_used"`
	Forecast place.Forecast `json:"forecast"`
}

func newSwarmPlan(p *place.Plan) SwarmPlan {
	n := 0
	for i := range p.Workers {
		if p.Workers[i].Used {
			n++
		}
	}
	return SwarmPlan{n, p.Forecast}
}

// SwarmResult is what happened in the last two thirds of the simulated time.
type SwarmResult struct {
	Tokens     float64     `json:"tokens_per_s"`
	Bound      place.Bound `json:"bound"` // what works longest
	Who        string      `json:"who"`
	Busy       float64     `json:"busy"`          // share of the time that it works
	Flights    float64     `json:"micro_batches"` // under way, mean
	Step       float64     `json:"step_ms"`       // of a micro-batch through all layers
	RoundTrips float64     `json:"round_trips_ms"`
	Hidden     float64     `json:"round_trips_hidden"` // share of them that costs nothing
	Dispatches int         `json:"dispatches"`
	Out        float64     `json:"bytes_out_per_s"`
	Back       float64     `json:"bytes_back_per_s"`
	Left       int         `json:"workers_left"`
	Lost       int         `json:"rows_lost"`      // sent to workers that left, and sent again
	LostShare  float64     `json:"rows_lost_part"` // of those sent
	Waited     float64     `json:"waited_s"`       // of parts whose experts nobody held meanwhile, added up
	Took       float64     `json:"took_s"`         // of the real clock, placement included
}

// SwarmReal is a swarm over loopback, with workers that take as long and compute nothing, beside its simulation.
type SwarmReal struct {
	Workers   int     `json:"workers"`
	Tokens    float64 `json:"tokens_per_s"`
	Simulated float64 `json:"simulated_tokens_per_s"`
	Off       float64 `json:"off"` // of the simulation, as a part of what was measured
}

// report fills in what has happened.
func (x *sim) report(r *SwarmReport) {
	c, y := &x.counts, &r.Result
	y.Left, y.Lost, y.Waited = c.left, c.lost, round(c.waited.Seconds())
	window := (x.now - x.from).Seconds()
	if window <= 0 || c.calls == 0 {
		return
	}
	layers, calls := float64(x.s.Layers), float64(c.calls)
	y.Tokens = round(c.rows / layers / window)
	x.busiest(y, window)
	y.Flights = round(c.flights / calls)
	y.Step = milliseconds(time.Duration(float64(c.took)/calls*layers) + time.Duration(x.s.Layers)*x.s.Own)
	light := float64(c.light) / calls * layers
	y.RoundTrips = milliseconds(time.Duration(light))
	y.Hidden = round(hidden(y.Busy))
	y.Dispatches = c.dispatches
	y.Out, y.Back = round(c.out/window), round(c.back/window)
	if sent := c.out / x.m.RowBytes; sent > 0 {
		y.LostShare = float64(c.lost) / sent
	}
}

// hidden is the share of the waiting that costs nothing: while what is busiest works, nobody waits for light.
func hidden(busy float64) float64 { return min(1, busy) }

// busiest finds what worked longest.
func (x *sim) busiest(y *SwarmResult, window float64) {
	note := func(v *server, b place.Bound, who string) {
		if busy := v.busy.Seconds() / window; busy > y.Busy {
			y.Busy, y.Bound, y.Who = busy, b, who
		}
	}
	note(&x.backbone, place.ByAttention, "backbone")
	for _, w := range x.workers {
		note(&w.compute, place.ByCompute, w.Name)
		note(&w.up, place.ByUpload, w.Name)
		note(&w.down, place.ByDownload, w.Name)
	}
	y.Busy = round(y.Busy)
	if y.Busy < busyEnough {
		y.Bound = place.ByRoundTrips
	}
}

// busyEnough is from when on what is busiest bounds the whole, and not the waiting in between.
const busyEnough = 0.7

// Empty reports whether nothing was simulated.
func (r *SwarmReport) Empty() bool { return r == nil || r.Result.Tokens == 0 && r.Real == nil }

// Remarks say what a figure cannot.
func (r *SwarmReport) Remarks() []string {
	x := &r.Result
	if r.Real != nil || x.Took == 0 {
		return nil
	}
	return []string{fmt.Sprintf("Simulated %s s in %s s, of which placing the experts took %s s.",
		digits(r.Settings.Simulate), digits(x.Took), digits(r.Settings.Placed))}
}

// Words are what came out.
func (r *SwarmReport) Words() []string {
	if p := r.Real; p != nil {
		return []string{fmt.Sprintf("%d workers over loopback: %s tokens/s measured, %s simulated: %s.",
			p.Workers, digits(p.Tokens), digits(p.Simulated), offWords(p.Off))}
	}
	x := &r.Result
	lines := []string{
		fmt.Sprintf("%s tokens/s over all sequences; the planner forecasts %s. %d of %d workers hold something.",
			digits(x.Tokens), digits(r.Plan.Forecast.Tokens), r.Plan.Used, r.Settings.Workers),
		fmt.Sprintf("Bounded by %s: the busiest is %s, at work %.0f %% of the time.", x.Bound, x.Who, 100*x.Busy),
		fmt.Sprintf("A step takes %s ms, %s ms of it round trips; with %.1f micro-batches under way %.0f %% of them are hidden.",
			digits(x.Step), digits(x.RoundTrips), x.Flights, 100*x.Hidden),
		fmt.Sprintf("%s MB/s go to workers and %s MB/s come back, in %s dispatches a second.", digits(x.Out/1e6), digits(x.Back/1e6),
			digits(float64(x.Dispatches)/(r.Settings.Simulate*2/3))),
	}
	churn := "No worker left."
	if x.Left > 0 {
		who := fmt.Sprintf("%d workers", x.Left)
		if x.Left == 1 {
			who = "1 worker"
		}
		churn = fmt.Sprintf("%s left: %d rows were sent again, %.3f %% of all; parts waited %s s for experts that nobody held.",
			who, x.Lost, 100*x.LostShare, digits(x.Waited))
	}
	return append(lines, churn)
}

// Missed says by how much the simulation is off, where that is more than its bar.
func (r *SwarmReport) Missed() []string {
	if p := r.Real; p != nil && !p.Near() {
		return []string{fmt.Sprintf("the simulation is %.1f %% off what was measured, bar %.0f %%", 100*p.Off, 100*realNear)}
	}
	return nil
}

func offWords(off float64) string {
	if off < 0 {
		return fmt.Sprintf("%.1f %% less", -100*off)
	}
	return fmt.Sprintf("%.1f %% more", 100*off)
}
