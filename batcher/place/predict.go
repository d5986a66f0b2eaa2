package place

import (
	"math"
	"time"
)

// Bound is what a swarm would need more of to be faster.
type Bound string

// Bounds.
const (
	ByAttention  Bound = "attention"   // the backbone's own work, experts at home included
	ByCompute    Bound = "compute"     // a worker's experts
	ByUpload     Bound = "upload"      // a sender's link
	ByDownload   Bound = "download"    // a receiver's link
	ByMemory     Bound = "memory"      // room for more sequences, or for experts that nobody holds
	ByRoundTrips Bound = "round trips" // more micro-batches, which Backbone.Flights does not allow
)

// Forecast is what a plan comes to when all rows are there to be computed.
type Forecast struct {
	Tokens float64 `json:"tokens_per_s"` // with as many micro-batches as Flights; 0 while an expert is missing
	Serial float64 `json:"serial"`       // tokens a second with one micro-batch
	Bound  Bound   `json:"bound"`
	Who    string  `json:"who"` // whose that is: a worker's name or "backbone"

	// Of one micro-batch through all layers.
	Step       time.Duration `json:"step_ns"`        // from its beginning to its end, alone
	Busiest    time.Duration `json:"busiest_ns"`     // that what bounds it is at work
	RoundTrips time.Duration `json:"round_trips_ns"` // of Step, that light is on its way
	Needed     int           `json:"needed"`         // micro-batches under way that hide all waiting
	Flights    int           `json:"flights"`        // of them, those that are allowed and have memory
}

// backboneName is Forecast.Who where it is no worker.
const backboneName = "backbone"

// work is seconds of one micro-batch.
type work struct{ compute, down, up float64 }

func (w work) most() float64 { return max(w.compute, w.down, w.up) }

// predict writes the forecast. A row's way through a layer is one after the other: the backbone's own
// work, then the slowest of those who are asked. Different micro-batches are in different places at the
// same time, so what is busiest sets the pace, if there are enough of them.
func (p *layout) predict() {
	p.load, p.rows = make([]float64, len(p.sites)), make([]float64, len(p.sites))
	if p.m.Layers == 0 || p.m.Experts == 0 {
		return
	}
	sites := make([]work, len(p.sites))
	own, step, trips := 0.0, 0.0, 0.0
	for l := range p.m.Layers {
		mine, far, trip := p.layer(l, sites)
		own += mine
		step += mine + far
		trips += trip
	}
	batch := float64(p.b.Batch)
	f := Forecast{Step: seconds(step), RoundTrips: seconds(trips), Bound: ByAttention, Who: backboneName}
	worst := own
	p.busiest(&f, sites, &worst)
	f.Busiest = seconds(worst)
	f.Needed = Flights(own, step-own, worst)
	f.Flights = f.Needed
	tight := ByRoundTrips
	if n := p.b.Flights; n > 0 {
		f.Flights = min(f.Flights, n)
	}
	if n := p.b.Sequences / p.b.Batch; p.b.Sequences > 0 && max(1, n) < f.Flights {
		f.Flights, tight = max(1, n), ByMemory
	}
	if step > 0 {
		f.Serial = batch / step
	}
	if worst > 0 {
		f.Tokens = batch / worst
	}
	if step > 0 && float64(f.Flights)*f.Serial < f.Tokens {
		f.Tokens, f.Bound, f.Who = float64(f.Flights)*f.Serial, tight, backboneName
	}
	for i := range sites {
		if f.Tokens > 0 {
			p.load[i] = float64(sites[i].most()*f.Tokens) / batch
		}
	}
	if p.missing > 0 {
		f.Tokens, f.Serial, f.Bound, f.Who = 0, 0, ByMemory, backboneName
	}
	p.forecast = f
}

// busiest finds what works longest: a part of a site, or the backbone's link.
func (p *layout) busiest(f *Forecast, sites []work, worst *float64) {
	note := func(t float64, b Bound, who string) {
		if t > *worst {
			*worst, f.Bound, f.Who = t, b, who
		}
	}
	out, in := 0.0, 0.0
	for i, w := range sites {
		s := &p.sites[i]
		note(w.compute, ByCompute, s.Name)
		note(w.down, ByDownload, s.Name)
		note(w.up, ByUpload, s.Name)
		rows := p.rows[i]
		out += float64(rows * p.m.RowBytes)
		in += float64(rows * p.m.PartialBytes)
	}
	if p.b.Up > 0 {
		note(out/p.b.Up, ByUpload, backboneName)
	}
	if p.b.Down > 0 {
		note(in/p.b.Down, ByDownload, backboneName)
	}
}

// Flights is how many micro-batches have to be under way to hide all waiting: own is the seconds that a
// micro-batch keeps the backbone, far those that it is away, and busiest those that it keeps what bounds
// the whole. It is 1 + far / busiest, rounded up.
func Flights(own, far, busiest float64) int {
	busiest = max(busiest, own)
	if !(busiest > 0) || !(far > 0) {
		return 1
	}
	const enough = 1 << 20
	return int(min(enough, math.Ceil(1+far/busiest-1e-9)))
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s*float64(time.Second), math.MaxInt64/2))
}
