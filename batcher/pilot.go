package batcher

import (
	"sync"
	"time"

	"kvasir/batcher/place"
)

// Pilot says how many micro-batches should be under way, from what a swarm does at present: as many as
// hide all waiting, and no more than there is room for. It is shown every call, as a Dispatcher's Trace,
// and what the backbone takes itself. It is safe for concurrent use.
//
// A micro-batch alone would walk through the layers in the sum of what the backbone takes and what it is
// away. While it is away others use the backbone and the workers; the busiest of all these sets the pace,
// and 1 + away / busiest micro-batches keep it busy (place.Flights). What queues behind others takes
// longer than it does alone, so the shortest of the latest times count.
type Pilot struct {
	mu      sync.Mutex // guards the rest
	layers  map[int]*pilotLayer
	members map[pilotKey]*window // time in one worker for one layer
}

type pilotKey struct {
	layer int
	to    string
}

type pilotLayer struct {
	own, far window
	calls    int
}

// window is the latest times of something.
type window struct {
	took [pilotWindow]time.Duration
	n    int   // how many there have been
	last int64 // when, in calls of the layer
}

const (
	// pilotWindow is how many calls of a layer are remembered.
	pilotWindow = 16
	// pilotForget is after how many calls of a layer a worker that had none of them is forgotten.
	pilotForget = 64
	// maxPilotLayers bounds what is remembered.
	maxPilotLayers = 1 << 10
)

func (w *window) add(d time.Duration) {
	w.took[w.n%pilotWindow] = d
	w.n++
}

// least is the shortest of the latest times.
func (w *window) least() time.Duration {
	if w.n == 0 {
		return 0
	}
	least := w.took[0]
	for _, d := range w.took[:min(w.n, pilotWindow)] {
		least = min(least, d)
	}
	return least
}

// Own notes what the backbone took itself for one micro-batch in one layer.
func (p *Pilot) Own(layer int, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.layer(layer); l != nil {
		l.own.add(took)
	}
}

// Call notes a call; it is made to be a Dispatcher's Trace, or to be called by it.
func (p *Pilot) Call(c *Call) {
	if c.Err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.layer(c.Layer)
	if l == nil {
		return
	}
	l.calls++
	far, last := c.Took, straggler(c)
	for i := range c.Spans {
		s := &c.Spans[i]
		if s.Result != answered.String() {
			continue
		}
		if s == last {
			far -= s.Lane // it would not have waited alone
		}
		k := pilotKey{c.Layer, s.To}
		w := p.members[k]
		if w == nil {
			w = &window{}
			p.members[k] = w
		}
		work := s.Work
		if s.Times == (Times{}) {
			work = s.Took // an executor that does not say: all of it
		}
		w.add(work)
		w.last = int64(l.calls)
	}
	l.far.add(max(0, far))
}

// layer returns what is known of a layer, nil if there are too many. p.mu is held.
func (p *Pilot) layer(layer int) *pilotLayer {
	if p.layers == nil {
		p.layers, p.members = map[int]*pilotLayer{}, map[pilotKey]*window{}
	}
	l := p.layers[layer]
	if l == nil && len(p.layers) < maxPilotLayers {
		l = &pilotLayer{}
		p.layers[layer] = l
	}
	return l
}

// Flights returns how many micro-batches should be under way: at least 1, and at most most. A micro-batch
// has rows rows, and there is memory for room of them; 0 means any number.
func (p *Pilot) Flights(rows, room, most int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	own, far := 0.0, 0.0
	for _, l := range p.layers {
		own += l.own.least().Seconds()
		far += l.far.least().Seconds()
	}
	busy, busiest := map[string]float64{}, own
	for k, w := range p.members {
		if int64(p.layers[k.layer].calls)-w.last > pilotForget {
			delete(p.members, k)
			continue
		}
		busy[k.to] += w.least().Seconds()
		busiest = max(busiest, busy[k.to])
	}
	n := place.Flights(own, far, busiest)
	if room > 0 && rows > 0 {
		n = min(n, room/rows)
	}
	return max(1, min(n, most))
}
