// Package worker is the far end of a swarm: it joins through a gateway, waits for a backbone, and computes
// experts for it until one of the two leaves, over one outbound connection and with no open port.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"kvasir/internal/moe"
	"kvasir/wire"
	"kvasir/wire/link"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

// ErrOtherModel: the backbones of the hub serve another model than this worker has.
var ErrOtherModel = errors.New("worker: no backbone serves the model that this worker has; give the model " +
	"file that is served, and the same profile beside it")

// Model is what a worker computes: an executor, and what it says of itself, so that a backbone of another
// model is refused and never served wrong.
type Model struct {
	Experts  moe.Experts
	Layers   int
	PerLayer int // experts a layer
	Hidden   int // values a row
	Hash     [32]byte
	Profile  [32]byte
}

// Hello is what is said of the model when a session begins, by a worker and by a backbone.
func (m Model) Hello() wire.Hello {
	return wire.Hello{
		Layers: m.Layers, Experts: m.PerLayer, Hidden: m.Hidden,
		Model: wire.Hash(m.Hash), Profile: wire.Hash(m.Profile),
	}
}

// Config is for Run.
type Config struct {
	Join    seal.Join
	Address string   // ws:// or wss:// of the gateway; empty: wss:// and the host of Join
	Key     seal.Key // this worker's identity
	Model   Model

	Waiting func(reason string)        // why there is no work yet; may be nil
	Working func(session string)       // a session has begun; may be nil
	Lost    func(error, time.Duration) // a failure, and how long until the next try; may be nil
	Dialer  relay.Dialer
	Backoff relay.Backoff
	Log     *slog.Logger // nil: none
}

// Run works until ctx ends; then it finishes what is under way and returns nil. It comes back after
// every failure that another try may mend, and returns the others: a token or key that is refused, or a
// backbone of another model or arithmetic.
func Run(ctx context.Context, c Config) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	waiting := c.Waiting
	c.Waiting = func(reason string) {
		if reason == relay.OtherModel {
			stop(ErrOtherModel)
		}
		if waiting != nil {
			waiting(reason)
		}
	}
	err := relay.Keep(ctx, c.Backoff, func(ctx context.Context) error {
		err := c.session(ctx)
		if errors.Is(err, link.ErrRefused) || errors.Is(err, seal.ErrRefused) {
			stop(err) // the two do not fit together, and will not the next time
		}
		return err
	}, c.Lost)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// session joins, and returns when the session has ended.
func (c Config) session(ctx context.Context) error {
	p, err := relay.DialWorker(ctx, relay.WorkerConfig{
		Join: c.Join, Address: c.Address, Key: c.Key, Model: fmt.Sprintf("%x", c.Model.Hash),
		Waiting: c.Waiting, Dialer: c.Dialer,
	})
	if err != nil {
		return err
	}
	inner, err := seal.Client(ctx, p.Conn, seal.ClientConfig{Self: c.Key, Root: c.Join.Root, Paired: p.Grant, Now: time.Now})
	if err != nil {
		_ = p.Conn.Close() // the error says more
		return err
	}
	o := link.Options{Hello: c.Model.Hello(), Name: "backbone " + p.Grant.Key.Short(), Log: c.Log}
	w := link.Worker{Experts: c.Model.Experts}
	if c.Working != nil {
		w.Started = func(*link.Peer) { c.Working(p.Session) }
	}
	err = seal.Explain(link.Serve(ctx, inner, w, o))
	var away *link.Away
	if errors.As(err, &away) {
		sleep(ctx, away.Back)
		return nil
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
