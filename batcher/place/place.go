// Package place decides who holds which experts: it reads what is known of a model, a backbone and its
// workers, and writes a plan with a forecast.
//
//	Model, Backbone, Workers -> Make -> Plan{Workers, Forecast}
//
// Whole layers come first, so that a row of a layer goes to one worker only; a layer is divided only
// where it fits nowhere. Who holds or has cached something keeps it, unless moving it pays. Every expert
// is given to somebody before any is given to two; what memory is left then holds copies: of whole
// layers, whose owners are the busiest first, and of hot experts.
//
// Everything is pure: no clock, no goroutine, and the same plan for the same arguments on every machine,
// whatever the order of the workers.
package place

import (
	"cmp"
	"slices"
	"time"
)

// Model is what of a model matters here.
type Model struct {
	Layers, Experts int // routed experts of each layer
	TopK            int // picks a row; 1 when 0
	// ExpertBytes is the memory of one expert, by layer. Where it is too short its last entry goes on.
	ExpertBytes []int64
	// RowBytes and PartialBytes are what a row and its answer weigh on the wire.
	RowBytes, PartialBytes float64
	// Load is what share of a layer's picks each expert gets, by layer and expert. It is scaled, so
	// counts will do; nil, or a layer without any, means that all are alike.
	Load [][]float64
}

// Backbone is the machine that computes everything but the experts.
type Backbone struct {
	Batch     int           // rows of a micro-batch; 512 when 0
	Layer     time.Duration // what it computes itself of one layer, for one micro-batch
	Up, Down  float64       // bytes a second that it sends and receives, to all workers together; 0: no bound
	Sequences int           // that have room in its memory; 0: no bound
	Flights   int           // the most micro-batches under way at once; 0: no bound

	Memory int64   // for experts of its own; it takes what no worker has room for
	Rows   float64 // expert-rows a second that it computes
	Home   int     // layers at either end that it keeps to itself, as far as its memory goes

	Copies int // how many workers hold a layer where memory allows; 2 when 0
}

// Worker is a machine that may hold experts.
type Worker struct {
	Name   string
	Memory int64         // bytes; a plan fills four fifths of it at most
	Rows   float64       // expert-rows a second; 0: not measured yet, taken as the middle of the others
	RTT    time.Duration //
	Up     float64       // bytes a second from the worker; 0: no bound
	Down   float64       // bytes a second to the worker; 0: no bound
	Held   []Range       // in force: what it answers for now
	Cached []Range       // on its disk: what it need not fetch
}

// Range is the experts from Lo up to and without Hi of one layer.
type Range struct {
	Layer int `json:"layer"`
	Lo    int `json:"lo"`
	Hi    int `json:"hi"`
}

// Plan says who holds what.
type Plan struct {
	Workers  []WorkerPlan `json:"workers"`            // in the order of the workers that Make was given
	Backbone []Range      `json:"backbone,omitempty"` // what the backbone computes itself
	Missing  []Range      `json:"missing,omitempty"`  // what nobody has memory for
	Forecast Forecast     `json:"forecast"`
}

// WorkerPlan is the part of one worker.
type WorkerPlan struct {
	Name   string  `json:"name"`
	Ranges []Range `json:"ranges,omitempty"` // ascending, none touches the next
	Bytes  int64   `json:"bytes"`
	Fetch  int64   `json:"fetch"` // of Bytes, what it neither holds nor has cached
	Used   bool    `json:"used"`
	Slows  bool    `json:"-"`    // it is not used, because more comes out without it
	Why    string  `json:"why"`  // it is used so, or not; for people
	Busy   float64 `json:"busy"` // share of the time that its slowest part works: compute, up or down
}

// Fill is how much of a worker's memory a plan fills, in fifths: the rest is for rows and answers.
const (
	fillFifths = 4
	allFifths  = 5
)

// worthMoving is how much more must come out for what is held to be moved or a worker to be left out.
const worthMoving = 1.05

// Make places the experts of a model. Numbers that make no sense, such as memory below zero, count as
// zero, and ranges that the model does not have as nothing.
func Make(m Model, b Backbone, ws []Worker) Plan {
	m, b = m.normal(), b.normal()
	order, sites := newSites(&m, ws)
	best := settle(&m, &b, sites)
	best = spare(&m, &b, sites, best)
	return best.plan(order)
}

// newSites returns the workers in an order that does not depend on that of the arguments: site i is worker
// order[i].
func newSites(m *Model, ws []Worker) (order []int, sites []site) {
	order = make([]int, len(ws))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return compare(&ws[x], &ws[y]) })
	sites = make([]site, len(ws))
	for i, at := range order {
		sites[i] = newSite(m, ws[at])
	}
	guessRows(sites)
	return order, sites
}

// settle weighs keeping all that is held against spreading the load anew.
func settle(m *Model, b *Backbone, sites []site) *layout {
	keep := fill(m, b, sites, false)
	if move := fill(m, b, sites, true); move.better(keep) {
		return move
	}
	return keep
}

// spare leaves out workers without which more would come out, the slowest first.
func spare(m *Model, b *Backbone, sites []site, best *layout) *layout {
	slow := make([]int, len(sites))
	for i := range slow {
		slow[i] = i
	}
	slices.SortStableFunc(slow, func(x, y int) int { return cmp.Compare(best.lag(y), best.lag(x)) })
	sites = slices.Clone(sites)
	for _, i := range slow {
		if !best.owns(i) {
			continue
		}
		without := slices.Clone(sites)
		without[i].idle = true
		next := settle(m, b, without)
		if !next.better(best) {
			return best
		}
		next.spared = append(slices.Clone(best.spared), spared{i, best.forecast.Tokens, next.forecast.Tokens})
		best, sites = next, without
	}
	return best
}

func (m Model) normal() Model {
	m.Layers, m.Experts, m.TopK = max(0, m.Layers), max(0, m.Experts), max(1, m.TopK)
	bytes := make([]int64, m.Layers)
	for l := range bytes {
		if n := len(m.ExpertBytes); n > 0 {
			bytes[l] = max(0, m.ExpertBytes[min(l, n-1)])
		}
	}
	m.ExpertBytes = bytes
	m.RowBytes, m.PartialBytes = sane(m.RowBytes), sane(m.PartialBytes)
	load := make([][]float64, m.Layers)
	for l := range load {
		load[l] = make([]float64, m.Experts)
		sum := 0.0
		for e := range load[l] {
			if l < len(m.Load) && e < len(m.Load[l]) {
				load[l][e] = sane(m.Load[l][e])
			}
			sum += load[l][e]
		}
		for e := range load[l] {
			if sum > 0 {
				load[l][e] /= sum
			} else {
				load[l][e] = 1 / float64(m.Experts)
			}
		}
	}
	m.Load = load
	return m
}

// Bytes is the memory of all experts.
func (m Model) Bytes() int64 {
	sum := int64(0)
	for _, n := range m.normal().ExpertBytes {
		sum += n * int64(m.Experts)
	}
	return sum
}

// DefaultBatch is the rows of a micro-batch unless told otherwise.
const DefaultBatch = 512

func (b Backbone) normal() Backbone {
	if b.Batch <= 0 {
		b.Batch = DefaultBatch
	}
	if b.Copies <= 0 {
		b.Copies = 2
	}
	b.Layer, b.Memory, b.Home = max(0, b.Layer), max(0, b.Memory), max(0, b.Home)
	b.Up, b.Down, b.Rows = sane(b.Up), sane(b.Down), sane(b.Rows)
	b.Sequences, b.Flights = max(0, b.Sequences), max(0, b.Flights)
	if b.Sequences > 0 {
		b.Batch = min(b.Batch, b.Sequences)
	}
	return b
}

// most bounds what is computed with; no machine comes near it.
const most = 1e18

// sane returns x, or 0 where it is no number of 0 or more.
func sane(x float64) float64 {
	if !(x > 0) {
		return 0
	}
	return min(x, most)
}

// compare orders workers by all that they are, names first.
func compare(x, y *Worker) int {
	return cmp.Or(
		cmp.Compare(x.Name, y.Name), cmp.Compare(y.Memory, x.Memory), cmp.Compare(y.Rows, x.Rows),
		cmp.Compare(x.RTT, y.RTT), cmp.Compare(y.Up, x.Up), cmp.Compare(y.Down, x.Down),
		slices.CompareFunc(x.Held, y.Held, compareRanges), slices.CompareFunc(x.Cached, y.Cached, compareRanges),
	)
}

func compareRanges(x, y Range) int {
	return cmp.Or(cmp.Compare(x.Layer, y.Layer), cmp.Compare(x.Lo, y.Lo), cmp.Compare(x.Hi, y.Hi))
}
