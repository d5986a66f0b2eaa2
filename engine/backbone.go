package engine

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"kvasir/batcher"
	"kvasir/engine/ledger"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

// BackboneOptions are for NewBackbone.
type BackboneOptions struct {
	Options
	Home    Home
	Hubs    []HubRef       // empty: all experts are computed here
	Gateway string         // HOST[:PORT] by which friends reach the hubs; empty: the address of each hub
	Root    seal.PublicKey // zero: the root key is here, and is drawn where it is not
	Grant   seal.Grant     // of this backbone's key; zero: see Home.Grant
	Workers int            // wanted at each hub
	Log     *slog.Logger   // nil: none
	Now     func() time.Time
	Rhythm  Rhythm

	// Audit says how the answers of workers are checked; its Convict is not used. Every below 0: not at all.
	Audit AuditOptions

	tokens *TokenStore // of workers that hubs offer
	court  *Court      // of workers whose answers were wrong
}

// Backbone is a model with its workers: an engine whose routed experts the workers of a swarm compute,
// and this machine what no worker answers.
type Backbone struct {
	Joins []seal.Join // what to hand to friends, one a hub; none where the root key is elsewhere

	local  *Engine
	far    *Engine        // the same with the experts of swarm; nil: no hubs
	swarm  *Swarm         // nil: no hubs
	taps   tap            // of the swarm's calls
	unlock func()         // nil: not locked
	outbox *ledger.Outbox // nil: no hubs
}

// NewBackbone opens a model and begins to take workers, until Close.
func NewBackbone(o BackboneOptions) (*Backbone, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	b := &Backbone{}
	if err := b.start(o); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

func (b *Backbone) start(o BackboneOptions) (err error) {
	if len(o.Hubs) == 0 {
		b.local, err = Open(o.Options)
		return err
	}
	// What can be refused is refused before the model is read.
	if b.unlock, err = o.Home.Lock(seal.Backbone); err != nil {
		return err
	}
	if o.tokens, err = openTokenStore(o.Home, seal.Backbone); err != nil {
		return err
	}
	c, root, err := o.identity()
	if err != nil {
		return err
	}
	if b.Joins, err = o.joins(root); err != nil {
		return err
	}
	if b.local, err = Open(o.Options); err != nil {
		return err
	}
	c.Model, c.Local = b.local.Model(), b.local.Experts()
	if o.Audit.Every >= 0 {
		c.Audit = &AuditOptions{
			Every: o.Audit.Every, Share: o.Audit.Share, Hold: o.Audit.Hold, Convict: o.court.Convict, Retry: o.court.Retry, Guilty: o.court.Guilty,
		}
	}
	c.Exponents, c.TopK = b.local.Exponents(), b.local.TopK()
	if c.Slices, err = o.source(b.local); err != nil {
		return err
	}
	if b.outbox, err = o.Home.openOutbox(context.Background(), seal.Backbone, o.Log); err != nil {
		return err
	}
	c.Outbox = b.outbox
	pilot := &batcher.Pilot{}
	c.Trace = tracing(pilot, &b.taps, batcher.LocalName)
	if b.swarm, err = NewSwarm(c); err != nil {
		return err
	}
	p := newPace(b.swarm.Experts(), pilot)
	p.tap = &b.taps
	if b.far, err = b.local.with(p, maxFlights, p.wanted); err != nil {
		return err
	}
	o.Log.Info("experts are computed here until a worker joins")
	return nil
}

// identity returns who this backbone is, and the root key where that is here.
func (o *BackboneOptions) identity() (c SwarmConfig, root seal.Key, err error) {
	c = SwarmConfig{
		Workers: o.Workers, Log: o.Log, Dialer: relay.Dialer{Now: o.Now}, Rhythm: o.Rhythm, Refuse: o.refuse,
		Joined: func(w WorkerStats) {
			o.Log.Info("worker joined", "worker", w.ID, "memory_mib", w.Memory>>20, "rows_per_s", w.Rate, "rtt", w.RTT)
		},
		Holds: func(id, what string) { o.Log.Info("worker is ready", "worker", id, "holds", what) },
		Left: func(w WorkerStats, err error) {
			why := "in order"
			if err != nil {
				why = err.Error()
			}
			o.Log.Info("worker left; others, or this machine, compute its experts", "worker", w.ID, "picks", w.Picks, "why", why)
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
	o.court = o.Home.OpenCourt(c.Key, o.Now)
	c.Grant, err = o.Home.Grant(seal.Backbone, c.Key.Public(), c.Root, o.Grant)
	return c, root, err
}

// refuse says why a worker is not wanted: it has answered wrong, or its token was revoked here, or has been
// used up.
func (o *BackboneOptions) refuse(p seal.Proof) error {
	if err := o.court.Refuse(p.Key, p.Token.ID); err != nil {
		return err
	}
	return o.tokens.Use(context.Background(), p.Token, p.Key)
}

// joins returns what to hand to friends.
func (o *BackboneOptions) joins(root seal.Key) (list []seal.Join, err error) {
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

// Engine generates with the workers, if there are hubs.
func (b *Backbone) Engine() *Engine {
	if b.far != nil {
		return b.far
	}
	return b.local
}

// WaitFor returns when n workers are there, at once if there are no hubs.
func (b *Backbone) WaitFor(ctx context.Context, n int) error {
	if b.swarm == nil {
		return nil
	}
	return b.swarm.WaitFor(ctx, n)
}

// Workers lists what workers have done, those that are gone too.
func (b *Backbone) Workers() []WorkerStats {
	if b.swarm == nil {
		return nil
	}
	return b.swarm.Workers()
}

// Counts returns what has been counted of hubs, offers and ends of sessions, see relay.Backbone.Counts.
func (b *Backbone) Counts() map[string]uint64 {
	if b.swarm == nil {
		return nil
	}
	return b.swarm.Counts()
}

// Failed is closed when every hub has refused this backbone for good, and Err says why. It is nil if
// there are no hubs.
func (b *Backbone) Failed() <-chan struct{} {
	if b.swarm == nil {
		return nil
	}
	return b.swarm.Failed()
}

// Err returns why no hub can be had, once Failed is closed.
func (b *Backbone) Err() error { return b.swarm.Err() }

// Close ends what is under way, sends the workers away and releases the model.
func (b *Backbone) Close() {
	if b.far != nil {
		_ = b.far.Close() // the file is local's
	}
	if b.swarm != nil {
		b.swarm.Close()
	}
	if b.outbox != nil {
		_ = b.outbox.Close() // what was kept is on the disk
	}
	if b.local != nil {
		_ = b.local.Close() // read only: nothing is lost
	}
	if b.unlock != nil {
		b.unlock()
	}
}
