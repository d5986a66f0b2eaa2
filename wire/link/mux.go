package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/bytebufferpool"

	"kvasir/internal/moe"
	"kvasir/wire"
)

// errDone is how a session ends that was asked to. It is not shown to anybody.
var errDone = errors.New("link: done")

// mux is what both sides of a session are made of: calls that this side begins, jobs that the other
// side begins, and the queues between them and the connection.
//
// Owners: readLoop reads the connection and fills what arrives; writeLoop writes it; run computes jobs.
// A caller's batch is read by the writer, under mu, and only while its message is in a queue.
type mux struct {
	conn    net.Conn
	o       Options
	role    wire.Role
	peer    wire.Hello
	version uint16
	serve   func(context.Context, *job) (frame, error) // computes a job; returns the payload of its end

	free func() // called after the last job; nil: nothing to do

	base    context.Context // of all jobs; cancelled when the session ends
	stop    context.CancelFunc
	cutter  *time.Timer   // closes the connection if the writer does not, from the end on
	dead    chan struct{} // closed when err is set
	cut     chan struct{} // closed when cutter has run
	leaving chan struct{} // closed when no call is begun any more
	wake    chan struct{} // something is to be sent
	group   sync.WaitGroup
	in, out atomic.Uint64 // bytes on the connection

	reader // readLoop's own

	mu   sync.Mutex // leaf but for the pools'
	cond sync.Cond  // jobs may be computed again: there is room for their answers, or the end has come
	err  error      // why the session ended; errDone: as was asked for

	// What is to be sent, by falling priority.
	pong     slot
	ping     pinger
	credit   credit
	controls queue
	rows     queue
	slices   queue
	pace     pace
	receipts int // in controls

	// Calls that this side begins.
	lastID uint64
	calls  map[uint64]*call
	gates  [kinds]gate
	idle   *call  // for further use
	lates  int    // calls that were given up and whose answers are of interest
	epoch  uint32 // of the last Assign that is Ready

	// Jobs: calls that the other side begins.
	jobs     map[uint64]*job
	lastJob  [kinds]uint64
	held     [kinds]int // jobs under way
	heldSize int        // bytes of Dispatches under way
	ready    [2]jobList // complete: Dispatches, and the others
	running  [2]int     // goroutines in run
	crews    crews
	idleJob  *job

	live    int      // goroutines of the session
	idleMsg *message // for further use

	// The end.
	awayOut, awayIn bool // GoAway has been queued, has come
	away            *Away
	drainBy         time.Time
	done, faulted   uint64
	inRate          float64 // bytes a second at which long messages come; 0: not known
}

// kinds is the number of kinds of calls, indexes of arrays: see kindOf.
const kinds = 3

// kindOf returns the index of a type that begins calls.
func kindOf(t wire.Type) int {
	switch t {
	case wire.TypeDispatch:
		return 0
	case wire.TypeAssign:
		return 1
	}
	return 2 // Fetch
}

// slot is one number to be sent. A newer one takes its place.
type slot struct {
	due   bool
	value uint64
}

// pinger measures round trips.
type pinger struct {
	next time.Time // when to ping
	sent time.Time // when the last one left
	// number is that of the last Ping, and open says that its Pong has not come.
	number uint64
	open   bool
	last   time.Duration
}

// credit is what the other side must be told about its bulk bytes.
type credit struct {
	received uint64    // by the reader
	told     uint64    // in the last Credit
	since    time.Time // when received first exceeded told
}

// due reports whether a Credit must leave by now.
func (c *credit) due(now time.Time) bool {
	n := c.received - c.told
	return n >= creditStep || n > 0 && !now.Before(c.since.Add(creditWait))
}

func newMux(conn net.Conn, o Options, role wire.Role) *mux {
	m := &mux{
		conn: conn, o: o, role: role,
		dead: make(chan struct{}), cut: make(chan struct{}), leaving: make(chan struct{}), wake: make(chan struct{}, 1),
		calls: map[uint64]*call{}, jobs: map[uint64]*job{},
		pace: newPace(),
	}
	m.cond.L = &m.mu
	m.crews.init(m.o.Parallel, m.run)
	m.base, m.stop = context.WithCancel(context.Background())
	return m
}

// start begins the session after the handshake.
func (m *mux) start() {
	m.gates[kindOf(wire.TypeDispatch)] = gate{calls: m.peer.Calls, size: m.peer.Window, bound: m.o.Answers}
	m.gates[kindOf(wire.TypeAssign)] = gate{calls: 1, bound: assignBound}
	m.gates[kindOf(wire.TypeFetch)] = gate{calls: wire.MaxFetches, bound: wire.MaxFetches * fetchBound}
	attrs := []any{"peer", m.o.Name, "protocol", m.version}
	if len(m.peer.Agent) > 0 {
		attrs = append(attrs, "agent", string(m.peer.Agent))
	}
	m.o.Log.Info("session begins", attrs...)
	m.mu.Lock()
	m.begin()
	m.begin()
	m.mu.Unlock()
	go m.readLoop()
	go m.writeLoop()
}

// begin counts a goroutine of the session that is about to start. mu is held.
func (m *mux) begin() {
	m.group.Add(1)
	m.live++
}

// end is the last that readLoop and writeLoop do.
func (m *mux) end() {
	m.mu.Lock()
	m.over()
	m.mu.Unlock()
	m.group.Done()
}

// over notes that a goroutine of the session is over. The last gives back the memory of all that was
// under way. mu is held.
func (m *mux) over() {
	if m.live--; m.live > 0 {
		return
	}
	for _, j := range m.jobs {
		j.buf.release()
		j.payload.release()
		j.end.data.release()
	}
	for _, c := range m.calls {
		c.buf.release()
		if c.late != nil {
			c.late.timer.Stop()
		}
	}
	if m.free != nil {
		m.free()
	}
}

// wait returns when no goroutine of the session is left. It has ended.
func (m *mux) wait() {
	m.group.Wait()
	m.crews.dismiss()
}

// kick tells the writer that something is to be sent.
func (m *mux) kick() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// fail ends the session for a reason, the first of which stays. The writer has the last word and closes
// the connection; if a write holds it up, the connection is closed over its head.
func (m *mux) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failLocked(err)
}

func (m *mux) failLocked(err error) {
	if m.err != nil {
		return
	}
	m.err = err
	close(m.dead)
	m.leave()
	m.stop()
	m.cond.Broadcast()
	m.cutter = time.AfterFunc(farewellWait, func() {
		_ = m.conn.Close() // so that a write that holds up the writer ends
		close(m.cut)
	})
}

// leave says that no call is begun any more. mu is held.
func (m *mux) leave() {
	select {
	case <-m.leaving:
	default:
		close(m.leaving)
	}
}

// reason returns why the session ended, as callers see it.
func (m *mux) reason() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reasonLocked()
}

func (m *mux) reasonLocked() error {
	switch {
	case m.err == nil:
		return nil
	case errors.Is(m.err, ErrClosed):
		return m.err
	case errors.Is(m.err, errDone):
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrClosed, m.err)
}

// result returns what the session's owner gets at the end: nil where this side asked for it.
func (m *mux) result() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case errors.Is(m.err, errDone) && m.away != nil:
		return m.away
	case errors.Is(m.err, errDone):
		return nil
	}
	return m.reasonLocked()
}

// ended turns an error of the connection into the end of the session.
func (m *mux) ended(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.finished() && !errors.Is(err, ErrProtocol):
		err = errDone
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("%w: the connection ended", io.EOF)
	}
	m.failLocked(err)
}

// finished reports whether both sides have said GoAway and nothing is under way. mu is held.
func (m *mux) finished() bool {
	return m.awayOut && m.awayIn && len(m.calls) == 0 && len(m.jobs) == 0
}

// goAway begins the end: no call is begun any more, those that have not begun fail, and what is under
// way is finished. mu is held.
func (m *mux) goAway(g wire.GoAway, now time.Time) {
	if m.awayOut || m.err != nil {
		return
	}
	m.awayOut = true
	m.drainBy = now.Add(m.o.Drain)
	b := bytebufferpool.Get()
	b.B = wire.AppendGoAway(b.B, g)
	m.control(wire.TypeGoAway, 0, textFrame(b))
	m.leave()
	for k := range m.gates {
		for c := m.gates[k].next(); c != nil; c = m.gates[k].next() {
			m.drop(c, ErrDraining)
		}
	}
	for _, c := range m.calls {
		if c.out.queue != nil && c.out.off == 0 {
			m.retract(c)
			m.drop(c, ErrDraining)
		}
	}
	for _, j := range m.jobs {
		if j.kind == wire.TypeAssign { // it may take longer than anybody waits
			m.cancelJob(j)
		}
	}
	m.kick()
}

// control queues a control message that belongs to no job. mu is held.
func (m *mux) control(t wire.Type, id uint64, payload frame) {
	msg := m.idleMsg
	if msg == nil {
		msg = &message{}
	} else {
		m.idleMsg, msg.next = msg.next, nil
	}
	msg.begin(t, len(payload.data), id, payload)
	m.controls.push(msg)
}

// receipt queues a statement.
func (m *mux) receipt(r wire.Receipt) error {
	if len(r.Signed) > wire.MaxSigned {
		return fmt.Errorf("%w: statement of %d bytes, want at most %d", ErrTooBig, len(r.Signed), wire.MaxSigned)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.err != nil:
		return m.reasonLocked()
	case m.receipts == maxReceipts:
		return fmt.Errorf("%w: %d statements", ErrBusy, m.receipts)
	}
	m.receipts++
	b := bytebufferpool.Get()
	b.B = wire.AppendReceipt(b.B, r)
	m.control(wire.TypeReceipt, 0, textFrame(b))
	m.kick()
	return nil
}

func (m *mux) stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Stats{
		BytesIn: m.in.Load(), BytesOut: m.out.Load(),
		Done: m.done, Faulted: m.faulted, Calls: len(m.calls), Jobs: len(m.jobs),
		Unacked: int(m.pace.unacked()), Pace: int(m.pace.window),
		RTT: m.ping.last, MinRTT: m.pace.smallest(), InRate: m.inRate,
	}
}

// close ends the session if it has not ended, and waits until its goroutines have.
func (m *mux) close() {
	m.fail(errDone)
	m.wait()
}

// drain ends the session in order, or by force when ctx ends first.
func (m *mux) drain(ctx context.Context, g wire.GoAway) error {
	m.mu.Lock()
	m.goAway(g, time.Now())
	m.mu.Unlock()
	select {
	case <-m.dead:
	case <-ctx.Done():
		m.fail(fmt.Errorf("%w: %w", ErrClosed, ctx.Err()))
	}
	m.wait()
	return m.result()
}

// batchOf returns the batch of a message; nil but for a Dispatch.
func batchOf(msg *message) *moe.Batch {
	if msg.call == nil {
		return nil
	}
	return msg.call.batch
}
