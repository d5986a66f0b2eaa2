package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"kvasir/bench/wan"
	"kvasir/engine"
	"kvasir/engine/experts"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
	"kvasir/internal/slab"
	"kvasir/wire/link"
	"kvasir/wire/ws"
)

// tap is a connection that counts. A Read or Write of it is one of the socket's, so one system call
// unless the socket has to wait in between.
type tap struct {
	net.Conn
	reads, writes, in, out atomic.Int64

	own    []byte       // what is written should lie in here; nil: anywhere
	copied atomic.Int64 // bytes that did not, or that were read into a buffer from which they go on
}

// Read implements net.Conn.
func (t *tap) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	t.reads.Add(1)
	t.in.Add(int64(n))
	if len(p) <= ws.Readahead {
		t.copied.Add(int64(n))
	}
	return n, err
}

// Write implements net.Conn.
func (t *tap) Write(p []byte) (int, error) {
	t.writes.Add(1)
	t.out.Add(int64(len(p)))
	if t.own != nil && len(p) > 0 && !within(p, t.own) {
		t.copied.Add(int64(len(p)))
	}
	return t.Conn.Write(p)
}

// within reports whether p begins in the headroom of own, or right behind it.
func within(p, own []byte) bool {
	for i := range own[:ws.Headroom+1] {
		if &p[0] == &own[i] {
			return true
		}
	}
	return false
}

// tapped is what a tap has counted up to a moment.
type tapped struct{ reads, writes, in, out, copied int64 }

// now returns the counts; those of no tap are zero.
func (t *tap) now() tapped {
	if t == nil {
		return tapped{}
	}
	return tapped{t.reads.Load(), t.writes.Load(), t.in.Load(), t.out.Load(), t.copied.Load()}
}

// allocated is what the process has allocated up to a moment.
type allocated struct{ objects, bytes uint64 }

func allocatedNow() allocated {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return allocated{m.Mallocs, m.TotalAlloc}
}

// gateLayer is the layer that is dispatched while things are counted: small, since what it computes counts
// nothing, and tuned, since the bytes of its answers do.
type gateLayer struct {
	d       Dispatch
	sends   int // of each batch that is counted
	x       moe.Experts
	model   worker.Model
	batches map[int]*moe.Batch // by rows
	want    map[int]*moe.Partials
	answer  moe.Partials
}

// gateRows are the batches that are counted: one row, and rows that fill chunks on the wire.
var gateRows = []int{1, 64}

func newGateLayer(ctx context.Context, sends int, wrap func(moe.Experts) moe.Experts) (*gateLayer, error) {
	d := DefaultDispatch()
	d.Experts, d.Hidden, d.FFN, d.Batch = 16, 1024, 256, slices.Max(gateRows)
	store, err := experts.Synthetic(d.shape(), d.Seed)
	if err != nil {
		return nil, err
	}
	store, profile, err := d.tune(ctx, store)
	if err != nil {
		return nil, err
	}
	l := &gateLayer{d: d, sends: sends, x: experts.NewLocal(store), batches: map[int]*moe.Batch{}, want: map[int]*moe.Partials{}}
	for _, n := range gateRows {
		d.Batch = n
		if l.batches[n], err = d.makeRows(store.RowFormat(0)); err != nil {
			return nil, err
		}
		l.want[n] = &moe.Partials{}
		if err := l.x.Forward(ctx, l.batches[n], l.want[n]); err != nil {
			return nil, err
		}
	}
	if wrap != nil {
		l.x = wrap(l.x)
	}
	l.model = worker.Model{
		Experts: l.x, Layers: 1, PerLayer: d.Experts, Hidden: d.Hidden, Hash: d.hash(), Profile: experts.HashProfile(profile),
	}
	return l, nil
}

// once sends a batch of so many rows to x and compares the answer with the one computed here.
func (l *gateLayer) once(ctx context.Context, x moe.Experts, rows int) error {
	if err := x.Forward(ctx, l.batches[rows], &l.answer); err != nil {
		return err
	}
	if want := l.want[rows]; !slices.Equal(l.answer.Sum, want.Sum) || !slices.Equal(l.answer.Status, want.Status) {
		return fmt.Errorf("%w: %d rows of the gate's layer", ErrBits, rows)
	}
	return nil
}

// gatePath is a way from a backbone to a worker that stands.
type gatePath struct {
	x        moe.Experts
	backbone *tap // the backbone's socket; nil where it is out of reach
	worker   *tap
	close    func()
}

// openSession puts a sealed session between two ends of a TCP connection, with nothing in between.
func (l *gateLayer) openSession(ctx context.Context) (*gatePath, error) {
	c, s, err := tcpPair(ctx)
	if err != nil {
		return nil, err
	}
	return l.session(ctx, c, s)
}

// openSessionOver does the same over an emulated path.
func (l *gateLayer) openSessionOver(ctx context.Context, path *wan.Link) (*gatePath, error) {
	c, s, err := path.Pipe()
	if err != nil {
		return nil, err
	}
	return l.session(ctx, c, s)
}

// session makes a session of two ends, and closes them after an error.
func (l *gateLayer) session(ctx context.Context, c, s net.Conn) (*gatePath, error) {
	p := &gatePath{worker: &tap{Conn: c}, backbone: &tap{Conn: s}}
	client, server, err := sealPair(ctx, p.worker, p.backbone)
	if err != nil {
		return nil, err
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	var worker sync.WaitGroup
	var served error
	worker.Go(func() { // ends with serving
		served = link.Serve(serving, client, link.Worker{Experts: l.x}, link.Options{Hello: l.model.Hello()})
	})
	session, err := link.Open(ctx, server, link.Options{Hello: l.model.Hello()})
	if err != nil {
		stop()
		worker.Wait()
		return nil, errors.Join(err, served)
	}
	p.x = session
	p.close = func() {
		stop()
		_ = session.Close() // what was to be counted has been
		worker.Wait()
	}
	return p, nil
}

// openSwarm starts gateway, hub, worker and backbone in this process.
func (l *gateLayer) openSwarm(ctx context.Context) (*gatePath, error) {
	p := &gatePath{}
	ctx, cancel := context.WithTimeout(ctx, formWait)
	defer cancel()
	swarm, err := engine.NewLoopback(ctx, engine.LoopbackConfig{
		Model: l.model, Workers: 1, Place: engine.ByExpert(1, l.d.Experts),
		Dial: func(int) func(context.Context, string, string) (net.Conn, error) {
			return func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				p.worker = &tap{Conn: c} // of the last dial, which is the session's
				return p.worker, nil
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("starting a swarm of one worker: %w", err)
	}
	p.x, p.close = swarm.Swarm.Experts(), swarm.Close
	return p, nil
}

// undisturbed runs f without the garbage collector, which empties pools and so has them allocate anew.
func undisturbed(f func() error) error {
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	return f()
}

// inUse is how many bytes of slabs have an owner.
func inUse() int64 { return slab.Shared.Stats().InUse }
