package link

import (
	"context"
	"fmt"

	"kvasir/internal/moe"
	"kvasir/wire"
)

// call is one that this side begins. Its owner is the goroutine that made it until the call has ended,
// or until it has given it up; then the mux keeps it until the other side's end has come.
//
//	waiting -> in a queue -> on the other side -> ended
//
// Fields are guarded by mux.mu, but for arrival's.
type call struct {
	id    uint64
	kind  wire.Type
	size  int // bytes that count against the other side's window
	bound int // largest payload of the answer
	batch *moe.Batch
	out   message
	done  chan result // one result, when the call has ended

	waiting bool
	given   bool // up by its owner: the end is dropped
	ended   bool
	late    *lateCall // takes the answer though it is given up; nil: nobody
	arrival           // of a bulk answer; the reader's
	next    *call     // of a list
}

// result is how a call ended. Whoever takes it owns the payload.
type result struct {
	payload frame
	epoch   uint32 // of a Ready
	err     error
}

// callList is calls in the order of their arrival.
type callList struct{ head, tail *call }

func (l *callList) push(c *call) {
	c.next = nil
	if l.tail == nil {
		l.head = c
	} else {
		l.tail.next = c
	}
	l.tail = c
}

func (l *callList) pop() *call {
	c := l.head
	if c == nil {
		return nil
	}
	l.head, c.next = c.next, nil
	if l.head == nil {
		l.tail = nil
	}
	return c
}

func (l *callList) remove(c *call) {
	var prev *call
	for p := l.head; p != c; p = p.next {
		prev = p
	}
	if prev == nil {
		l.pop()
		return
	}
	prev.next, c.next = c.next, nil
	if l.tail == c {
		l.tail = prev
	}
}

// gate lets calls of one kind through while there is room for them on both sides: first come, first
// served, so a large one is not passed by small ones for ever. At most maxWaiting wait; nothing of theirs
// is copied, so they have no bytes to count.
type gate struct {
	calls, size, bound int // room

	usedCalls, usedSize, usedBound int
	waiting                        callList
	waiters                        int // in waiting
}

func (g *gate) fits(c *call) bool {
	return g.usedCalls < g.calls && g.usedSize+c.size <= g.size && g.usedBound+c.bound <= g.bound
}

// wait puts c behind those that wait.
func (g *gate) wait(c *call) {
	c.waiting = true
	g.waiting.push(c)
	g.waiters++
}

// next takes the first of those that wait; nil: none.
func (g *gate) next() *call {
	c := g.waiting.pop()
	if c != nil {
		c.waiting = false
		g.waiters--
	}
	return c
}

// leave takes c, which waits, out.
func (g *gate) leave(c *call) {
	g.waiting.remove(c)
	c.waiting = false
	g.waiters--
}

func (g *gate) take(c *call) {
	g.usedCalls++
	g.usedSize += c.size
	g.usedBound += c.bound
}

func (g *gate) release(c *call) {
	g.usedCalls--
	g.usedSize -= c.size
	g.usedBound -= c.bound
}

// want is a call to be made.
type want struct {
	kind  wire.Type
	batch *moe.Batch // of a Dispatch
	data  frame      // the payload of an Assign or Fetch, which do owns
	size  int        // bytes that count against the other side's window
	bound int        // worst size of the answer
}

// do makes a call and waits for its end. It returns when nothing touches the batch any more.
func (m *mux) do(ctx context.Context, w want) (result, error) {
	if err := ctx.Err(); err != nil {
		w.data.release()
		return result{}, err
	}
	g := &m.gates[kindOf(w.kind)]
	m.mu.Lock()
	if err := m.refusal(g, w); err != nil {
		m.mu.Unlock()
		w.data.release()
		return result{}, err
	}
	c := m.newCall(w)
	g.wait(c)
	m.admit(g)
	m.mu.Unlock()

	var err error
	var late *lateCall
	select {
	case r := <-c.done:
		m.recycle(c)
		return r, r.err
	case <-ctx.Done():
		if err = ctx.Err(); w.batch != nil {
			late = lateOf(ctx, w.batch)
		}
	case <-m.dead:
	}
	return m.giveUp(c, err, late)
}

// refusal says why a call cannot be begun, if so. mu is held.
func (m *mux) refusal(g *gate, w want) error {
	switch {
	case m.err != nil:
		return m.reasonLocked()
	case m.awayOut:
		return ErrDraining
	case w.size > g.size:
		return fmt.Errorf("%w: %d bytes to send, the worker takes %d", ErrTooBig, w.size, g.size)
	case g.waiters == maxWaiting:
		return fmt.Errorf("%w: %d calls wait for room at the peer", ErrBusy, g.waiters)
	case w.bound > g.bound:
		return fmt.Errorf("%w: the answer may have %d bytes, room is for %d", ErrTooBig, w.bound, g.bound)
	}
	return nil
}

// newCall returns a call for w. mu is held.
func (m *mux) newCall(w want) *call {
	c := m.idle
	if c == nil {
		c = &call{done: make(chan result, 1)}
		c.out.call = c
	} else {
		m.idle = c.next
	}
	c.kind, c.size, c.bound, c.batch, c.out.data = w.kind, w.size, w.bound, w.batch, w.data
	return c
}

// recycle keeps a call that has ended and whose result has been taken.
func (m *mux) recycle(c *call) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recycleLocked(c)
}

func (m *mux) recycleLocked(c *call) {
	c.out.data.release()
	*c = call{done: c.done, next: m.idle}
	c.out.call = c
	m.idle = c
}

// admit lets calls through the gate. mu is held.
func (m *mux) admit(g *gate) {
	for c := g.waiting.head; c != nil && g.fits(c); c = g.waiting.head {
		g.next()
		g.take(c)
		m.lastID++
		c.id = m.lastID
		m.calls[c.id] = c
		if c.kind == wire.TypeDispatch {
			c.out.begin(c.kind, c.size, c.id, frame{})
			m.rows.push(&c.out)
		} else {
			c.out.begin(c.kind, len(c.out.data.data), c.id, c.out.data)
			m.controls.push(&c.out)
		}
		m.kick()
	}
}

// retract takes back a call of which nothing has left. mu is held.
func (m *mux) retract(c *call) {
	c.out.remove()
	delete(m.calls, c.id)
	g := &m.gates[kindOf(c.kind)]
	g.release(c)
	m.admit(g)
}

// drop ends a call that the other side has not seen, or never will. mu is held.
func (m *mux) drop(c *call, err error) {
	m.faulted++
	c.ended, c.batch = true, nil
	c.done <- result{err: err}
}

// giveUp ends the owner's interest in a call, for err or because the session has ended. An answer that
// has come nevertheless is returned; one that comes later goes to late, if that is not nil.
func (m *mux) giveUp(c *call, err error, late *lateCall) (result, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.ended {
		r := <-c.done
		m.recycleLocked(c)
		return r, r.err
	}
	c.batch = nil
	switch {
	case m.err != nil:
		// Nothing is sent any more: the call stays where it is. What the reader still has for it is dropped.
		c.given = true
		if err == nil {
			err = m.reasonLocked()
		}
	case c.waiting:
		g := &m.gates[kindOf(c.kind)]
		g.leave(c)
		m.recycleLocked(c)
		m.admit(g)
	case c.out.off == 0:
		m.retract(c)
		m.recycleLocked(c)
	case late != nil && c.out.sent() && m.lates < maxLates:
		c.given = true
		m.await(c, late)
	default:
		c.out.remove()
		c.given = true
		m.control(wire.TypeCancel, c.id, frame{})
		m.kick()
	}
	return result{}, err
}

// answerTo returns the call that a message of the other side ends. mu is held.
func (m *mux) answerTo(h wire.Header) (*call, error) {
	c := m.calls[h.Call]
	switch {
	case c == nil:
		return nil, fmt.Errorf("%w: %s for call %d, which is not under way", ErrProtocol, h.Type, h.Call)
	case !c.given && !c.out.sent():
		return nil, fmt.Errorf("%w: %s for call %d before all of it was sent", ErrProtocol, h.Type, h.Call)
	case h.Type == wire.TypeFault:
		return c, nil
	case h.Type == wire.TypePartials && c.kind != wire.TypeDispatch,
		h.Type == wire.TypeReady && c.kind != wire.TypeAssign,
		h.Type == wire.TypeSliceData && c.kind != wire.TypeFetch:
		return nil, fmt.Errorf("%w: %s for call %d, which is a %s", ErrProtocol, h.Type, h.Call, c.kind)
	case h.Length > c.bound:
		return nil, fmt.Errorf("%w: %s of %d bytes for call %d, want at most %d", ErrProtocol, h.Type, h.Length, h.Call, c.bound)
	}
	return c, nil
}

// endCall gives a call its result. mu is held.
func (m *mux) endCall(c *call, r result) {
	delete(m.calls, c.id)
	g := &m.gates[kindOf(c.kind)]
	g.release(c)
	if c.late != nil {
		c.late.timer.Stop()
		m.lates--
	}
	if r.err == nil {
		m.done++
	} else {
		m.faulted++
	}
	c.ended = true
	if c.given {
		r.payload.release()
		m.recycleLocked(c)
	} else {
		c.done <- r
	}
	m.admit(g)
	if m.awayOut {
		m.kick() // it may have been the last
	}
}
