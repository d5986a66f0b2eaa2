package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kvasir/bench/wan"
	"kvasir/engine"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// The threads of the process's backend stay until it ends.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("kvasir/kernels/cpu.(*team).help"))
}

// tinyBatch returns a batch of random rows of one layer of kvasir-tiny, four picks each.
func tinyBatch(t testing.TB, m worker.Model, layer, rows int, seed uint64) *moe.Batch {
	t.Helper()
	const topK = 4
	rng := rand.New(rand.NewPCG(seed, uint64(layer)))
	b, err := moe.NewBatch(moe.Shape{Layer: layer, Hidden: m.Hidden, Format: moe.RowQ8K}, rows, rows*topK)
	if err != nil {
		t.Fatal(err)
	}
	x := make([]float32, m.Hidden)
	for range rows {
		expert, weight := make([]uint16, topK), make([]float32, topK)
		for i, e := range rng.Perm(m.PerLayer)[:topK] {
			expert[i], weight[i] = uint16(e), rng.Float32()
		}
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		if status, at := ref.QuantizeRow(b.Row(b.Grow(expert, weight)), x); status != moe.OK {
			t.Fatalf("row is %v at %d", status, at)
		}
	}
	return b
}

// work is batches with what local experts make of them.
type work struct {
	batches []*moe.Batch
	want    []moe.Partials
}

func newWork(t testing.TB, m worker.Model, sizes []int, seed uint64) *work {
	t.Helper()
	w := &work{want: make([]moe.Partials, m.Layers*len(sizes))}
	for layer := range m.Layers {
		for _, rows := range sizes {
			b := tinyBatch(t, m, layer, rows, seed)
			if err := m.Experts.Forward(context.Background(), b, &w.want[len(w.batches)]); err != nil {
				t.Fatal(err)
			}
			w.batches = append(w.batches, b)
		}
	}
	return w
}

// run computes all batches on x, at the same time, and compares bits.
func (w *work) run(ctx context.Context, t testing.TB, x moe.Experts) {
	t.Helper()
	var wg sync.WaitGroup
	for i, b := range w.batches {
		wg.Go(func() {
			var got moe.Partials
			if err := x.Forward(ctx, b, &got); err != nil {
				t.Errorf("layer %d, %d rows: %v", b.Layer, b.Rows, err)
				return
			}
			if !slices.Equal(got.Status, w.want[i].Status) || !slices.Equal(got.Sum, w.want[i].Sum) {
				t.Errorf("layer %d, %d rows: another result than local experts", b.Layer, b.Rows)
			}
		})
	}
	wg.Wait()
}

// batchSizes are all sizes, or those that are quick under the race detector.
func batchSizes() []int {
	if testing.Short() {
		return []int{1, 3, 16}
	}
	return []int{1, 3, 64, 512}
}

// TestRemoteEqualsLocalForBatches sends batches of 1 to 512 rows through gateway and hub, for each
// number of workers, placement and round trip.
func TestRemoteEqualsLocalForBatches(t *testing.T) {
	m := open(t, "").Model()
	w := newWork(t, m, batchSizes(), 1)
	for _, workers := range []int{1, 3} {
		for name, place := range map[string]engine.Placement{
			"layer": engine.ByLayer(m.Layers, m.PerLayer), "expert": engine.ByExpert(m.Layers, m.PerLayer),
		} {
			for _, rtt := range []time.Duration{0, 13 * time.Millisecond} {
				t.Run(fmt.Sprintf("workers=%d/by %s/rtt=%v", workers, name, rtt), func(t *testing.T) {
					ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
					defer cancel()
					c := engine.LoopbackConfig{Model: m, Workers: workers, Place: place}
					if rtt > 0 {
						path, err := wan.NewLink(wan.Profile{RTT: rtt})
						if err != nil {
							t.Fatal(err)
						}
						defer func() { _ = path.Close() }()
						c.Dial = func(int) func(context.Context, string, string) (net.Conn, error) { return path.Dial }
					}
					l, err := engine.NewLoopback(ctx, c)
					if err != nil {
						t.Fatal(err)
					}
					defer l.Close()
					w.run(ctx, t, l.Swarm.Experts())
				})
			}
		}
	}
}

// cutter dials connections that can be cut without a word, as when a machine dies.
type cutter struct {
	by    func(ctx context.Context, network, addr string) (net.Conn, error)
	mu    sync.Mutex
	conns []net.Conn
}

func (c *cutter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	nc, err := c.by(ctx, network, addr)
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, nc)
		c.mu.Unlock()
	}
	return nc, err
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, nc := range c.conns {
		if tcp, ok := nc.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset, not an orderly end
		}
		_ = nc.Close()
	}
}

// death is one run of TestWorkersDeathLosesNothing.
type death struct {
	workers, victim int
	after           int // executor calls until the cut
	rtt             time.Duration
	place           string
	local           bool // the backbone computes what nobody answers
}

func newDeath(seed uint64) death {
	rng := rand.New(rand.NewPCG(seed, 3))
	d := death{workers: 3, after: rng.IntN(12), place: "layer", local: rng.IntN(3) == 0}
	if seed%5 == 0 {
		d.workers, d.local = 1, true
	}
	if seed%2 == 1 {
		d.place = "expert"
	}
	if seed%4 >= 2 {
		d.rtt = 13 * time.Millisecond
	}
	d.victim = rng.IntN(d.workers)
	return d
}

// TestWorkersDeathLosesNothing kills a worker at a random moment, in 50 runs with one worker and three,
// slices by layer and by expert, 0 and 13 ms, and batches of 1 to 512 rows. Its rows go to the others, or
// to local experts, and no bit changes.
func TestWorkersDeathLosesNothing(t *testing.T) {
	seeds := 50
	if testing.Short() {
		seeds = 5
	}
	m := open(t, "").Model()
	all, few := newWork(t, m, batchSizes(), 2), newWork(t, m, []int{1, 3}, 3)
	for seed := range uint64(seeds) {
		d := newDeath(seed)
		t.Run(fmt.Sprintf("seed=%d/%+v", seed, d), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			c, dead := d.config(t, m)
			l, err := engine.NewLoopback(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			all.run(ctx, t, l.Swarm.Experts())
			few.run(ctx, t, l.Swarm.Experts())
			for killed := false; !killed; { // who was late may be passed over for a while
				select {
				case <-dead:
					killed = true
				case <-ctx.Done():
					t.Fatal("nobody was killed: the run proves nothing")
				default:
					few.run(ctx, t, l.Swarm.Experts())
				}
			}
		})
	}
}

// config returns a swarm in which the victim dies, and what is closed when it has.
func (d death) config(t *testing.T, m worker.Model) (engine.LoopbackConfig, <-chan struct{}) {
	t.Helper()
	by := (&net.Dialer{}).DialContext
	if d.rtt > 0 {
		path, err := wan.NewLink(wan.Profile{RTT: d.rtt})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = path.Close() })
		by = path.Dial
	}
	cuts := make([]cutter, d.workers)
	for i := range cuts {
		cuts[i].by = by
	}
	place := engine.ByLayer(m.Layers, m.PerLayer)
	if d.place == "expert" {
		place = engine.ByExpert(m.Layers, m.PerLayer)
	}
	dead := make(chan struct{})
	var calls atomic.Int64
	c := engine.LoopbackConfig{
		Model: m, Workers: d.workers, Place: place,
		Dial: func(i int) func(context.Context, string, string) (net.Conn, error) { return cuts[i].dial },
		Wrap: func(_ int, x moe.Experts) moe.Experts {
			return executor(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
				if calls.Add(1) == int64(d.after)+1 {
					cuts[d.victim].cut()
					close(dead)
				}
				return x.Forward(ctx, b, out)
			})
		},
	}
	if d.local {
		c.Local = m.Experts
	}
	return c, dead
}

type executor func(ctx context.Context, b *moe.Batch, out *moe.Partials) error

func (f executor) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	return f(ctx, b, out)
}

// TestWorkerThatLeavesInOrderIsReplaced ends a worker as Ctrl-C does, in the middle of a generation.
func TestWorkerThatLeavesInOrderIsReplaced(t *testing.T) {
	e := open(t, "")
	req := engine.Request{Prompt: "There was once a poor miller", Tokens: 24}
	want, _ := generate(t, e, req)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	l, err := engine.NewLoopback(ctx, engine.LoopbackConfig{Model: e.Model(), Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	pieces := 0
	got, err := with(t, e, l).Generate(ctx, req, func(engine.Piece) error {
		if pieces++; pieces == 5 {
			l.StopWorker(0)
		}
		return nil
	})
	if err != nil || !slices.Equal(got.First().Tokens, want.First().Tokens) {
		t.Errorf("%q, error %v; want %q", got.First().Text, err, want.First().Text)
	}
	l.Swarm.Close()
	if n := l.Swarm.Counts(); n["connected"] != 1 || n["accepted"] != 2 || n["ended_order"] != 2 {
		t.Errorf("of two workers, one of which was stopped and one sent away, the backbone has counted %v", n)
	}
}

// with returns an engine whose experts are the swarm's workers.
func with(t *testing.T, e *engine.Engine, l *engine.Loopback) *engine.Engine {
	t.Helper()
	far, err := e.With(l.Swarm.Experts(), 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := far.Close(); err != nil {
			t.Error(err)
		}
	})
	return far
}

// TestDemoNoticesAWrongWorker spoils one bit of one answer.
func TestDemoNoticesAWrongWorker(t *testing.T) {
	e := open(t, "")
	c := engine.DemoConfig{Request: engine.Request{Prompt: "The capital of France is", Tokens: 8}, Workers: 2}
	silent := func(engine.Piece) error { return nil }
	d, err := e.Demo(context.Background(), c, silent)
	if err != nil || !d.Identical || d.Remote.First().Text != " Paris." {
		t.Fatalf("%+v, %v", d, err)
	}
	picks := int64(0)
	for _, w := range d.Workers {
		picks += w.Picks
		b := d.Balances[w.Key]
		if b.Picks != w.Picks || b.Output != w.Picks*256*4 || int64(b.Pending) != 7*b.Output || b.Pending == 0 {
			t.Errorf("worker %s computed %d picks and has in its wallet: %+v", w.ID, w.Picks, b)
		}
	}
	if picks != d.Picks || picks == 0 {
		t.Errorf("workers computed %d of %d picks", picks, d.Picks)
	}
	c.Wrap = func(i int, x moe.Experts) moe.Experts {
		return executor(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
			err := x.Forward(ctx, b, out)
			if i == 0 && err == nil {
				out.Sum[0] ^= 1 << 16
			}
			return err
		})
	}
	if d, err = e.Demo(context.Background(), c, silent); err != nil || d.Identical {
		t.Errorf("a wrong answer went unnoticed (error %v)", err)
	}
}
