package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"kvasir/internal/moe"
)

// How lately a token must have gone through a layer for the node to be ready, and how that is found out
// where nobody asks for tokens.
const (
	readyWithin = time.Minute
	probeEvery  = 30 * time.Second
	probeTime   = 10 * time.Second // for one token
)

// pulse notes when rows last went through the experts of each layer. It is the executor before them.
type pulse struct {
	next   moe.Experts
	now    func() time.Time
	layers []beat
}

// beat is what a layer has seen last.
type beat struct {
	answered atomic.Int64 // when, in Unix nanoseconds; 0: never
	failed   atomic.Pointer[fault]
}

// fault is the last failure of a layer.
type fault struct {
	at  time.Time
	err error
}

func newPulse(next moe.Experts, layers int) *pulse {
	return &pulse{next: next, now: time.Now, layers: make([]beat, layers)}
}

// Forward implements moe.Experts.
func (p *pulse) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	layer := b.Layer
	err := p.next.Forward(ctx, b, out)
	if layer < 0 || layer >= len(p.layers) {
		return err
	}
	switch beat := &p.layers[layer]; {
	case err == nil:
		beat.answered.Store(p.now().UnixNano())
	case ctx.Err() == nil:
		beat.failed.Store(&fault{p.now(), err})
	}
	return err
}

// oldest is when the layer that was silent for longest had an answer; zero: one never had.
func (p *pulse) oldest() time.Time {
	var least int64
	for l := range p.layers {
		n := p.layers[l].answered.Load()
		if n == 0 {
			return time.Time{}
		}
		if least == 0 || n < least {
			least = n
		}
	}
	return time.Unix(0, least)
}

// alive reports which layers had an answer lately.
func (p *pulse) alive() []bool {
	list, since := make([]bool, len(p.layers)), p.now().Add(-readyWithin).UnixNano()
	for l := range list {
		list[l] = p.layers[l].answered.Load() > since
	}
	return list
}

// Readiness says whether tokens come through a node.
type Readiness struct {
	Ready   bool           `json:"ready"`
	Why     string         `json:"why,omitempty"`            // it is not
	Layers  []LayerSilent  `json:"failing_layers,omitempty"` // no token went through them in the last minute
	Workers []WorkerFailed `json:"failing_workers,omitempty"`
}

// LayerSilent is a layer without an answer in the last minute.
type LayerSilent struct {
	Layer  int     `json:"layer"`
	Silent float64 `json:"silent_s,omitempty"` // since its last answer; absent: it never had one
	Error  string  `json:"error,omitempty"`    // its last failure since then
}

// WorkerFailed is a worker that is passed over at present. Others may compute what it holds.
type WorkerFailed struct {
	Worker string `json:"worker"`
	Holds  string `json:"holds,omitempty"` // experts of layers, as kvasir plan writes them
}

// watch finds out whether a node is ready. It is safe for concurrent use.
type watch struct {
	p       *pulse
	token   func(ctx context.Context) error // computes one
	workers func() []WorkerFailed           // may be nil
	turn    chan struct{}                   // held by who may probe
	probed  time.Time                       // when last; by the holder of turn
	err     error                           // of that; by the holder of turn
}

func newWatch(p *pulse, token func(context.Context) error, workers func() []WorkerFailed) *watch {
	return &watch{p: p, token: token, workers: workers, turn: make(chan struct{}, 1)}
}

// look computes a token where none was for a while, but not more often than probeEvery, and says how things
// stand.
func (w *watch) look(ctx context.Context) Readiness {
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return w.stand(ctx.Err())
	}
	defer func() { <-w.turn }()
	now := w.p.now()
	idle := now.Sub(w.p.oldest()) >= probeEvery
	if idle && (w.probed.IsZero() || now.Sub(w.probed) >= probeEvery) {
		// One who asks and leaves at once must not make the token fail for all who ask after him.
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), probeTime, fmt.Errorf("a token took more than %v", probeTime))
		w.probed = now
		if w.err = w.token(ctx); w.err != nil && ctx.Err() != nil {
			w.err = context.Cause(ctx)
		}
		cancel()
	}
	return w.stand(w.err)
}

// stand says how things stand. err is that of the last token of our own.
func (w *watch) stand(err error) Readiness {
	r, now := Readiness{Ready: true}, w.p.now()
	for l, ok := range w.p.alive() {
		if ok {
			continue
		}
		s, b := LayerSilent{Layer: l}, &w.p.layers[l]
		last := b.answered.Load()
		if last > 0 {
			s.Silent = now.Sub(time.Unix(0, last)).Seconds()
		}
		if f := b.failed.Load(); f != nil && f.at.UnixNano() > last {
			s.Error = f.err.Error()
		}
		r.Ready = false
		r.Layers = append(r.Layers, s)
	}
	if w.workers != nil {
		r.Workers = w.workers()
	}
	if !r.Ready {
		r.Why = fmt.Sprintf("no token went through %d of %d layers in the last minute", len(r.Layers), len(w.p.layers))
		if err != nil {
			r.Why += ": " + err.Error()
		}
	}
	return r
}

// token computes one token that nobody needs.
func (e *Engine) token(ctx context.Context) error {
	_, err := e.Generate(ctx, Request{Prompt: "Hello", Tokens: 1, Batch: true}, func(Piece) error { return nil })
	return err
}

// failing lists the workers that are passed over at present.
func (s *Swarm) failing() (list []WorkerFailed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.present {
		if w.member.Stats().Down {
			list = append(list, WorkerFailed{w.id, w.held.set().String()})
		}
	}
	return list
}
