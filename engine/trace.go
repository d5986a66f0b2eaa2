package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"kvasir/batcher"
)

// Trace is where the time of steps went: a step is one micro-batch's way through all layers.
type Trace struct {
	Model   string              `json:"model"`
	Steps   int64               `json:"steps"`
	Rows    float64             `json:"rows_per_step"`
	Step    TraceParts          `json:"step"` // mean
	Layers  []batcher.StepLayer `json:"layers"`
	Workers []batcher.Where     `json:"workers"`

	// Straggler is whom the steps waited for longest while nobody else was to come, for Waits of each.
	Straggler string        `json:"straggler,omitempty"`
	Waits     time.Duration `json:"waits_ns,omitempty"`
	Bound     string        `json:"bound,omitempty"` // the largest part: backbone, waiting, wire or worker
}

// TraceParts are the parts of a step. They come to Took.
type TraceParts struct {
	Took     time.Duration `json:"took_ns"`
	Backbone time.Duration `json:"backbone_ns"` // what it computes itself, and combining the answers
	Waiting  time.Duration `json:"waiting_ns"`  // in lanes, and until the right one was asked
	Out      time.Duration `json:"out_ns"`      // on the wire to workers
	Worker   time.Duration `json:"worker_ns"`
	Back     time.Duration `json:"back_ns"` // on the wire from workers
}

// Parts of a step, as Trace.Bound names them.
const (
	BoundBackbone = "backbone"
	BoundWaiting  = "waiting"
	BoundWire     = "wire"
	BoundWorker   = "worker"
)

// newTrace makes a trace of steps. elapsed is what they took together where they came one after the other; 0:
// not known.
func newTrace(model string, s *batcher.Steps, elapsed time.Duration) Trace {
	t := Trace{Model: model}
	t.Layers, t.Workers = s.Sum()
	waits := map[string]time.Duration{}
	rows, calls := int64(0), int64(0)
	for i := range t.Layers {
		l := &t.Layers[i]
		if l.Calls == 0 {
			continue
		}
		t.Steps = max(t.Steps, l.Calls)
		rows, calls = rows+l.Rows, calls+l.Calls
		n := time.Duration(l.Calls)
		t.Step.Took += (l.Own + l.Took) / n
		t.Step.Backbone += (l.Own + l.Add + l.Rest) / n
		t.Step.Waiting += (l.Before + l.Lane) / n
		t.Step.Out += l.Out / n
		t.Step.Worker += (l.Work + l.Other) / n
		t.Step.Back += l.Back / n
		waits[l.Straggler] += l.Lag / n
	}
	if calls > 0 {
		t.Rows = float64(rows) / float64(calls)
	}
	if t.Steps > 0 { // embedding and head are the backbone's too
		if rest := elapsed/time.Duration(t.Steps) - t.Step.Took; rest > 0 {
			t.Step.Took += rest
			t.Step.Backbone += rest
		}
	}
	for who, d := range waits {
		if d > t.Waits || d == t.Waits && who < t.Straggler {
			t.Straggler, t.Waits = who, d
		}
	}
	t.Bound = t.Step.bound()
	return t
}

// bound is the largest part.
func (p *TraceParts) bound() string {
	parts := []struct {
		name string
		d    time.Duration
	}{
		{BoundBackbone, p.Backbone}, {BoundWaiting, p.Waiting}, {BoundWire, p.Out + p.Back}, {BoundWorker, p.Worker},
	}
	best := slices.MaxFunc(parts, func(a, b struct {
		name string
		d    time.Duration
	}) int {
		return cmp.Compare(a.d, b.d)
	})
	if best.d == 0 {
		return ""
	}
	return best.name
}

// TraceConfig is for Engine.Trace.
type TraceConfig struct {
	DemoConfig
	Batch int // sequences that go through the layers together; 1 when 0
}

// Trace generates with every routed expert on workers, in a Loopback swarm without a fallback, and says where
// the time of each token went. Neither the prompt nor the first token counts.
func (e *Engine) Trace(ctx context.Context, c TraceConfig) (t Trace, err error) {
	c.Choices = max(1, c.Batch)
	if _, _, err := e.encode(c.Request); err != nil { // before anything is started
		return t, err
	}
	home, err := os.MkdirTemp("", "kvasir-trace-")
	if err != nil {
		return t, err
	}
	defer func() { _ = os.RemoveAll(home) }() // it is the system's temporary folder
	start, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var taps tap
	lc := LoopbackConfig{Model: e.Model(), Workers: c.Workers, Home: home, Dial: c.Dial, Wrap: c.Wrap, Trace: taps.call}
	end, err := e.lend(&lc)
	if err != nil {
		return t, err
	}
	defer end()
	l, err := NewLoopback(start, lc)
	if err != nil {
		return t, err
	}
	defer l.Close()
	p := newPace(l.Swarm.Experts(), &batcher.Pilot{})
	p.tap = &taps
	far, err := e.With(p, 1)
	if err != nil {
		return t, err
	}
	defer func() { _ = far.Close() }() // the file is e's
	steps, began := batcher.NewSteps(0), time.Time{}
	_, err = far.Generate(ctx, c.Request, func(Piece) error {
		if began.IsZero() {
			began = time.Now()
			taps.to.Store(steps)
		}
		return nil
	})
	elapsed := time.Since(began)
	taps.to.Store(nil)
	if err != nil {
		return t, err
	}
	return newTrace(e.Name(), steps, elapsed), nil
}

// tap shows calls to a trace while somebody wants one.
type tap struct{ to atomic.Pointer[batcher.Steps] }

func (t *tap) call(c *batcher.Call) {
	if s := t.to.Load(); s != nil {
		s.Call(c)
	}
}

func (t *tap) own(layer int, took time.Duration) {
	if t == nil {
		return
	}
	if s := t.to.Load(); s != nil {
		s.Own(layer, took)
	}
}

// Errors of Backbone.Trace.
var (
	// ErrTracing: another trace is under way.
	ErrTracing = errors.New("another trace is under way; try again in a moment")
	// ErrAlone: there are no hubs, so that no worker computes anything.
	ErrAlone = errors.New("no worker takes part: all experts are computed on this machine")
)

// Trace says where the time of the next steps goes. It waits for so many, or until ctx ends, and says then what
// it has seen. One trace is under way at a time.
func (b *Backbone) Trace(ctx context.Context, steps int) (Trace, error) {
	if b.swarm == nil {
		return Trace{}, ErrAlone
	}
	s := batcher.NewSteps(steps)
	if !b.taps.to.CompareAndSwap(nil, s) {
		return Trace{}, ErrTracing
	}
	select {
	case <-s.Done():
	case <-ctx.Done():
	}
	b.taps.to.Store(nil)
	return newTrace(b.local.Name(), s, 0), nil
}

// TracePath is where a serving backbone answers with a Trace.
const TracePath = "/debug/trace"

// Bounds of a trace that is asked for over HTTP.
const (
	DefaultTraceSteps = 32
	MaxTraceSteps     = 4096
	DefaultTraceWait  = 10 * time.Second
	MaxTraceWait      = time.Minute
)

// traceRequest reads ?steps=N&wait=DURATION.
func traceRequest(r *http.Request) (steps int, wait time.Duration, err error) {
	steps, wait = DefaultTraceSteps, DefaultTraceWait
	if text := r.FormValue("steps"); text != "" {
		if steps, err = strconv.Atoi(text); err != nil || steps < 1 || steps > MaxTraceSteps {
			return 0, 0, errors.New("steps: want a whole number from 1 to " + strconv.Itoa(MaxTraceSteps))
		}
	}
	if text := r.FormValue("wait"); text != "" {
		if wait, err = time.ParseDuration(text); err != nil || wait <= 0 || wait > MaxTraceWait {
			return 0, 0, errors.New("wait: want a time up to " + MaxTraceWait.String() + ", such as 10s")
		}
	}
	return steps, wait, nil
}

// ServeTrace answers GET /debug/trace.
func (b *Backbone) ServeTrace(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "want GET", http.StatusMethodNotAllowed)
		return
	}
	steps, wait, err := traceRequest(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	t, err := b.Trace(ctx, steps)
	switch {
	case errors.Is(err, ErrAlone):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusConflict)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(t) // who asked may have left
	}
}
