package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"kvasir/bench/wan"
	"kvasir/internal/moe"
	"kvasir/wire"
	"kvasir/wire/link"
)

// The path beside whose full streams control is measured: bits a second from the worker and to it, and rows of an
// answer, of which three calls keep two under way: 7 MiB.
const (
	relayUp     = 20_000_000
	relayDown   = 100_000_000
	relayRTT    = 30 * time.Millisecond
	relayHidden = 3072
	relayRows   = 180
	relayCalls  = 3
)

// askWide has a session compute rows, and compares.
func askWide(ctx context.Context, x moe.Experts, hidden, rows, seed int) (same bool, err error) {
	b, err := wideBatch(hidden, rows, seed)
	if err != nil {
		return false, err
	}
	var got, want moe.Partials
	if err := x.Forward(ctx, b, &got); err != nil {
		return false, err
	}
	_ = wide{}.Forward(ctx, b, &want) // never returns an error
	return got.Rows == want.Rows && slices.Equal(got.Sum, want.Sum) && slices.Equal(got.Status, want.Status), nil
}

// controlled is a worker behind a slow uplink, and what the backbone needs to measure round trips to it.
type controlled struct {
	s     *relaySwarm
	x     *link.Session
	trip  chan struct{} // an answer to a message has come
	path  *wan.Link
	ended chan error // of the worker
	stop  context.CancelFunc
}

// newControlled starts a swarm with one worker.
func newControlled(ctx context.Context) (*controlled, error) {
	c := &controlled{trip: make(chan struct{}, 1), ended: make(chan error, 1)}
	var err error
	if c.path, err = wan.NewLink(wan.Profile{RTT: relayRTT, Up: relayUp, Down: relayDown}); err != nil {
		return nil, err
	}
	c.s, err = newRelaySwarm(ctx, &relaySwarm{hidden: relayHidden, limits: unhurried(), back: link.Options{
		Receipt: func(wire.Receipt) { c.trip <- struct{}{} }, // one is under way at a time
	}})
	if err != nil {
		return nil, errors.Join(err, c.path.Close())
	}
	workerCtx, stop := context.WithCancel(c.s.ctx)
	c.stop = stop
	// A proxy has the worker write to a socket, with all that the kernel buffers of it.
	p, err := c.path.Proxy("127.0.0.1:0", c.s.gateAddr)
	if err != nil {
		c.ended <- nil
		return nil, errors.Join(err, c.close())
	}
	w := c.s.worker((&net.Dialer{}).DialContext)
	w.at = "wss://" + p.Addr().String()
	var peer atomic.Pointer[link.Peer]
	w.met = func(p *link.Peer) { peer.Store(p) }
	w.o = link.Options{Parallel: relayCalls + 1, Receipt: func(r wire.Receipt) {
		_ = peer.Load().SendReceipt(wire.Receipt{Sequence: r.Sequence}) // one that is lost is missed at the other end
	}}
	go func() { c.ended <- w.work(workerCtx) }()
	if err := c.s.all(1); err != nil {
		return nil, errors.Join(err, c.close())
	}
	c.x = c.s.sessions()[0]
	return c, nil
}

// close ends all, and returns when no goroutine is left.
func (c *controlled) close() error {
	c.stop()
	c.s.close()
	err := c.path.Close() // what the worker waits for ends with it
	<-c.ended             //nolint:errcheck // a swarm that ends is no failure
	return err
}

// once sends a message to the worker and waits for its answer.
func (c *controlled) once(ctx context.Context, n int) (time.Duration, error) {
	start := time.Now()
	if err := c.x.SendReceipt(wire.Receipt{Sequence: uint64(n)}); err != nil {
		return 0, err
	}
	select {
	case <-c.trip:
		return time.Since(start), nil
	case <-c.x.Done():
		return 0, fmt.Errorf("the session beside full streams: %w", c.x.Err())
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// betweenTrips is out of step with chunks.
const betweenTrips = 23 * time.Millisecond

// control measures round trips of control messages beside streams that fill a slow uplink.
func (r *relayRun) control(ctx context.Context) error {
	r.o.progress(0.55, "control beside full streams")
	c, err := newControlled(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.close() }() // of a path: always nil
	calls, stop := context.WithCancel(ctx)
	errs := make([]error, relayCalls)
	var wg sync.WaitGroup
	end := func() error {
		stop()
		wg.Wait()
		return errors.Join(errs...)
	}
	for i := range relayCalls {
		wg.Go(func() { errs[i] = stream(calls, c.x, i) })
	}
	trips, rate, err := r.trips(ctx, c)
	if err := errors.Join(err, end()); err != nil {
		return err
	}
	slices.Sort(trips)
	const part = "control"
	name := fmt.Sprintf("a control round trip beside %d answers of %s", relayCalls, megabytes(int64(wire.PartialsBound(relayRows, relayHidden))))
	r.add(RelayResult{Part: part, Figure: "trip_p50_ms", Text: name + ", median", Unit: "ms", Got: milliseconds(median(trips)), Of: len(trips)})
	x := RelayResult{Part: part, Figure: "trip_p99_ms", Text: "99 of 100 are below", Unit: "ms", Of: len(trips), Want: new(150.0), Most: true,
		Got: milliseconds(trips[min(len(trips)-1, len(trips)*99/100)])}
	x.few = len(trips) < relayTripsLeast
	r.add(x)
	r.add(RelayResult{Part: part, Figure: "uplink_mbit_s", Text: fmt.Sprintf("the answers, on a line of %d Mbit/s", relayUp/1_000_000), Unit: "Mbit/s", Got: rate})
	return nil
}

// stream asks for one answer after the other.
func stream(ctx context.Context, x moe.Experts, seed int) error {
	b, err := wideBatch(relayHidden, relayRows, seed)
	if err != nil {
		return err
	}
	for out := new(moe.Partials); ctx.Err() == nil; {
		if err := x.Forward(ctx, b, out); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// trips measures round trips, and how many megabits a second the answers were meanwhile.
func (r *relayRun) trips(ctx context.Context, c *controlled) (list []time.Duration, rate float64, err error) {
	if err := until(ctx, time.Now().Add(r.x.Beside)); err != nil { // the streams fill
		return nil, 0, err
	}
	start, before := time.Now(), c.x.Stats()
	for n := range r.x.Trips {
		took, err := c.once(ctx, n)
		if err != nil {
			return nil, 0, err
		}
		list = append(list, took)
		if err := until(ctx, time.Now().Add(betweenTrips)); err != nil {
			return nil, 0, err
		}
	}
	return list, float64(c.x.Stats().BytesIn-before.BytesIn) * 8 / time.Since(start).Seconds() / 1e6, nil
}

// hops are what may die between a worker and its backbone.
var hops = []string{"worker to gateway", "gateway to hub", "backbone to hub"}

// deaths measures how long it takes from the end of a hop to that of both legs, and of all that is kept of them.
func (r *relayRun) deaths(ctx context.Context) error {
	for i, hop := range hops {
		for k, how := range []wan.How{wan.Fin, wan.Reset} {
			name := []string{"FIN", "RST"}[k]
			r.o.progress(0.9+0.1*float64(2*i+k)/6, fmt.Sprintf("%s ends, %s", hop, name))
			took, err := r.death(ctx, hop, how)
			if err != nil {
				return fmt.Errorf("%s of %s: %w", name, hop, err)
			}
			r.add(RelayResult{Part: "death", Figure: fmt.Sprintf("%s_%s_s", name, hop), Text: fmt.Sprintf("%s of %s, until all of it is gone", name, hop), Unit: "s",
				Got: took.Seconds(), Of: r.x.Deaths, Want: new(5.0), Most: true})
		}
	}
	return nil
}

// death ends a hop under sessions, and returns how long it took until the last of their ends has noticed.
func (r *relayRun) death(ctx context.Context, hop string, how wan.How) (time.Duration, error) {
	var links [3]*wan.Link // worker to gateway, gateway to hub, backbone to hub
	for i := range links {
		var err error
		if links[i], err = wan.NewLink(wan.Profile{}); err != nil {
			return 0, err
		}
		defer func() { _ = links[i].Close() }() // always nil
	}
	s, err := newRelaySwarm(ctx, &relaySwarm{hidden: 64, limits: unhurried(), hop: links[1], own: links[2]})
	if err != nil {
		return 0, err
	}
	defer s.close()
	ended := make(chan struct{}, r.x.Deaths)
	for range r.x.Deaths {
		w := s.worker(links[0].Dial)
		s.wg.Go(func() {
			_ = w.work(s.ctx) // it is to fail
			ended <- struct{}{}
		})
	}
	if err := s.all(r.x.Deaths); err != nil {
		return 0, err
	}
	start := time.Now()
	links[slices.Index(hops, hop)].Cut(how)
	for range r.x.Deaths {
		select {
		case <-ended:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	if err := s.wait("the backbone has noticed", func() bool { return s.ended == r.x.Deaths }); err != nil {
		return 0, err
	}
	for s.gateway.Active() > 0 || s.hub.Status().Sessions > 0 {
		if err := until(ctx, time.Now().Add(time.Millisecond)); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}
