package link

import (
	"errors"
	"fmt"
	"os"
	"time"

	"kvasir/wire"
)

// smallChunk is the length of a chunk with one number.
const smallChunk = wire.HeaderLen + 8

// writeLoop sends what there is to send until the session ends, and closes the connection.
func (m *mux) writeLoop() {
	defer m.end()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		buf := rooms.Get().(*[wire.MaxChunk]byte)
		chunks, wait, ok := m.gather(buf[:0], time.Now())
		var err error
		if len(chunks) > 0 {
			err = m.write(chunks, stall)
		}
		rooms.Put(buf)
		if err != nil {
			m.broken(err)
		}
		if err != nil || !ok {
			break
		}
		if len(chunks) > 0 {
			continue
		}
		timer.Reset(wait)
		select {
		case <-m.wake:
		case <-timer.C:
			m.o.slabs.Trim(time.Now())
		case <-m.dead:
		}
	}
	m.farewell()
}

// broken ends the session after a write that did not succeed. What the other side said before it closed
// the connection counts more, so the reader has a moment to come to its own end.
func (m *mux) broken(err error) {
	if !errors.Is(err, ErrStalled) {
		timer := time.NewTimer(farewellWait)
		defer timer.Stop()
		select {
		case <-m.dead:
		case <-timer.C:
			m.o.slabs.Trim(time.Now())
		}
	}
	m.ended(err)
}

// write sends p with one write, which makes progress within limit.
func (m *mux) write(p []byte, limit time.Duration) error {
	if err := m.conn.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	n, err := m.conn.Write(p)
	m.out.Add(uint64(n))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w for %v", ErrStalled, limit)
	}
	return err
}

// farewell tells the other side why the session ends, where that is its doing, and closes the connection.
func (m *mux) farewell() {
	m.mu.Lock()
	err, cutter := m.err, m.cutter
	m.mu.Unlock()
	if errors.Is(err, ErrProtocol) || errors.Is(err, ErrSilent) || errors.Is(err, ErrStalled) {
		f := wire.AppendFault(nil, wire.Fault{Code: wire.Broken, Text: []byte(err.Error())})
		buf := wire.AppendHeader(nil, wire.NewHeader(wire.TypeFault, len(f), 0))
		_ = m.write(append(buf, f...), farewellWait) // the session has ended with another error
	}
	if !cutter.Stop() {
		<-m.cut
	}
	_ = m.conn.Close() // nothing follows
	m.o.Log.Info("session ends", "peer", m.o.Name, "reason", m.lastWord(), "in", m.in.Load(), "out", m.out.Load())
}

// lastWord is the reason of the end, for the log.
func (m *mux) lastWord() string {
	err := m.result()
	var away *Away
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &away):
		return "the peer has gone away" // why, stands in the line about that
	}
	return err.Error()
}

// gather appends to buf what one write sends: full chunks stand alone, small ones share. If there is
// nothing to send it says how long to wait; it returns false when the session has ended.
func (m *mux) gather(buf []byte, now time.Time) (chunks []byte, wait time.Duration, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.overdue(now); err != nil {
		m.failLocked(err)
	}
	if m.err != nil {
		return nil, 0, false
	}
	buf = m.slots(buf[:0], now)
	for msg := m.controls.head; msg != nil && fits(buf, msg.chunk()); msg = m.controls.head {
		buf = msg.copyTo(buf, 0, nil)
		m.left(msg)
	}
	for msg := m.bulkMessage(); msg != nil && fits(buf, msg.chunk()); msg = m.bulkMessage() {
		n := len(buf)
		buf = msg.copyTo(buf, m.epoch, batchOf(msg))
		m.pace.send(len(buf)-n, now)
		if msg.off == msg.head.Length {
			m.left(msg)
		}
	}
	if len(buf) > 0 {
		if c := &m.credit; c.received > c.told && fits(buf, 8) { // one more costs no write
			buf = m.appendCredit(buf)
		}
		return buf, 0, true
	}
	return nil, max(m.next().Sub(now), 0), true
}

// fits reports whether a chunk with n bytes of payload fits behind buf.
func fits(buf []byte, n int) bool { return len(buf)+wire.HeaderLen+n <= wire.MaxChunk }

// overdue says why the session cannot go on, if so. mu is held.
func (m *mux) overdue(now time.Time) error {
	if t := m.pace.deadline(); !t.IsZero() && !now.Before(t) {
		return fmt.Errorf("%w: %d bulk bytes not acknowledged for %v", ErrStalled, m.pace.unacked(), stall)
	}
	if m.role == wire.RoleBackbone && m.finished() && m.controls.head == nil {
		return errDone // the worker has nothing more to say, so nothing of it is lost
	}
	if m.awayOut && !now.Before(m.drainBy) {
		return fmt.Errorf("%w: draining took longer than %v", ErrClosed, m.o.Drain)
	}
	return nil
}

// next returns when the writer must look again, though nothing has woken it. mu is held.
func (m *mux) next() time.Time {
	at := m.ping.next
	if m.credit.received > m.credit.told {
		at = earlier(at, m.credit.since.Add(creditWait))
	}
	if t := m.pace.deadline(); !t.IsZero() {
		at = earlier(at, t)
	}
	if m.awayOut {
		at = earlier(at, m.drainBy)
	}
	return at
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// slots appends the messages that have a fixed place. mu is held.
func (m *mux) slots(buf []byte, now time.Time) []byte {
	if m.pong.due {
		m.pong.due = false
		buf = wire.AppendHeader(buf, wire.NewHeader(wire.TypePong, 8, 0))
		buf = wire.AppendPing(buf, m.pong.value)
	}
	if p := &m.ping; !now.Before(p.next) {
		p.number++
		p.open, p.sent, p.next = true, now, now.Add(pingEvery)
		buf = wire.AppendHeader(buf, wire.NewHeader(wire.TypePing, 8, 0))
		buf = wire.AppendPing(buf, p.number)
	}
	if m.credit.due(now) {
		buf = m.appendCredit(buf)
	}
	return buf
}

func (m *mux) appendCredit(buf []byte) []byte {
	m.credit.told = m.credit.received
	buf = wire.AppendHeader(buf, wire.NewHeader(wire.TypeCredit, 8, 0))
	return wire.AppendCredit(buf, m.credit.told)
}

// bulkMessage returns the bulk message that is to be sent next, if any may be. mu is held.
func (m *mux) bulkMessage() *message {
	msg := m.rows.head
	if msg == nil {
		msg = m.slices.head
	}
	if msg == nil || !m.pace.room(wire.HeaderLen+msg.chunk()) {
		return nil
	}
	return msg
}

// left notes that the last chunk of a message is about to leave. mu is held.
func (m *mux) left(msg *message) {
	msg.remove()
	switch {
	case msg.job != nil:
		m.endJob(msg.job)
		return
	case msg.call != nil:
		msg.call.batch = nil
		return
	case msg.head.Type == wire.TypeReceipt:
		m.receipts--
	}
	msg.data.release()
	*msg = message{next: m.idleMsg}
	m.idleMsg = msg
}
