package link

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"kvasir/wire"
)

// arrival is a bulk message that comes in. It belongs to the reader.
type arrival struct {
	buf    frame // room for all of it; none where it is dropped
	got    int
	length int       // 0: nothing has come yet
	first  int       // bytes of the first chunk,
	began  time.Time // and when it had come
}

// rateLeast is how many bytes, after its first chunk, a message has that says how fast the path is.
const rateLeast = 64 << 10

// rated takes the rate at which a message that is whole has come. Several at once share the path, and a
// sender may have paused: the fastest one counts, and a later one that is slower lowers it by a tenth. mu is
// held.
func (m *mux) rated(a *arrival) {
	took := time.Since(a.began)
	if a.length-a.first < rateLeast || took <= 0 {
		return
	}
	m.inRate = max(float64(a.length-a.first)/took.Seconds(), 0.9*m.inRate)
}

// reader is what readLoop keeps.
type reader struct {
	armed time.Time // when the read deadline was last moved
	head  [wire.HeaderLen]byte
	small [256]byte            // a control message, or bytes that are dropped,
	large *[wire.MaxChunk]byte // where they are more; of rooms, and nil between chunks
}

// rooms is buffers for chunks, of which idle sessions hold none.
var rooms = sync.Pool{New: func() any { return new([wire.MaxChunk]byte) }}

// room returns n bytes, which hold until spare.
func (r *reader) room(n int) []byte {
	if n <= len(r.small) {
		return r.small[:n]
	}
	if r.large == nil {
		r.large = rooms.Get().(*[wire.MaxChunk]byte)
	}
	return r.large[:n]
}

func (r *reader) spare() {
	if r.large != nil {
		rooms.Put(r.large)
		r.large = nil
	}
}

// readLoop takes chunks until the connection or the session ends.
func (m *mux) readLoop() {
	defer m.end()
	defer m.spare()
	for {
		m.spare()
		err := m.fill(m.head[:])
		var h wire.Header
		if err == nil {
			h, err = wire.ParseHeader(m.head[:])
		}
		if err == nil {
			err = m.chunk(h)
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, os.ErrDeadlineExceeded):
			m.fail(fmt.Errorf("%w for %v", ErrSilent, silence))
		case errors.Is(err, wire.ErrHeader), errors.Is(err, wire.ErrUnknown), errors.Is(err, wire.ErrPayload):
			m.fail(fmt.Errorf("%w: %w", ErrProtocol, err))
		default:
			m.ended(err)
		}
		return
	}
}

// fill reads all of p. Each byte that comes moves the deadline, though not more than once a second.
func (m *mux) fill(p []byte) error {
	for len(p) > 0 {
		if now := time.Now(); now.Sub(m.armed) >= time.Second {
			m.armed = now
			if err := m.conn.SetReadDeadline(now.Add(silence)); err != nil {
				return err
			}
		}
		n, err := m.conn.Read(p)
		m.in.Add(uint64(n))
		p = p[n:]
		if err != nil && len(p) > 0 {
			return err
		}
	}
	return nil
}

// chunk takes one chunk whose header has been read.
func (m *mux) chunk(h wire.Header) error {
	if h.Flags&wire.Bulk != 0 {
		return m.bulk(h)
	}
	p := m.room(h.Size)
	if err := m.fill(p); err != nil || !h.Type.Known() {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.controlMessage(h, p)
}

// bulk takes a chunk of a bulk message. Of a type that is not known it takes and drops it.
func (m *mux) bulk(h wire.Header) error {
	var a *arrival
	if h.Type.Known() {
		var err error
		if a, err = m.arrivalOf(h); err != nil {
			return err
		}
	}
	var p []byte
	if a != nil && a.buf.data != nil {
		p = a.buf.data[a.got : a.got+h.Size]
	} else {
		p = m.room(h.Size)
	}
	if err := m.fill(p); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.received(wire.HeaderLen + h.Size)
	if a == nil {
		return nil
	}
	if a.got == 0 {
		a.first, a.began = h.Size, time.Now()
	}
	a.got += h.Size
	if a.got < a.length {
		return nil
	}
	m.rated(a)
	payload := a.buf
	*a = arrival{}
	if h.Type == wire.TypeDispatch {
		m.arrived(m.jobs[h.Call], payload)
		return nil
	}
	c := m.calls[h.Call]
	if c.late != nil {
		return m.tell(c, payload)
	}
	m.endCall(c, result{payload: payload})
	return nil
}

// arrivalOf returns where a chunk of a known type belongs, or says which rule it breaks.
func (m *mux) arrivalOf(h wire.Header) (*arrival, error) {
	a, drop, err := m.ownerOf(h)
	if err != nil {
		return nil, err
	}
	if a.length == 0 {
		a.length = h.Length
		if !drop {
			a.buf = m.newFrame(h.Length)
		}
	}
	if want := min(a.length-a.got, wire.MaxPayload); h.Length != a.length || h.Size != want {
		return nil, fmt.Errorf("%w: chunk of %d bytes of a %s of %d, want %d of %d",
			ErrProtocol, h.Size, h.Type, h.Length, want, a.length)
	}
	return a, nil
}

// ownerOf returns the arrival of the job or call that a chunk belongs to, and whether it is dropped.
func (m *mux) ownerOf(h wire.Header) (a *arrival, drop bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.Type != wire.TypeDispatch {
		c, err := m.answerTo(h)
		if err != nil {
			return nil, false, err
		}
		return &c.arrival, c.given && c.late == nil, nil
	}
	j := m.jobs[h.Call]
	if j == nil || j.kind != h.Type || j.state != arriving {
		if j, err = m.beginJob(h); err != nil {
			return nil, false, err
		}
	}
	return &j.arrival, j.refused, nil
}

// received counts bulk bytes that the other side will be told of. mu is held.
func (m *mux) received(n int) {
	c := &m.credit
	before := c.received - c.told
	c.received += uint64(n)
	if before == 0 {
		c.since = time.Now()
		m.kick() // the writer has a new deadline
	}
	if before < creditStep && before+uint64(n) >= creditStep {
		m.kick()
	}
}

// controlMessage does what a control message says. mu is held.
func (m *mux) controlMessage(h wire.Header, p []byte) error {
	switch h.Type {
	case wire.TypeCredit:
		n, err := wire.ParseCredit(p)
		if err == nil {
			err = m.pace.ack(n, time.Now())
		}
		m.kick()
		return err
	case wire.TypePing:
		n, err := wire.ParsePing(p)
		m.pong = slot{due: true, value: n}
		m.kick()
		return err
	case wire.TypePong:
		n, err := wire.ParsePing(p)
		if m.ping.open && n == m.ping.number {
			m.ping.open = false
			m.ping.last = time.Since(m.ping.sent)
			m.pace.tripped(m.ping.last)
		}
		return err
	case wire.TypeFault:
		return m.faultMessage(h, p)
	case wire.TypeReady:
		return m.readyMessage(h, p)
	case wire.TypeCancel:
		if j := m.jobs[h.Call]; j != nil {
			m.cancelJob(j)
		}
		return nil
	case wire.TypeGoAway:
		return m.goAwayMessage(p)
	case wire.TypeAssign, wire.TypeFetch:
		j, err := m.beginJob(h)
		if err == nil {
			m.arrived(j, copyFrame(p))
		}
		return err
	case wire.TypeReceipt:
		r, err := wire.ParseReceipt(p)
		if err == nil && m.o.Receipt != nil {
			m.mu.Unlock()
			m.o.Receipt(r)
			m.mu.Lock()
		}
		return err
	}
	return fmt.Errorf("%w: %s within a session", ErrProtocol, h.Type)
}

func (m *mux) faultMessage(h wire.Header, p []byte) error {
	f, err := wire.ParseFault(p)
	if err != nil {
		return err
	}
	err = faultError(f)
	if h.Call == 0 {
		return err // its last word
	}
	c, wrong := m.answerTo(h)
	if wrong != nil {
		return wrong
	}
	c.buf.release()
	c.arrival = arrival{}
	m.endCall(c, result{err: err})
	return nil
}

func (m *mux) readyMessage(h wire.Header, p []byte) error {
	epoch, err := wire.ParseReady(p)
	if err != nil {
		return err
	}
	c, err := m.answerTo(h)
	if err == nil {
		m.endCall(c, result{epoch: epoch})
	}
	return err
}

func (m *mux) goAwayMessage(p []byte) error {
	g, err := wire.ParseGoAway(p)
	if err != nil {
		return err
	}
	if m.awayIn {
		return fmt.Errorf("%w: a second GoAway", ErrProtocol)
	}
	m.awayIn = true
	if !m.awayOut {
		m.away = &Away{Reason: g.Reason, Back: time.Duration(g.Back) * time.Millisecond, Text: string(g.Text)}
		attrs := []any{"peer", m.o.Name, "reason", g.Reason.String()}
		if m.away.Back > 0 {
			attrs = append(attrs, "back", m.away.Back.String())
		}
		if m.away.Text != "" {
			attrs = append(attrs, "text", m.away.Text)
		}
		m.o.Log.Info("peer goes away", attrs...)
	}
	m.goAway(wire.GoAway{Reason: g.Reason}, time.Now())
	m.kick()
	return nil
}
