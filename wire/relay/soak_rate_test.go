package relay

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/bench/wan"
	"kvasir/internal/moe"
	"kvasir/wire"
	"kvasir/wire/link"
)

// wide is an executor whose answers are as long as they can be: 52 bits a value.
type wide struct{}

func (wide) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	out.Reset(b.Rows, b.Hidden)
	for i := range out.Sum {
		out.Sum[i] = (1<<51 - 1 - int64(i)) * (1 - 2*int64(i%2))
	}
	return nil
}

// deep is a connection whose sender has a deep buffer, as a socket has: 4 MiB wait there unless whoever
// writes holds back by himself.
type deep struct {
	net.Conn
	mu   sync.Mutex
	cond sync.Cond
	buf  []byte
	err  error
	done chan struct{}
}

func newDeep(nc net.Conn) *deep {
	d := &deep{Conn: nc, done: make(chan struct{})}
	d.cond.L = &d.mu
	go d.pump() // ends with Close
	return d
}

func (d *deep) pump() {
	defer close(d.done)
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.err == nil {
		if len(d.buf) == 0 {
			d.cond.Wait()
			continue
		}
		p := d.buf[:min(len(d.buf), 4<<10)]
		d.mu.Unlock()
		_, err := d.Conn.Write(p)
		d.mu.Lock()
		d.buf = d.buf[len(p):]
		if d.err == nil {
			d.err = err
		}
		d.cond.Broadcast()
	}
}

func (d *deep) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.buf)+len(p) > 4<<20 && d.err == nil {
		d.cond.Wait()
	}
	if d.err != nil {
		return 0, d.err
	}
	d.buf = append(d.buf, p...)
	d.cond.Broadcast()
	return len(p), nil
}

func (d *deep) SetWriteDeadline(time.Time) error { return nil } // a buffer takes what it is given

func (d *deep) SetDeadline(t time.Time) error { return d.SetReadDeadline(t) }

func (d *deep) Close() error {
	d.mu.Lock()
	if d.err == nil {
		d.err = net.ErrClosed
	}
	d.cond.Broadcast()
	d.mu.Unlock()
	err := d.Conn.Close()
	<-d.done
	return err
}

// TestControlOvertakesSevenMiBOnASlowUplink keeps 7 MiB of answers under way on an uplink of 20 Mbit/s,
// and measures the round trip of a control message from the backbone to the worker and back meanwhile:
// p99 at most 150 ms. Behind the worker's session is a buffer of 4 MiB, which it is not to fill. It is
// exact in the bubble; the long form does it with sockets and what the kernel buffers, for a minute.
func TestControlOvertakesSevenMiBOnASlowUplink(t *testing.T) {
	if soaking() {
		controlBesideBulk(t, false, 60*time.Second)
		return
	}
	length := 20 * time.Second
	if testing.Short() { // with the race detector megabytes take long
		length = 2 * time.Second
	}
	synctest.Test(t, func(t *testing.T) { controlBesideBulk(t, true, length) })
}

func controlBesideBulk(t *testing.T, inMemory bool, length time.Duration) {
	const hidden, rows = 3072, 180
	answer := wire.PartialsBound(rows, hidden) // 3.4 MiB
	trip := make(chan time.Duration, 10_000)
	sent := make(chan time.Time, 1)
	s := newSwarm(t, swarmConfig{memory: inMemory, hidden: hidden, link: link.Options{
		Receipt: func(wire.Receipt) { trip <- time.Since(<-sent) }}})
	path := newPath(t, wan.Profile{RTT: 30 * time.Millisecond, Up: 20_000_000, Down: 100_000_000})
	defer path.Close() //nolint:errcheck // always nil
	h := s.newHand(path)
	h.x = wide{}
	h.o.Parallel = 4
	h.dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := s.dial(path)(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return newDeep(nc), nil
	}
	if !inMemory {
		p, err := path.Proxy("127.0.0.1:0", s.gateAddr)
		if err != nil {
			t.Fatal(err)
		}
		h.dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, p.Addr().String())
		}
	}
	var peer atomic.Pointer[link.Peer]
	h.met = func(p *link.Peer) { peer.Store(p) }
	h.o.Receipt = func(r wire.Receipt) { _ = peer.Load().SendReceipt(wire.Receipt{Sequence: r.Sequence}) }
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { ended <- h.work(ctx) }()
	x := s.of(h.key.Public())

	var wg sync.WaitGroup
	calls, stop := context.WithCancel(ctx)
	for i := range 3 { // two at least are always under way, while the third asks anew
		b := soakBatch(t, hidden, rows, i)
		wg.Go(func() {
			for out := new(moe.Partials); calls.Err() == nil; {
				if err := x.Forward(calls, b, out); err != nil && calls.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	time.Sleep(5 * time.Second)
	begun, before := time.Now(), x.Stats()
	var trips []time.Duration
	for time.Since(begun) < length {
		sent <- time.Now()
		if err := x.SendReceipt(wire.Receipt{Sequence: uint64(len(trips))}); err != nil {
			t.Fatal(err)
		}
		trips = append(trips, <-trip)
		time.Sleep(23 * time.Millisecond) // out of step with chunks
	}
	rate := float64(x.Stats().BytesIn-before.BytesIn) * 8 / time.Since(begun).Seconds() / 1e6
	stop()
	wg.Wait()
	p50, p99 := percentile(trips, 50), percentile(trips, 99)
	t.Logf("%d control round trips beside 2 to 3 answers of %d bytes at %.1f Mbit/s: p50 %v, p99 %v, longest %v",
		len(trips), answer, rate, p50, p99, trips[len(trips)-1])
	if p99 > 150*time.Millisecond {
		t.Errorf("p99 %v, want at most 150ms", p99)
	}
	if rate < 17 {
		t.Errorf("bulk made %.1f of 20 Mbit/s: the line was not full", rate)
	}
	_ = x.Close()
	<-ended
}

// TestAStuckWorkerHoldsUpNobody has 64 workers answer, of which one takes nothing from some moment on.
// It is cut within 15 s, and the p99 of the others moves less than 10 %, between quiet rounds and those
// beside it; of three of each in turn, in the long form, the best counts.
func TestAStuckWorkerHoldsUpNobody(t *testing.T) {
	if soaking() {
		stuckWorker(t, 64, 3, false)
		return
	}
	workers := 64
	if testing.Short() {
		workers = 16
	}
	synctest.Test(t, func(t *testing.T) { stuckWorker(t, workers, 1, true) })
}

// crew is workers that answer steadily, each behind a path of its own.
type crew struct {
	*swarm
	paths []*wan.Link
	hands []*hand
	ends  sync.WaitGroup
}

func newCrew(t *testing.T, workers int, inMemory bool) *crew {
	c := &crew{swarm: newSwarm(t, swarmConfig{memory: inMemory})}
	for i := range workers {
		p := newPath(t, wan.Profile{RTT: 40 * time.Millisecond, Seed: uint64(i)})
		h := c.newHand(p)
		h.x = slower{20 * time.Millisecond, sums{}}
		c.paths, c.hands = append(c.paths, p), append(c.hands, h)
		c.join(i)
	}
	return c
}

// join lets a worker come, also again.
func (c *crew) join(i int) *link.Session {
	h := c.hands[i]
	c.ends.Go(func() { _ = h.work(context.Background()) })
	return c.of(h.key.Public())
}

func (c *crew) end() {
	c.close()
	for _, p := range c.paths {
		_ = p.Close()
	}
	c.ends.Wait()
}

// round asks every worker but the first for so long, at 5 dispatches a second each.
func (c *crew) round(length time.Duration) []time.Duration {
	var mu sync.Mutex
	var all []time.Duration
	var wg sync.WaitGroup
	end := time.Now().Add(length)
	for i, h := range c.hands[1:] {
		x, b := c.of(h.key.Public()), soakBatch(c.t, 64, 16, i)
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 3 * time.Millisecond)
			for time.Now().Before(end) {
				began := time.Now()
				if err := ask(x, b); err != nil {
					c.t.Errorf("worker %d: %v", i+1, err)
					return
				}
				took := time.Since(began)
				mu.Lock()
				all = append(all, took)
				mu.Unlock()
				time.Sleep(max(0, 200*time.Millisecond-took))
			}
		})
	}
	wg.Wait()
	return all
}

// stick makes the first worker take nothing any more, floods it, and returns how to learn when it was cut.
func (c *crew) stick() (cut func() time.Duration) {
	x := c.of(c.hands[0].key.Public())
	c.paths[0].Stall(wan.Down, time.Hour)
	stuck := time.Now()
	var took time.Duration
	var flood sync.WaitGroup
	for i := range 8 { // more than all buffers on the way hold
		b := soakBatch(c.t, 64, 256, i)
		flood.Go(func() {
			for ask(x, b) == nil {
			}
		})
	}
	flood.Go(func() {
		<-x.Done()
		took = time.Since(stuck)
	})
	return func() time.Duration {
		flood.Wait()
		c.t.Logf("cut after %v: %v", took, x.Err())
		return took
	}
}

func stuckWorker(t *testing.T, workers, rounds int, inMemory bool) {
	c := newCrew(t, workers, inMemory)
	defer c.end()
	const length = 9 * time.Second // less than it takes to cut
	c.round(length / 3)
	var quiet, loaded []time.Duration // p99 of each round
	for r := range rounds {
		quiet = append(quiet, percentile(c.round(length), 99))
		cut := c.stick()
		loaded = append(loaded, percentile(c.round(length), 99))
		if took := cut(); took > 15*time.Second {
			t.Errorf("cut after %v, want at most 15s", took)
		}
		if r+1 < rounds {
			c.paths[0].Cut(wan.Reset)
			c.paths[0].Resume(wan.Down)
			c.join(0)
		}
	}
	// What else the machine does spoils a round; what a stuck worker does would spoil every one.
	before, beside := slices.Min(quiet), slices.Min(loaded)
	shift := float64(beside)/float64(before) - 1
	t.Logf("p99 of %d others: %v quiet, %v beside a stuck one (%+.1f %%); of each round %v and %v", workers-1, before, beside,
		100*shift, quiet, loaded)
	if shift >= 0.10 {
		t.Errorf("p99 moved by %.1f %%, want below 10 %%", 100*shift)
	}
	if n := c.hub.Counts()["paired"]; n != uint64(workers+rounds-1) {
		t.Errorf("%d pairings", n)
	}
}
