package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"kvasir/bench/wan"
	"kvasir/engine"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
)

// formWait is how long the parts of a swarm may take to find each other.
const formWait = time.Minute

// way is one way for a batch to its experts.
type way struct {
	kind    kind
	rtt     time.Duration
	piped   bool // several dispatches are under way
	flights int  // of them; set for each batch
	x       moe.Experts
	traffic *traffic // nil: no network
	links   []*wan.Link
	swarm   *engine.Loopback
}

// swarmConfig is for newSwarmWay.
type swarmConfig struct {
	kind    kind
	rtt     time.Duration
	path    Path
	workers int
	place   engine.Placement // nil: by experts
	model   worker.Model
	wrap    func(moe.Experts) moe.Experts // of every worker's executor; nil: none
}

// newSwarmWay starts a gateway, a hub, workers behind emulated paths, and a backbone that has no experts
// of its own: what comes back was computed by workers.
func newSwarmWay(ctx context.Context, c swarmConfig) (*way, error) {
	w := &way{kind: c.kind, rtt: c.rtt, traffic: &traffic{}}
	for range c.workers {
		l, err := wan.NewLink(c.path.profile(c.rtt))
		if err != nil {
			w.close()
			return nil, err
		}
		w.links = append(w.links, l)
	}
	if c.place == nil {
		c.place = engine.ByExpert(c.model.Layers, c.model.PerLayer)
	}
	lc := engine.LoopbackConfig{
		Model: c.model, Workers: c.workers, Place: c.place,
		Dial: func(i int) func(context.Context, string, string) (net.Conn, error) {
			return w.traffic.count(w.links[i].Dial)
		},
	}
	if c.wrap != nil {
		lc.Wrap = func(_ int, x moe.Experts) moe.Experts { return c.wrap(x) }
	}
	late := errors.New("the workers did not come in time; close what keeps this machine busy, and run it again")
	ctx, cancel := context.WithTimeoutCause(ctx, formWait, late)
	defer cancel()
	var err error
	if w.swarm, err = engine.NewLoopback(ctx, lc); err != nil {
		w.close()
		return nil, fmt.Errorf("starting a swarm of %d behind %v: %w", c.workers, c.rtt, err)
	}
	w.x = w.swarm.Swarm.Experts()
	return w, nil
}

// close ends the swarm and its paths, and returns when no goroutine is left.
func (w *way) close() {
	if w.swarm != nil {
		w.swarm.Close()
	}
	for _, l := range w.links {
		_ = l.Close() // always nil
	}
}

// traffic counts what workers' sockets carry: all bytes between worker and gateway, outer TLS and
// framing included, without the headers of TCP and IP.
type traffic struct {
	out, back atomic.Int64 // to the workers, from the workers
}

// load returns the counts up to now.
func (t *traffic) load() (out, back int64) { return t.out.Load(), t.back.Load() }

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

// count returns a dial whose connections are counted.
func (t *traffic) count(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &countedConn{Conn: c, t: t}, nil
	}
}

// countedConn is the worker's end of a connection to the gateway.
type countedConn struct {
	net.Conn
	t *traffic
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.t.out.Add(int64(n))
	return n, err
}

// Write counts before it writes: the answer may be at the backbone before Write returns.
func (c *countedConn) Write(p []byte) (int, error) {
	c.t.back.Add(int64(len(p)))
	n, err := c.Conn.Write(p)
	c.t.back.Add(int64(n - len(p)))
	return n, err
}
