package batcher

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Waterfall adds up calls: where the time of the steps went, and for whom they waited. It is shown every
// call, as a Dispatcher's Trace, and is safe for concurrent use.
type Waterfall struct {
	mu   sync.Mutex // guards the rest
	sum  map[string]*Where
	took time.Duration
	n    int64
}

// Where is what one executor did in the calls of a Waterfall.
type Where struct {
	To         string        `json:"to"`
	Dispatches int64         `json:"dispatches"`
	Rows       int64         `json:"rows"`
	Late       int64         `json:"late"`   // beaten or given up
	Failed     int64         `json:"failed"` // of any other reason
	Times                    // added up
	Add        time.Duration `json:"add_ns"`
	Took       time.Duration `json:"took_ns"`
	Last       int64         `json:"last"`   // calls that it ended as the last
	Lag        time.Duration `json:"lag_ns"` // by how much, added up: what the others waited for it
}

// maxWhere bounds the executors that are told apart.
const maxWhere = 1 << 12

// Call adds a call.
func (w *Waterfall) Call(c *Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sum == nil {
		w.sum = map[string]*Where{}
	}
	w.n++
	w.took += c.Took
	for i := range c.Spans {
		s := &c.Spans[i]
		x := w.of(s.To)
		x.Dispatches++
		switch s.Result {
		case answered.String():
			x.Rows += int64(s.Rows)
		case beaten.String(), late.String():
			x.Late++
		default:
			x.Failed++
		}
		x.Lane, x.Out, x.Work, x.Back = x.Lane+s.Lane, x.Out+s.Out, x.Work+s.Work, x.Back+s.Back
		x.Add, x.Took = x.Add+s.Add, x.Took+s.Took
	}
	if c.Straggler != "" {
		x := w.of(c.Straggler)
		x.Last++
		x.Lag += c.Lag
	}
}

// of returns the line of an executor; when there are too many, a common one. w.mu is held.
func (w *Waterfall) of(name string) *Where {
	if w.sum[name] == nil && len(w.sum) >= maxWhere {
		name = "others"
	}
	x := w.sum[name]
	if x == nil {
		x = &Where{To: name}
		w.sum[name] = x
	}
	return x
}

// Take returns the lines since the last Take, those first for whom the others waited longest, with the
// number of calls and how long they took together, and begins anew.
func (w *Waterfall) Take() (lines []Where, calls int64, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.sum {
		lines = append(lines, *x)
	}
	slices.SortFunc(lines, func(a, b Where) int {
		return cmp.Or(cmp.Compare(b.Lag, a.Lag), cmp.Compare(a.To, b.To))
	})
	calls, took = w.n, w.took
	w.sum, w.n, w.took = nil, 0, 0
	return lines, calls, took
}
