package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"kvasir/engine/schedule"
	"kvasir/engine/serve"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

// generator lets engine/serve ask an engine.
type generator struct{ e *Engine }

// Generate is serve.Generator's.
func (g generator) Generate(ctx context.Context, r serve.Request, emit func(string) error) (serve.Result, error) {
	req := Request{Prompt: r.Prompt, Tokens: r.Tokens}
	for _, m := range r.Messages {
		req.Messages = append(req.Messages, Message{Role: m.Role, Content: m.Content})
	}
	if req.Tokens == 0 {
		req.Tokens = g.e.Context()
	}
	res, err := g.e.Generate(ctx, req, Text(emit))
	switch {
	case errors.Is(err, schedule.ErrFull):
		err = fmt.Errorf("%w: %w", serve.ErrBusy, err)
	case err != nil && res.PromptTokens == nil: // it never came to generating
		err = fmt.Errorf("%w: %w", serve.ErrRequest, err)
	}
	first := res.First()
	return serve.Result{Prompt: len(res.PromptTokens), Tokens: len(first.Tokens), Length: first.Stop == StopLength}, err
}

// farFlights is how many micro-batches are under way at once where experts may be far away: while some
// wait for them, the backbone computes another.
const farFlights = 4

// ServeOptions are for NewServeNode.
type ServeOptions struct {
	Home    Home
	Path    string // of the model; empty: the embedded kvasir-tiny
	Listen  string
	Hubs    []HubRef       // empty: all experts are computed here
	Gateway string         // HOST[:PORT] by which friends reach the hubs; empty: the address of each hub
	Root    seal.PublicKey // zero: the root key is here, and is drawn where it is not
	Grant   seal.Grant     // of this backbone's key; zero: see Home.Grant
	Workers int            // wanted at each hub
	Log     *slog.Logger
	Now     func() time.Time
}

// ServeNode is a backbone with its workers that answers over HTTP.
type ServeNode struct {
	Addr  string      // that it listens on
	Joins []seal.Join // what to hand to friends, one a hub; none where the root key is elsewhere

	engine  *Engine
	far     *Engine // the same with the experts of swarm; nil: no hubs
	swarm   *Swarm  // nil: no hubs
	handler *serve.Handler
	l       net.Listener
	unlock  func() // nil: not locked
}

// NewServeNode opens a model, listens, and begins to take workers. Run is to follow.
func NewServeNode(o ServeOptions) (*ServeNode, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	n := &ServeNode{}
	if err := n.start(o); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func (n *ServeNode) start(o ServeOptions) (err error) {
	if n.l, err = relay.Listen(o.Listen); err != nil {
		return err
	}
	n.Addr = n.l.Addr().String()
	if n.engine, err = Open(Options{Path: o.Path}); err != nil {
		return err
	}
	e := n.engine
	if len(o.Hubs) > 0 {
		if n.unlock, err = o.Home.Lock(seal.Backbone); err != nil {
			return err
		}
		c, root, err := o.identity()
		if err != nil {
			return err
		}
		if n.Joins, err = o.joins(root); err != nil {
			return err
		}
		c.Model, c.Local = e.Model(), e.Experts()
		if n.swarm, err = NewSwarm(c); err != nil {
			return err
		}
		if n.far, err = e.With(n.swarm.Experts(), farFlights); err != nil {
			return err
		}
		e = n.far
		o.Log.Info("experts are computed here until a worker joins")
	}
	n.handler = serve.New(generator{e}, serve.Options{Model: e.Name(), Log: o.Log})
	return nil
}

// identity returns who this backbone is, and the root key where that is here.
func (o *ServeOptions) identity() (c SwarmConfig, root seal.Key, err error) {
	c = SwarmConfig{
		Workers: o.Workers, Log: o.Log, Dialer: relay.Dialer{Now: o.Now}, Refuse: o.refuse,
		Joined: func(w WorkerStats) { o.Log.Info("worker joined", "worker", w.ID) },
		Left: func(w WorkerStats, err error) {
			o.Log.Info("worker left; others, or this machine, compute its experts", "worker", w.ID, "picks", w.Picks, "why", err)
		},
	}
	for _, h := range o.Hubs {
		c.Hubs = append(c.Hubs, relay.Target{Address: "wss://" + h.Addr, Hub: h.ID})
	}
	if o.Root.IsZero() {
		if root, err = o.Home.NewRoot(); err != nil {
			return c, root, err
		}
	} else if k, err := o.Home.keyIfThere("root"); err != nil {
		return c, root, err
	} else if k.Public() == o.Root {
		root = k
	}
	if c.Root, err = o.Home.Root(o.Root); err != nil {
		return c, root, err
	}
	if c.Key, err = o.Home.Key(seal.Backbone); err != nil {
		return c, root, err
	}
	c.Grant, err = o.Home.Grant(seal.Backbone, c.Key.Public(), c.Root, o.Grant)
	return c, root, err
}

// refuse says why a worker is not wanted: its token was revoked here.
func (o *ServeOptions) refuse(p seal.Proof) error {
	gone, err := o.Home.Revoked(p.Token.ID)
	if err == nil && gone {
		err = fmt.Errorf("%w: %v", seal.ErrTokenRevoked, p.Token.ID)
	}
	return err
}

// joins returns what to hand to friends.
func (o *ServeOptions) joins(root seal.Key) (list []seal.Join, err error) {
	if root.IsZero() {
		return nil, nil
	}
	for _, h := range o.Hubs {
		host := o.Gateway
		if host == "" {
			host = h.Addr
			host = strings.TrimSuffix(host, ":443")
		}
		j, err := o.Home.StandingToken(root, host, h.ID)
		if err != nil {
			return nil, err
		}
		list = append(list, j)
	}
	return list, nil
}

// Model is the name of what is served.
func (n *ServeNode) Model() string { return n.engine.Name() }

// Run serves until ctx ends, finishes what is under way, sends the workers away and returns nil; or until
// every hub has refused this backbone for good.
func (n *ServeNode) Run(ctx context.Context) error {
	defer n.close()
	if n.swarm == nil {
		return n.handler.Run(ctx, n.l, drainTime)
	}
	ctx, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() { // ends with cancel
		select {
		case <-n.swarm.Failed():
			cancel()
			failed <- n.swarm.Err()
		case <-ctx.Done():
			failed <- nil
		}
	}()
	err := n.handler.Run(ctx, n.l, drainTime)
	cancel()
	return errors.Join(err, <-failed)
}

func (n *ServeNode) close() {
	if n.far != nil {
		_ = n.far.Close() // the file is engine's
	}
	if n.swarm != nil {
		n.swarm.Close()
	}
	if n.l != nil {
		_ = n.l.Close() // served, it is closed already
	}
	if n.engine != nil {
		_ = n.engine.Close() // read only: nothing is lost
	}
	if n.unlock != nil {
		n.unlock()
	}
}
