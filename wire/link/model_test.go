package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"kvasir/internal/moe"
	"kvasir/wire"
)

// A valve is one direction of a connection that a test opens and shuts. It holds a few bytes, lets as
// many out as it is told, and hands them on in bits. Its times are exact within a synctest bubble.
type valve struct {
	mu     sync.Mutex
	cond   sync.Cond
	buf    []byte
	room   int  // bytes of buf
	bit    int  // the most that one read gets
	open   bool // nothing holds bytes back
	quota  int  // bytes that come out while it is shut
	closed bool // by the writer
	broken bool // by the reader
	rd, wd time.Time
}

func newValve(room, bit int) *valve {
	v := &valve{room: room, bit: bit, open: true}
	v.cond.L = &v.mu
	return v
}

func (v *valve) set(f func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f()
	v.cond.Broadcast()
}

// wait waits for a change, or until t unless that is zero. mu is held.
func (v *valve) wait(t time.Time) {
	if t.IsZero() {
		v.cond.Wait()
		return
	}
	timer := time.AfterFunc(time.Until(t), func() { v.set(func() {}) })
	v.cond.Wait()
	timer.Stop()
}

func (v *valve) write(p []byte) (n int, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for {
		switch {
		case v.closed || v.broken:
			return n, io.ErrClosedPipe
		case n == len(p):
			return n, nil
		case passed(v.wd):
			return n, os.ErrDeadlineExceeded
		case len(v.buf) < v.room:
			k := min(v.room-len(v.buf), len(p)-n)
			v.buf = append(v.buf, p[n:n+k]...)
			n += k
			v.cond.Broadcast()
			continue
		}
		v.wait(v.wd)
	}
}

func (v *valve) read(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for {
		k := min(len(p), len(v.buf), v.bit)
		if !v.open {
			k = min(k, v.quota)
		}
		switch {
		case v.broken:
			return 0, io.ErrClosedPipe
		case passed(v.rd):
			return 0, os.ErrDeadlineExceeded
		case k > 0:
			copy(p, v.buf[:k])
			v.buf = append(v.buf[:0], v.buf[k:]...)
			v.quota -= k
			v.cond.Broadcast()
			return k, nil
		case v.closed && len(v.buf) == 0:
			return 0, io.EOF
		}
		v.wait(v.rd)
	}
}

// valved is one end of a connection of two valves.
type valved struct {
	lane    // for the methods that are the same
	in, out *valve
}

func (c *valved) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *valved) Write(p []byte) (int, error) { return c.out.write(p) }
func (c *valved) Close() error {
	c.in.set(func() { c.in.broken = true })
	c.out.set(func() { c.out.closed = true })
	return nil
}
func (c *valved) SetReadDeadline(t time.Time) error {
	c.in.set(func() { c.in.rd = t })
	return nil
}
func (c *valved) SetWriteDeadline(t time.Time) error {
	c.out.set(func() { c.out.wd = t })
	return nil
}
func (c *valved) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// What may happen to a session.
const (
	evDispatch = iota // of so many rows
	evCancel          // a call under way
	evAssign          // which makes the worker fetch a slice
	evReceipt         // from a side
	evShut            // a direction, after so many bytes more
	evOpen            // a direction
	evWait            // so many milliseconds
	evSettle          // until nobody can go on
	evLeave           // GoAway from a side
	evKinds
)

// event is one step of a plan.
type event struct{ Kind, Side, N int }

// String makes a plan that fails readable.
func (e event) String() string {
	name := [...]string{"dispatch", "cancel", "assign", "receipt", "shut", "open", "wait", "settle", "leave"}
	return fmt.Sprintf("%s/%d/%d", name[e.Kind], e.Side, e.N)
}

// plan is what happens, and to what kind of session.
type plan struct {
	Rooms, Bits     [2]int // of the valves
	Calls, Window   int
	Answers         int // of the longest
	Parallel, Queue int
	Events          []event
}

func drawPlan(t *rapid.T) plan {
	p := plan{
		Calls: rapid.IntRange(1, 5).Draw(t, "calls"), Window: rapid.IntRange(30_000, 90_000).Draw(t, "window"),
		Answers: rapid.IntRange(1, 3).Draw(t, "answers"), Parallel: rapid.IntRange(1, 3).Draw(t, "parallel"),
		Queue: rapid.SampledFrom([]int{1, 5_000, 1 << 20}).Draw(t, "queue"),
	}
	for i := range 2 {
		p.Rooms[i] = rapid.SampledFrom([]int{1, 100, 5_000, 64 << 10}).Draw(t, "room")
		p.Bits[i] = rapid.SampledFrom([]int{7, 1_000, 1 << 20}).Draw(t, "bit")
		if p.Rooms[i] == 1 {
			p.Rooms[i] = wire.HeaderLen // a byte at a time takes longer than it teaches
		}
	}
	one := rapid.Custom(func(t *rapid.T) event {
		e := event{Kind: rapid.IntRange(0, evKinds-1).Draw(t, "kind"), Side: rapid.IntRange(0, 1).Draw(t, "side")}
		limit := map[int]int{evDispatch: 200, evCancel: 30, evShut: 40_000, evWait: 6_000}[e.Kind]
		e.N = rapid.IntRange(0, limit).Draw(t, "n")
		if e.Kind == evLeave && rapid.IntRange(0, 5).Draw(t, "stay") > 0 {
			e.Kind = evDispatch // few plans end early
		}
		return e
	})
	p.Events = rapid.SliceOfN(one, 1, 60).Draw(t, "events")
	return p
}

// Bounds of a plan's stalls: no session is to be cut, so none stands still for the 10 s that cut it.
const (
	stillMost = 8 * time.Second
	breathe   = 1500 * time.Millisecond // in which all that arrived is acknowledged
)

// pending is a call of a plan.
type pending struct {
	what   string
	cancel context.CancelFunc
	done   chan error
}

// play is a plan under way, on both ends of a real session.
type play struct {
	t      *testing.T
	p      plan
	rig    *rig
	peer   *Peer
	valves [2]*valve // from the backbone, from the worker
	shutAt time.Time // since when a valve has been shut, without a pause; zero: none is
	calls  []*pending
	left   bool // somebody has said GoAway
	drains sync.WaitGroup

	mu   sync.Mutex
	errs []error
	sent [2]int // receipts from the backbone, from the worker, before anybody left
	got  [2]int
}

func (y *play) failf(format string, args ...any) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.errs = append(y.errs, fmt.Errorf(format, args...))
}

// modelHidden is the width of a plan's rows.
const modelHidden = 96

func (y *play) begin() {
	p := y.p
	y.valves = [2]*valve{newValve(p.Rooms[0], p.Bits[0]), newValve(p.Rooms[1], p.Bits[1])}
	slow := fakes(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
		select {
		case <-time.After(time.Duration(b.Layer) * 40 * time.Millisecond):
			return hashes{}.Forward(ctx, b, out)
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	books := shelf{{1}: make([]byte, 150_000)}
	started := make(chan *Peer, 1)
	w := Worker{
		Experts: slow, Started: func(p *Peer) { started <- p },
		Assign: func(ctx context.Context, _ wire.Assign, fetch SliceReader) (moe.Experts, error) {
			got, err := fetchAll(ctx, fetch, wire.Hash{1}, 0)
			if err == nil && len(got) != 150_000 {
				y.failf("%d bytes of a slice", len(got))
			}
			return slow, err
		},
	}
	bo := Options{Slices: books.read, Receipt: y.receipt(0), Answers: wire.PartialsBound(201, modelHidden) * p.Answers}
	wo := Options{Receipt: y.receipt(1), Parallel: p.Parallel, queued: p.Queue}
	wo.Hello.Calls, wo.Hello.Window = p.Calls, p.Window
	y.rig = join(y.t, &valved{in: y.valves[1], out: y.valves[0]}, &valved{in: y.valves[0], out: y.valves[1]}, w, bo, wo)
	y.peer = <-started
}

// receipt counts what arrives at a side, and that nothing is lost between.
func (y *play) receipt(side int) func(wire.Receipt) {
	return func(r wire.Receipt) {
		y.mu.Lock()
		defer y.mu.Unlock()
		if y.got[1-side]++; r.Sequence != uint64(y.got[1-side]) {
			y.errs = append(y.errs, fmt.Errorf("receipt %d came as number %d", r.Sequence, y.got[1-side]))
		}
	}
}

func (y *play) do(e event) {
	switch e.Kind {
	case evDispatch:
		y.dispatch(1 + e.N)
	case evAssign:
		y.call("assign", func(ctx context.Context) error { return y.rig.Assign(ctx, []wire.Slice{{Hi: 1}}) })
	case evCancel:
		if n := len(y.calls); n > 0 {
			y.calls[e.N%n].cancel()
		}
	case evReceipt:
		y.mu.Lock()
		r := wire.Receipt{Sequence: uint64(y.sent[e.Side] + 1), Signed: make([]byte, 100)}
		y.mu.Unlock()
		send := [2]func(wire.Receipt) error{y.rig.SendReceipt, y.peer.SendReceipt}[e.Side]
		if !y.left && send(r) == nil {
			y.mu.Lock()
			y.sent[e.Side]++
			y.mu.Unlock()
		}
	case evShut:
		y.valves[e.Side].set(func() { y.valves[e.Side].open, y.valves[e.Side].quota = false, e.N })
		if y.shutAt.IsZero() {
			y.shutAt = time.Now()
		}
	case evOpen:
		y.valves[e.Side].set(func() { y.valves[e.Side].open = true })
		if y.valves[1-e.Side].open {
			y.breathe()
		}
	case evWait:
		y.wait(time.Duration(e.N) * time.Millisecond)
	case evSettle:
		synctest.Wait()
	case evLeave:
		y.leave(e.Side)
	}
}

// breathe opens both valves for long enough that what has arrived is acknowledged.
func (y *play) breathe() {
	for _, v := range y.valves {
		v.set(func() { v.open = true })
	}
	if !y.shutAt.IsZero() {
		y.shutAt = time.Time{}
		time.Sleep(breathe)
	}
}

// wait lets time go by, with a pause for breath where a stall would become too long.
func (y *play) wait(d time.Duration) {
	if y.shutAt.IsZero() {
		time.Sleep(d)
		return
	}
	if most := stillMost - time.Since(y.shutAt); d >= most {
		time.Sleep(most)
		y.breathe()
		return
	}
	time.Sleep(d)
}

func (y *play) call(what string, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &pending{what: what, cancel: cancel, done: make(chan error, 1)}
	y.calls = append(y.calls, c)
	go func() { c.done <- f(ctx) }()
}

func (y *play) dispatch(rows int) {
	n := len(y.calls)
	batch := newBatch(y.t, seeded(uint64(n)), moe.Shape{Layer: n % 4, Hidden: modelHidden, Format: moe.RowQ8K}, rows)
	want := direct(y.t, hashes{}, batch)
	y.call(fmt.Sprintf("dispatch of %d rows", rows), func(ctx context.Context) error {
		out := &moe.Partials{}
		err := y.rig.Forward(ctx, batch, out)
		if err == nil && !same(out, want) {
			y.failf("call %d: a wrong answer", n)
		}
		spoil(batch, out)
		return err
	})
}

func (y *play) leave(side int) {
	if y.left {
		return
	}
	y.left = true
	g := wire.GoAway{Reason: wire.Stopping}
	if side == 1 {
		y.peer.GoAway(g)
		return
	}
	y.drains.Go(func() {
		if err := y.rig.Drain(context.Background(), g); err != nil {
			y.failf("drain: %v", err)
		}
	})
}

// finish lifts all stalls and holds the plan to what it promises: every call ends, and nothing is left
// in any queue of either side.
func (y *play) finish() {
	y.breathe()
	for i, c := range y.calls {
		select {
		case err := <-c.done:
			away := y.left && (errors.Is(err, ErrDraining) || errors.Is(err, ErrClosed) || errors.Is(err, ErrCancelled))
			if err != nil && !errors.Is(err, context.Canceled) && !away {
				y.failf("call %d, %s: %v", i, c.what, err)
			}
		case <-time.After(5 * time.Minute):
			y.failf("call %d, %s, does not end", i, c.what)
		}
		c.cancel()
	}
	time.Sleep(3 * time.Second)
	if !y.left {
		if err := y.rig.Err(); err != nil {
			y.failf("the session ended: %v", err)
		}
		y.empty("backbone", y.rig.m)
		y.empty("worker", y.peer.m)
		y.leave(0)
	}
	y.drains.Wait()
	<-y.rig.Done()
	_ = y.rig.Close()
	var away *Away
	if err := <-y.rig.served; err != nil && !errors.As(err, &away) {
		y.failf("worker's end: %v", err)
	}
	y.rig.stop()
	if err := y.rig.Err(); err != nil && !errors.As(err, &away) {
		y.failf("backbone's end: %v", err)
	}
	if y.got[0] < y.sent[0] || y.got[1] < y.sent[1] {
		y.failf("receipts sent %v, arrived %v", y.sent, y.got)
	}
}

// empty checks that a side has nothing under way.
func (y *play) empty(side string, m *mux) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, q := range map[string]*queue{"controls": &m.controls, "rows": &m.rows, "slices": &m.slices} {
		if q.count != 0 || q.bytes != 0 || q.head != nil || q.tail != nil {
			y.failf("%s: %d messages of %d bytes are left in %s", side, q.count, q.bytes, name)
		}
	}
	if len(m.calls) != 0 || len(m.jobs) != 0 || m.held != [kinds]int{} || m.heldSize != 0 {
		y.failf("%s: %d calls, %d jobs, held %v of %d bytes are left", side, len(m.calls), len(m.jobs), m.held, m.heldSize)
	}
	for k := range m.gates {
		if g := &m.gates[k]; g.usedCalls != 0 || g.usedSize != 0 || g.usedBound != 0 || g.waiting.head != nil {
			y.failf("%s: gate %d is not free: %+v", side, k, g)
		}
	}
	if m.pace.unacked() != 0 || m.receipts != 0 || m.pong.due || m.running != [2]int{} ||
		m.ready[0].head != nil || m.ready[1].head != nil {
		y.failf("%s: %d bytes unacknowledged, %d receipts, running %v", side, m.pace.unacked(), m.receipts, m.running)
	}
}

// run plays a plan in a bubble of its own, where time costs nothing, and returns what went wrong.
func (p plan) run(t *testing.T) (err error) {
	synctest.Test(t, func(t *testing.T) {
		y := &play{t: t, p: p}
		y.begin()
		for _, e := range p.Events {
			y.do(e)
		}
		y.finish()
		err = errors.Join(y.errs...)
	})
	return err
}

// TestAnyPlanOfEventsIsPlayedToItsEnd is a model check of whole sessions, both ends of them real: a plan
// is any order of dispatches, cancels, assigns with their fetches, receipts, stalls of either direction
// after any byte, pauses in which pings and credits fall due, and GoAways. Whatever it is, once the
// stalls are lifted every call ends, its answer has the right bits, and no queue keeps anything.
func TestAnyPlanOfEventsIsPlayedToItsEnd(t *testing.T) {
	rounds := 1
	if soaking() {
		rounds = 100
	}
	played := 0
	for range rounds {
		rapid.Check(t, func(rt *rapid.T) {
			p := drawPlan(rt)
			played++
			if err := p.run(t); err != nil {
				rt.Fatal(err)
			}
		})
	}
	t.Logf("%d plans were played to their end", played)
}

// soaking reports whether the long forms are asked for. They take minutes.
func soaking() bool { return os.Getenv("KVASIR_SOAK") == "1" }
