package link

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"reflect"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kvasir/internal/moe"
	"kvasir/internal/slab"
	"kvasir/wire"
)

// TestMain wants no goroutine and no slab to be left.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if n := slab.Shared.Stats().InUse; n != 0 && code == 0 {
			_, _ = fmt.Fprintf(os.Stderr, "%d bytes of slabs are in use after all tests\n", n)
			code = 1
		}
		os.Exit(code) //nolint:forbidigo // as goleak does by itself
	}))
}

// hashes is an executor without weights: a partial is a hash of the row and its picks. Rows whose first
// scale is NaN are faulted.
type hashes struct{}

func (hashes) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	if err := b.Validate(moe.MaxExperts); err != nil {
		return err
	}
	out.Reset(b.Rows, b.Hidden)
	for r := range b.Rows {
		row := b.Row(r)
		if len(row.Scales) > 0 && row.Scales[0] != row.Scales[0] {
			out.Fault(r, moe.NonFinite)
			continue
		}
		h := uint64(b.Layer)
		for _, v := range row.Q {
			h = h*31 + uint64(v)
		}
		for _, v := range row.Scales {
			h = h*31 + uint64(math.Float32bits(v))
		}
		for _, v := range row.F {
			h = h*31 + uint64(math.Float32bits(v))
		}
		expert, weight := b.Picks(r)
		for i, e := range expert {
			h = h*6364136223846793005 + uint64(e)<<32 + uint64(math.Float32bits(weight[i]))
		}
		sum := out.Row(r)
		for k := range sum {
			h = h*6364136223846793005 + 1442695040888963407
			sum[k] = int64(h) >> (40 + h%16)
		}
	}
	return nil
}

// fakes is an executor made of a function.
type fakes func(context.Context, *moe.Batch, *moe.Partials) error

func (f fakes) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	return f(ctx, b, out)
}

// waits holds every call until its context ends or the channel is closed, and then answers as hashes do.
func waits(release <-chan struct{}) moe.Experts {
	return fakes(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
		select {
		case <-release:
			return hashes{}.Forward(ctx, b, out)
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

func newBatch(t testing.TB, rng *rand.Rand, s moe.Shape, rows int) *moe.Batch {
	t.Helper()
	b, err := moe.NewBatch(s, rows, rows*moe.MaxTopK)
	if err != nil {
		t.Fatal(err)
	}
	for range rows {
		n := 1 + rng.IntN(8)
		expert, weight := make([]uint16, n), make([]float32, n)
		for i := range expert {
			expert[i], weight[i] = uint16(rng.IntN(256)), rng.Float32()
		}
		row := b.Row(b.Grow(expert, weight))
		v := rng.Uint32()
		for i := range row.Q {
			v = v*1664525 + 1013904223
			row.Q[i] = int8(v>>24) | 1 // never -128
		}
		for i := range row.Scales {
			row.Scales[i] = rng.Float32()
		}
		for i := range row.F {
			row.F[i] = rng.Float32() - 0.5
		}
	}
	return b
}

func seeded(n uint64) *rand.Rand { return rand.New(rand.NewPCG(n, 17)) }

func small(t testing.TB, n uint64, rows int) *moe.Batch {
	return newBatch(t, seeded(n), moe.Shape{Layer: 1, Hidden: 64, Format: moe.RowQ8K}, rows)
}

// big is a batch whose Dispatch has about 33 chunks.
func big(t testing.TB, n uint64) *moe.Batch {
	return newBatch(t, seeded(n), moe.Shape{Layer: 2, Hidden: 1024, Format: moe.RowQ8K}, 500)
}

// direct is the answer to b without a connection.
func direct(t testing.TB, x moe.Experts, b *moe.Batch) *moe.Partials {
	t.Helper()
	var out moe.Partials
	if err := x.Forward(context.Background(), b, &out); err != nil {
		t.Fatal(err)
	}
	return &out
}

func same(a, b *moe.Partials) bool {
	return a.Rows == b.Rows && a.Hidden == b.Hidden && reflect.DeepEqual(a.Sum, b.Sum) && reflect.DeepEqual(a.Status, b.Status)
}

// check compares the session's answer to b with the direct one.
func check(s *Session, b *moe.Batch) error {
	var got, want moe.Partials
	if err := s.Forward(context.Background(), b, &got); err != nil {
		return err
	}
	if err := (hashes{}).Forward(context.Background(), b, &want); err != nil {
		return err
	}
	if !same(&got, &want) {
		return fmt.Errorf("the answer to %d rows differs", b.Rows)
	}
	return nil
}

// hello is what both sides of a test agree on.
func hello() wire.Hello {
	return wire.Hello{Layers: 4, Experts: 256, Model: wire.Hash{1}, Profile: wire.Hash{2}, Agent: []byte("test")}
}

// rig is a session with both sides in this process.
type rig struct {
	*Session
	conn   [2]net.Conn // backbone's, worker's
	served chan error  // gets what Serve returns
	stop   context.CancelFunc
}

// join makes a session over two ends of a connection.
func join(t testing.TB, backbone, worker net.Conn, w Worker, bo, wo Options) *rig {
	t.Helper()
	if bo.Hello.Model.IsZero() {
		bo.Hello = hello()
	}
	if wo.Hello.Model.IsZero() {
		h := hello()
		h.Calls, h.Window = wo.Hello.Calls, wo.Hello.Window
		wo.Hello = h
	}
	bo.Name, wo.Name = "worker", "backbone"
	ctx, cancel := context.WithCancel(context.Background())
	r := &rig{conn: [2]net.Conn{backbone, worker}, served: make(chan error, 1), stop: cancel}
	go func() { r.served <- Serve(ctx, worker, w, wo) }()
	s, err := Open(context.Background(), backbone, bo)
	if err != nil {
		t.Fatal(err)
	}
	r.Session = s
	return r
}

// end closes the session and returns what Serve returned.
func (r *rig) end() error {
	_ = r.Close()
	err := <-r.served
	r.stop()
	return err
}

// piped is a session over net.Pipe, with hashes at the worker.
func piped(t testing.TB) *rig {
	a, b := net.Pipe()
	return join(t, a, b, Worker{Experts: hashes{}}, Options{}, Options{})
}

// loopback returns the two ends of a TCP connection.
func loopback(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

// road is one direction of a path: bytes leave at a rate, arrive after a delay, and a writer waits when
// too many have not left. Its times are exact within a synctest bubble.
type road struct {
	mu       sync.Mutex
	cond     sync.Cond
	rate     int // bytes a second
	delay    time.Duration
	buffer   int // bytes that have been written and have not left
	free     time.Time
	pieces   []piece
	closed   bool // by the writer: what is under way arrives
	broken   bool // by the reader
	stopped  bool // what is written is lost
	rd, wd   time.Time
	arrivals []mark // of writes, for tests: when the last byte is there
}

type piece struct {
	at time.Time
	p  []byte
}

type mark struct {
	at time.Time
	n  int
}

func newRoad(rate int, delay time.Duration, buffer int) *road {
	r := &road{rate: rate, delay: delay, buffer: buffer}
	r.cond.L = &r.mu
	return r
}

// until waits for a change or a time. mu is held.
func (r *road) until(t time.Time) {
	if t.IsZero() {
		r.cond.Wait()
		return
	}
	timer := time.AfterFunc(time.Until(t), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.cond.Broadcast()
	})
	r.cond.Wait()
	timer.Stop()
}

// sooner returns the earlier time; zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func passed(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

func (r *road) write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		now := time.Now()
		if r.free.Before(now) {
			r.free = now
		}
		waiting := int(r.free.Sub(now) * time.Duration(r.rate) / time.Second)
		switch {
		case r.closed || r.broken:
			return 0, io.ErrClosedPipe
		case passed(r.wd):
			return 0, os.ErrDeadlineExceeded
		case r.stopped:
			return len(p), nil
		case waiting == 0 || waiting+len(p) <= r.buffer:
			r.free = r.free.Add(time.Duration(len(p)) * time.Second / time.Duration(r.rate))
			at := r.free.Add(r.delay)
			r.pieces = append(r.pieces, piece{at: at, p: append([]byte(nil), p...)})
			r.arrivals = append(r.arrivals, mark{at, len(p)})
			r.cond.Broadcast()
			return len(p), nil
		}
		room := now.Add(time.Duration(max(waiting+len(p)-r.buffer, 1)) * time.Second / time.Duration(r.rate))
		r.until(sooner(room, r.wd))
	}
}

func (r *road) read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		switch {
		case r.broken:
			return 0, io.ErrClosedPipe
		case passed(r.rd):
			return 0, os.ErrDeadlineExceeded
		case len(r.pieces) > 0 && passed(r.pieces[0].at) && !r.stopped:
			n := copy(p, r.pieces[0].p)
			if r.pieces[0].p = r.pieces[0].p[n:]; len(r.pieces[0].p) == 0 {
				r.pieces = r.pieces[1:]
			}
			return n, nil
		case len(r.pieces) == 0 && r.closed && !r.stopped:
			return 0, io.EOF
		}
		var next time.Time
		if len(r.pieces) > 0 && !r.stopped {
			next = r.pieces[0].at
		}
		r.until(sooner(next, r.rd))
	}
}

func (r *road) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	r.cond.Broadcast()
}

// lane is one end of a path of two roads.
type lane struct{ in, out *road }

// path returns the two ends of a connection whose directions have a rate and a delay each, and a buffer
// of 64 KiB.
func path(rate int, delay time.Duration) (a, b *lane) {
	x, y := newRoad(rate, delay, 64<<10), newRoad(rate, delay, 64<<10)
	return &lane{x, y}, &lane{y, x}
}

func (l *lane) Read(p []byte) (int, error)  { return l.in.read(p) }
func (l *lane) Write(p []byte) (int, error) { return l.out.write(p) }
func (l *lane) Close() error {
	l.in.set(func() { l.in.broken = true })
	l.out.set(func() { l.out.closed = true })
	return nil
}
func (l *lane) SetReadDeadline(t time.Time) error {
	l.in.set(func() { l.in.rd = t })
	return nil
}
func (l *lane) SetWriteDeadline(t time.Time) error {
	l.out.set(func() { l.out.wd = t })
	return nil
}
func (l *lane) SetDeadline(t time.Time) error {
	_ = l.SetReadDeadline(t)
	return l.SetWriteDeadline(t)
}
func (l *lane) LocalAddr() net.Addr  { return nil }
func (l *lane) RemoteAddr() net.Addr { return nil }

// halt makes both directions deliver nothing any more.
func (l *lane) halt() {
	for _, r := range []*road{l.in, l.out} {
		r.set(func() { r.stopped = true })
	}
}
