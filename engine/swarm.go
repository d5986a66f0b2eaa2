package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"kvasir/batcher"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
	"kvasir/wire"
	"kvasir/wire/link"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

// Placement says what worker number i of n holds. Every worker has the whole model in this form, so a
// placement can change from one moment to the next.
type Placement func(i, n int) *batcher.Set

// ByLayer gives whole layers to workers in turn: a row of a layer then goes to one worker only.
func ByLayer(layers, experts int) Placement {
	return func(i, n int) *batcher.Set {
		s := &batcher.Set{}
		for l := i; l < layers; l += n {
			mustAdd(s, l, 0, experts)
		}
		return s
	}
}

// ByExpert gives each worker the same share of every layer.
func ByExpert(layers, experts int) Placement {
	return func(i, n int) *batcher.Set {
		s := &batcher.Set{}
		if lo, hi := experts*i/n, experts*(i+1)/n; lo < hi {
			for l := range layers {
				mustAdd(s, l, lo, hi)
			}
		}
		return s
	}
}

func mustAdd(s *batcher.Set, layer, lo, hi int) {
	if err := s.Add(layer, lo, hi); err != nil {
		panic("BUG: " + err.Error()) // the model's own numbers are within moe's limits
	}
}

// SwarmConfig is for NewSwarm.
type SwarmConfig struct {
	Key   seal.Key
	Grant seal.Grant // that makes Key a backbone's
	Root  seal.PublicKey
	Hubs  []relay.Target

	Model   worker.Model // what is served; its Experts are not used
	Workers int          // wanted at each hub
	Place   Placement    // nil: ByLayer
	Local   moe.Experts  // computes what no worker answers; nil: calls wait for a worker
	Wait    time.Duration

	Refuse func(seal.Proof) error   // why a worker is not wanted; may be nil
	Joined func(WorkerStats)        // may be nil
	Left   func(WorkerStats, error) // may be nil
	Log    *slog.Logger
	Dialer relay.Dialer
}

// Swarm is the workers of a backbone: it takes those that its hubs offer, gives each its share of the
// experts, and moves the shares when one joins or leaves. Experts computes on all of them.
type Swarm struct {
	c          SwarmConfig
	backbone   *relay.Backbone
	dispatcher *batcher.Dispatcher
	cancel     context.CancelFunc
	wg         sync.WaitGroup
	failed     chan struct{} // closed when no hub can be had any more

	mu      sync.Mutex
	err     error       // why, once failed is closed; under mu
	present []*attached // in the order of joining; under mu
	gone    []WorkerStats
	changed chan struct{}   // closed and replaced when present changes; under mu
	ending  map[string]bool // hubs that drain, until they are back; under mu
}

// attached is a worker with a session.
type attached struct {
	id      string
	key     seal.PublicKey
	hub     string
	drain   context.CancelCauseFunc // sends the worker away
	session *link.Session
	lane    *batcher.Lane
	member  *batcher.Member
}

// WorkerStats is what a worker has done.
type WorkerStats struct {
	ID         string // first characters of its key
	Key        seal.PublicKey
	Session    string
	Dispatches int64
	Rows       int64
	Picks      int64
	BytesOut   uint64 // to the worker, within the inner TLS
	BytesBack  uint64
	RTT        time.Duration
}

// NewSwarm begins to take workers, until Close.
func NewSwarm(c SwarmConfig) (*Swarm, error) {
	if c.Place == nil {
		c.Place = ByLayer(c.Model.Layers, c.Model.PerLayer)
	}
	ctx, end := context.WithCancelCause(context.Background())
	s := &Swarm{
		c: c, cancel: func() { end(errEnding) },
		dispatcher: batcher.NewDispatcher(batcher.Options{Local: c.Local, Wait: c.Wait}),
		failed:     make(chan struct{}),
		changed:    make(chan struct{}),
		ending:     map[string]bool{},
	}
	var err error
	s.backbone, err = relay.NewBackbone(relay.BackboneConfig{
		Key: c.Key, Grant: c.Grant, Root: c.Root, Hubs: c.Hubs,
		Want:   relay.Want{Model: fmt.Sprintf("%x", c.Model.Hash), Workers: c.Workers},
		Refuse: c.Refuse, Drain: s.drain, Online: s.online,
		Log: c.Log, Dialer: c.Dialer,
	})
	if err != nil {
		end(err)
		return nil, err
	}
	s.wg.Go(func() { s.accept(ctx) })
	return s, nil
}

// Experts computes on the workers, and on SwarmConfig.Local what they do not answer.
func (s *Swarm) Experts() moe.Experts { return s.dispatcher }

// accept takes workers until ctx ends.
func (s *Swarm) accept(ctx context.Context) {
	for {
		a, err := s.backbone.Accept(ctx)
		if err != nil {
			s.mu.Lock()
			s.err = err
			s.mu.Unlock()
			close(s.failed)
			return
		}
		s.wg.Go(func() {
			if err := s.attach(ctx, a); err != nil && s.c.Log != nil {
				s.c.Log.Warn("worker did not come in", "worker", a.Worker.Key.Short(), "error", err)
			}
		})
	}
}

// attach runs one worker's session from the beginning to the end.
func (s *Swarm) attach(ctx context.Context, a *relay.Accepted) error {
	inner, err := seal.Server(ctx, a.Conn, seal.ServerConfig{Self: s.c.Key, Root: s.c.Root, Paired: a.Worker})
	if err != nil {
		_ = a.Conn.Close() // the error says more
		return err
	}
	session, err := link.Open(ctx, inner, link.Options{
		Hello: s.c.Model.Hello(), Name: "worker " + a.Worker.Key.Short(), Log: s.c.Log,
	})
	if err != nil {
		return err
	}
	lane, err := batcher.NewLane(session, batcher.Limits{}, 0)
	if err != nil {
		_ = session.Close()
		return err
	}
	ctx, drain := context.WithCancelCause(ctx)
	defer drain(nil)
	w := &attached{id: a.Worker.Key.Short(), key: a.Worker.Key, hub: a.Hub, drain: drain, session: session, lane: lane}
	s.join(w)
	left := make(chan struct{}) // closed when the worker's counts are final
	var reports sync.WaitGroup
	if a := s.newAccounts(w, a.Hub, a.Session); a != nil {
		reports.Go(func() { a.keep(left) })
	}
	if s.c.Joined != nil {
		s.c.Joined(w.stats())
	}
	select {
	case <-session.Leaving():
	case <-ctx.Done():
	}
	s.leave(w)
	if ctx.Err() != nil {
		// In order: the worker is told, and what is under way is finished.
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		err = session.Drain(drain, wire.GoAway{Reason: wire.Stopping, Text: []byte(context.Cause(ctx).Error())})
		cancel()
	} else {
		<-session.Done()
		err = session.Err()
	}
	_ = session.Close()
	lane.Close()
	<-w.member.Done()
	close(left)
	reports.Wait()
	last := w.stats()
	last.Session = a.Session
	s.mu.Lock()
	s.gone = append(s.gone, last)
	s.mu.Unlock()
	if s.c.Left != nil {
		s.c.Left(last, err)
	}
	return nil
}

// Causes of sending a worker away, which it is told.
var (
	errEnding  = errors.New("the backbone ends")
	errHubEnds = errors.New("the hub ends")
)

// drain sends the workers of a hub away, which will end after n.
func (s *Swarm) drain(hub string, _ time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending[hub] = true // for those that are about to join
	for _, w := range s.present {
		if w.hub == hub {
			w.drain(errHubEnds)
		}
	}
}

// online hears of hubs that come and go.
func (s *Swarm) online(hub string, connected bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if connected {
		delete(s.ending, hub)
	}
}

// Failed is closed when no hub can be had any more, and Err says why.
func (s *Swarm) Failed() <-chan struct{} { return s.failed }

// Err returns why no hub can be had any more, once Failed is closed.
func (s *Swarm) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// join gives the worker its share, and the others theirs anew.
func (s *Swarm) join(w *attached) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.present = append(s.present, w)
	n := len(s.present)
	w.member = s.dispatcher.Join(w.id, w.lane, s.c.Place(n-1, n))
	s.place()
	if s.ending[w.hub] {
		w.drain(errHubEnds)
	}
}

func (s *Swarm) leave(w *attached) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.present = slices.DeleteFunc(s.present, func(x *attached) bool { return x == w })
	s.place()
	w.member.Leave()
}

// place gives every present worker its share. Under mu.
func (s *Swarm) place() {
	for i, w := range s.present {
		w.member.Update(s.c.Place(i, len(s.present)))
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// WaitFor returns when n workers are present.
func (s *Swarm) WaitFor(ctx context.Context, n int) error {
	for {
		s.mu.Lock()
		have, changed := len(s.present), s.changed
		s.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-s.failed:
			return s.Err()
		case <-ctx.Done():
			return fmt.Errorf("%d of %d workers have come: %w", have, n, context.Cause(ctx))
		}
	}
}

// Workers returns what each worker has done, those first that have left.
func (s *Swarm) Workers() []WorkerStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Clone(s.gone)
	for _, w := range s.present {
		list = append(list, w.stats())
	}
	return list
}

func (w *attached) stats() WorkerStats {
	m, l := w.member.Stats(), w.session.Stats()
	return WorkerStats{
		ID: w.id, Key: w.key, Dispatches: m.Dispatches, Rows: m.Rows, Picks: m.Picks,
		BytesOut: l.BytesOut, BytesBack: l.BytesIn, RTT: l.MinRTT,
	}
}

// Close sends the workers away and returns when no goroutine is left.
func (s *Swarm) Close() {
	s.cancel()
	s.wg.Wait() // the last reports go out over the control connections
	s.backbone.Close()
}
