package batcher

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Steps adds up calls by layer, each along the way of its straggler: the parts of a layer come to the time
// that its calls took. It is shown every call, as a Dispatcher's Trace, and is safe for concurrent use.
type Steps struct {
	want int64
	done chan struct{} // closed when want steps have passed
	who  Waterfall

	mu     sync.Mutex // guards the rest
	layers map[int]*stepLayer
	full   bool
}

// StepLayer is what one layer took. All times are of all its calls together.
type StepLayer struct {
	Layer  int           `json:"layer"`
	Calls  int64         `json:"calls"`
	Rows   int64         `json:"rows"`
	Own    time.Duration `json:"own_ns"`    // of the backbone, before the calls
	Took   time.Duration `json:"took_ns"`   // what follows, up to Rest
	Before time.Duration `json:"before_ns"` // until the straggler was asked: dividing, and asking others in vain
	Times                // of the straggler
	Other  time.Duration `json:"other_ns"` // of its dispatch, that its executor does not know of
	Add    time.Duration `json:"add_ns"`   // adding its answer into the sums
	Rest   time.Duration `json:"rest_ns"`  // after that

	Straggler string        `json:"straggler,omitempty"` // for whom was waited longest
	Lag       time.Duration `json:"lag_ns,omitempty"`    // that the others, or the call, waited for it alone
}

type stepLayer struct {
	StepLayer
	owned int64 // calls of which Own knows
	lags  map[string]time.Duration
}

// NewSteps returns Steps whose Done is closed after want steps; 0: never.
func NewSteps(want int) *Steps {
	return &Steps{want: int64(want), done: make(chan struct{}), layers: map[int]*stepLayer{}}
}

// Done is closed when as many steps have passed as were wanted.
func (s *Steps) Done() <-chan struct{} { return s.done }

// layer returns the line of a layer, nil if there are too many. s.mu is held.
func (s *Steps) layer(n int) *stepLayer {
	l := s.layers[n]
	if l == nil && len(s.layers) < maxPilotLayers {
		l = &stepLayer{StepLayer: StepLayer{Layer: n}, lags: map[string]time.Duration{}}
		s.layers[n] = l
	}
	return l
}

// Own notes what the backbone took itself before a call.
func (s *Steps) Own(layer int, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.layer(layer); l != nil && !s.full {
		l.Own += took
		l.owned++
	}
}

// Call adds a call. Those that failed, and those after Done, are left out.
func (s *Steps) Call(c *Call) {
	if c.Err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.layer(c.Layer)
	if l == nil || s.full {
		return
	}
	s.who.Call(c)
	l.Calls++
	l.Rows += int64(c.Rows)
	l.Took += c.Took
	if x := straggler(c); x != nil {
		l.Before += x.At
		l.Lane, l.Out, l.Work, l.Back = l.Lane+x.Lane, l.Out+x.Out, l.Work+x.Work, l.Back+x.Back
		l.Other += x.Took - x.Lane - x.Out - x.Work - x.Back
		l.Add += x.Add
		l.Rest += c.Took - x.End()
		if who := x.waitedFor(); len(l.lags) < maxWhere || l.lags[who] > 0 {
			l.lags[who] += c.Lag
		}
	} else {
		l.Rest += c.Took
	}
	if s.want > 0 && l.Calls > s.want { // so the others have as many
		s.full = true
		close(s.done)
	}
}

// straggler returns the answer that came last; nil if there was none.
func straggler(c *Call) (last *Span) {
	for i := range c.Spans {
		if s := &c.Spans[i]; s.Result == answered.String() && (last == nil || s.End() > last.End()) {
			last = s
		}
	}
	return last
}

// Sum returns the layers, ascending, and what each executor did, those first for whom the others waited
// longest. It is called once, at the end.
func (s *Steps) Sum() (layers []StepLayer, who []Where) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.layers {
		if l.owned > 0 { // where Own does not know of all calls, as of those that know
			l.Own = time.Duration(float64(l.Own) / float64(l.owned) * float64(l.Calls))
		}
		for to, lag := range l.lags {
			if l.Straggler == "" || lag > l.Lag || lag == l.Lag && to < l.Straggler {
				l.Straggler, l.Lag = to, lag
			}
		}
		layers = append(layers, l.StepLayer)
	}
	slices.SortFunc(layers, func(a, b StepLayer) int { return cmp.Compare(a.Layer, b.Layer) })
	who, _, _ = s.who.Take()
	return layers, who
}
