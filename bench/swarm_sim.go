package bench

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"kvasir/batcher"
	"kvasir/batcher/place"
	"kvasir/internal/moe"
)

// event is something that happens at a moment.
type event struct {
	at  time.Duration
	seq int // events of one moment happen in the order in which they were made
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	x := old[len(old)-1]
	*e = old[:len(old)-1]
	return x
}

// server does one thing after the other.
type server struct {
	free time.Duration // when all that was begun is done
	busy time.Duration // within the time that counts
}

// serve returns when something is done that comes now and takes so long.
func (v *server) serve(x *sim, took time.Duration) time.Duration {
	begin := max(x.now, v.free)
	v.free = begin + took
	v.busy += max(0, min(v.free, x.until)-max(begin, x.from))
	return v.free
}

// simWorker is a worker and the lane before it.
type simWorker struct {
	place.Worker
	call     time.Duration // of its executor for each dispatch
	set      *batcher.Set
	member   *batcher.Member // nil: it is away
	life     int             // counts its comings
	queue    *batcher.Queue
	open     []*simFlight // dispatches under way, in the order in which they were sent
	down, up server
	compute  server
}

// simFlight is a dispatch of a lane: rows of parts, perhaps of several.
type simFlight struct {
	pieces      []batcher.Queued
	rows, picks int
}

// simPart is a member's share of a call.
type simPart struct {
	c     *simCall
	d     batcher.Dispatched
	to    *simWorker
	began time.Duration
	lane  time.Duration // that it waited before it was sent
	left  int           // rows without an answer
	over  bool
	tried []*batcher.Member
}

// simCall is a layer of a micro-batch at the experts.
type simCall struct {
	m      *micro
	began  time.Duration
	left   int // parts without an answer
	spans  []batcher.Span
	called batcher.Call
}

// micro is a micro-batch under way.
type micro struct{ layer int }

// simWaiting is picks that nobody holds at present.
type simWaiting struct {
	c     *simCall
	batch *moe.Batch
	since time.Duration
}

// sim is a simulation under way. One goroutine owns it.
type sim struct {
	s     Swarm
	m     *place.Model
	rng   *rand.Rand
	epoch time.Time
	now   time.Duration
	seq   int
	queue events

	from, until time.Duration // what counts

	dispatcher *batcher.Dispatcher
	rehearsal  *batcher.Rehearsal
	pilot      batcher.Pilot
	workers    []*simWorker
	byMember   map[*batcher.Member]*simWorker
	backbone   server
	batches    [][]*moe.Batch // by layer
	waiting    []simWaiting

	target, live int // micro-batches
	err          error
	counts       simCounts
}

// simCounts is what happened in the time that counts.
type simCounts struct {
	rows       float64 // that came through a layer
	calls      int
	dispatches int
	lost       int // rows of dispatches whose worker left
	left       int // workers
	waited     time.Duration
	light      time.Duration // round trips of the last answer of each call
	took       time.Duration // of calls
	out, back  float64
	flights    float64 // sum over calls
}

// batchesDrawn is how many batches of a layer are drawn, and used again and again.
const batchesDrawn = 8

// errAway: the worker left with the dispatch.
var errAway = errors.New("bench: the worker has left")

func newSim(s Swarm, m *place.Model, workers []place.Worker, plan *place.Plan, rng *rand.Rand) (*sim, error) {
	x := &sim{
		s: s, m: m, rng: rng, epoch: time.Unix(1_700_000_000, 0), from: s.Simulate / 3, until: s.Simulate,
		dispatcher: batcher.NewDispatcher(batcher.Options{}), byMember: map[*batcher.Member]*simWorker{},
	}
	x.rehearsal = batcher.NewRehearsal(x.dispatcher)
	for i, w := range workers {
		v := &simWorker{Worker: w, call: s.Speed.Call, set: &batcher.Set{}}
		for _, r := range plan.Workers[i].Ranges {
			if err := v.set.Add(r.Layer, r.Lo, r.Hi); err != nil {
				return nil, err
			}
		}
		x.workers = append(x.workers, v)
	}
	x.target = plan.Forecast.Flights
	if s.Flights > 0 {
		x.target = s.Flights
	}
	return x, x.draw()
}

// draw makes batches of random picks. Their rows have one value: what travels is counted, not made.
func (x *sim) draw() error {
	weight := make([]float32, x.s.TopK)
	for i := range weight {
		weight[i] = 1
	}
	pick := make([]uint16, x.s.TopK)
	for l := range x.s.Layers {
		var list []*moe.Batch
		for range batchesDrawn {
			b, err := moe.NewBatch(moe.Shape{Layer: l, Hidden: 1}, x.s.Batch, x.s.Batch*x.s.TopK)
			if err != nil {
				return err
			}
			for range x.s.Batch {
				x.distinct(pick)
				b.Grow(pick, weight)
			}
			list = append(list, b)
		}
		x.batches = append(x.batches, list)
	}
	return nil
}

// distinct fills pick with different experts, all equally likely.
func (x *sim) distinct(pick []uint16) {
	for i := range pick {
		for again := true; again; {
			pick[i] = uint16(x.rng.IntN(x.s.Experts))
			again = false
			for _, e := range pick[:i] {
				again = again || e == pick[i]
			}
		}
	}
}

func (x *sim) clock() time.Time { return x.epoch.Add(x.now) }

func (x *sim) at(t time.Duration, do func()) {
	x.seq++
	heap.Push(&x.queue, event{max(t, x.now), x.seq, do})
}

// counting reports whether what happens now counts.
func (x *sim) counting() bool { return x.now >= x.from }

func (x *sim) fail(err error) {
	if x.err == nil {
		x.err = err
	}
}

// run has events happen until the time is over.
func (x *sim) run(ctx context.Context, say func(float64, string)) error {
	for _, w := range x.workers {
		x.come(w)
	}
	most := min(max(1, x.target), flightsMost)
	x.target = most
	for i := range most { // as if they had been under way for long
		x.live++
		x.own(&micro{layer: i * x.s.Layers / most})
	}
	for n := 0; len(x.queue) > 0 && x.err == nil; n++ {
		if n%1024 == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			say(float64(x.now)/float64(x.until), fmt.Sprintf("simulating, %.0f s", x.now.Seconds()))
		}
		e := heap.Pop(&x.queue).(event)
		if e.at >= x.until {
			x.now = x.until
			break
		}
		x.now = e.at
		e.do()
	}
	return x.err
}

// own has the backbone compute its part of a layer, and then asks for the experts.
func (x *sim) own(m *micro) {
	x.at(x.backbone.serve(x, x.s.Own), func() {
		x.pilot.Own(m.layer, x.s.Own)
		c := &simCall{m: m, began: x.now}
		c.called = batcher.Call{Layer: m.layer, Rows: x.s.Batch, Start: x.clock()}
		list := x.batches[m.layer]
		x.dispatch(c, list[x.rng.IntN(len(list))], nil)
	})
}

// dispatch divides a batch among the members.
func (x *sim) dispatch(c *simCall, b *moe.Batch, tried []*batcher.Member) {
	parts, err := x.rehearsal.Dispatch(x.clock(), b, tried)
	if err != nil {
		x.fail(err)
		return
	}
	c.left += len(parts)
	for i := range parts {
		d := parts[i]
		if d.To == nil {
			x.waiting = append(x.waiting, simWaiting{c, d.Batch, x.now})
			continue
		}
		w := x.byMember[d.To]
		p := &simPart{c: c, d: d, to: w, began: x.now, left: d.Batch.Rows, tried: append(tried[:len(tried):len(tried)], d.To)}
		if err := w.queue.Offer(x.clock(), d.Batch, p); err != nil {
			x.fail(err)
			return
		}
		x.send(w)
	}
}

// send has a lane send what is due, as far as its window allows.
func (x *sim) send(w *simWorker) {
	for len(w.open) < batcher.DefaultWindow {
		f := &simFlight{}
		f.pieces = w.queue.Next(x.clock(), nil)
		if len(f.pieces) == 0 {
			return
		}
		for _, q := range f.pieces {
			f.rows, f.picks = f.rows+q.Rows, f.picks+q.Picks
			if p := q.Call.(*simPart); p.left == p.d.Batch.Rows {
				p.lane = x.now - p.began
			}
		}
		w.open = append(w.open, f)
		x.fly(w, f)
	}
}

// seconds that bytes take at a rate; 0 is no limit.
func seconds(bytes, rate float64) time.Duration {
	if rate == 0 {
		return 0
	}
	return time.Duration(bytes / rate * float64(time.Second))
}

// fly takes a dispatch to the worker and its answer back.
func (x *sim) fly(w *simWorker, f *simFlight) {
	life, half := w.life, w.RTT/2
	out := float64(f.rows)*x.m.RowBytes + simPickBytes*float64(f.picks)
	back := float64(f.rows) * x.m.PartialBytes
	here := func(do func()) func() {
		return func() {
			if w.life == life { // else it left, and the dispatch was ended
				do()
			}
		}
	}
	sent := w.down.serve(x, seconds(out, w.Down))
	if x.counting() {
		x.counts.dispatches++
		x.counts.out += out
		x.counts.back += back
	}
	x.at(sent+half, here(func() {
		work := w.call + time.Duration(float64(f.picks)/w.Rows*float64(time.Second))
		x.at(w.compute.serve(x, work), here(func() {
			x.at(w.up.serve(x, seconds(back, w.Up))+half, here(func() { x.land(w, f) }))
		}))
	}))
}

// land gives the answer of a dispatch to its parts.
func (x *sim) land(w *simWorker, f *simFlight) {
	w.open = slices.DeleteFunc(w.open, func(o *simFlight) bool { return o == f })
	for _, q := range f.pieces {
		p := q.Call.(*simPart)
		if p.left -= q.Rows; p.left == 0 && !p.over {
			x.answered(p)
		}
	}
	x.send(w)
}

// answered ends a part, and its call with the last.
func (x *sim) answered(p *simPart) {
	p.over = true
	took := x.now - p.began
	p.d.End(took, nil)
	c := p.c
	work := p.to.call + time.Duration(float64(len(p.d.Batch.Expert))/p.to.Rows*float64(time.Second))
	half := p.to.RTT / 2
	c.spans = append(c.spans, batcher.Span{
		To: p.to.Name, Rows: p.d.Batch.Rows, Picks: len(p.d.Batch.Expert), At: p.began - c.began, Took: took,
		Times:  batcher.Times{Lane: p.lane, Out: half, Work: work, Back: half},
		Result: "answered",
	})
	if c.left--; c.left > 0 {
		return
	}
	c.called.Spans, c.called.Took, c.called.Straggler = c.spans, x.now-c.began, p.to.Name
	x.pilot.Call(&c.called)
	if x.counting() {
		x.counts.calls++
		x.counts.rows += float64(x.s.Batch)
		x.counts.light += p.to.RTT
		x.counts.took += c.called.Took
		x.counts.flights += float64(x.live)
	}
	x.next(c.m)
}

// next takes a micro-batch to its next layer. At the end of a step others may join it, or it is the last.
func (x *sim) next(m *micro) {
	if m.layer++; m.layer == x.s.Layers {
		m.layer = 0
		if x.s.Flights == 0 {
			x.target = x.pilot.Flights(x.s.Batch, 0, flightsMost)
		}
		if x.live > x.target {
			x.live--
			return
		}
		if x.live < x.target {
			x.live++
			x.own(&micro{})
		}
	}
	x.own(m)
}

// backAfter is how long a worker is gone that has left.
const backAfter = time.Minute

// come lets a worker join with what it holds, and what waits be asked for again.
func (x *sim) come(w *simWorker) {
	if w.set.Len() == 0 {
		return // the plan has no use for it
	}
	q, err := batcher.NewQueue(batcher.Limits{QueueRows: 1 << 30, QueueBytes: 1 << 40})
	if err != nil {
		x.fail(err)
		return
	}
	w.queue, w.member = q, x.dispatcher.Join(w.Name, nil, w.set)
	w.life++
	w.down.free, w.up.free, w.compute.free = x.now, x.now, x.now
	x.byMember[w.member] = w
	if x.s.Churn > 0 {
		x.at(x.now+time.Duration(x.rng.ExpFloat64()/x.s.Churn*float64(time.Hour)), func() { x.leave(w) })
	}
	old := x.waiting
	x.waiting = nil
	for _, p := range old {
		if x.counting() {
			x.counts.waited += x.now - max(p.since, x.from)
		}
		p.c.left--
		x.dispatch(p.c, p.batch, nil)
	}
}

// leave takes a worker away. What it had under way and before it is asked of others.
func (x *sim) leave(w *simWorker) {
	m := w.member
	w.life++
	w.member = nil
	m.Leave()
	delete(x.byMember, m)
	if x.counting() {
		x.counts.left++
	}
	var parts []*simPart
	lost := func(list []batcher.Queued) {
		for _, q := range list {
			if p := q.Call.(*simPart); !p.over {
				p.over = true
				parts = append(parts, p)
			}
		}
	}
	for _, f := range w.open {
		if x.counting() {
			x.counts.lost += f.rows
		}
		lost(f.pieces)
	}
	w.open = nil
	for {
		list := w.queue.Next(x.clock(), nil)
		if len(list) == 0 {
			break
		}
		lost(list)
	}
	x.at(x.now+backAfter, func() { x.come(w) })
	for _, p := range parts {
		p.d.End(x.now-p.began, errAway)
		p.c.left--
		x.dispatch(p.c, p.d.Batch, p.tried)
	}
}
