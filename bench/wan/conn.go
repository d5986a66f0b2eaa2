package wan

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// pair is one connection over a link.
type pair struct {
	link     *Link
	up, down *flow

	mu      sync.Mutex // guards all below; nothing else is locked under it
	ends    int        // not yet closed
	sockets []net.Conn // what Join stands between
	cutAs   How
	isCut   bool
}

// newPair adds a connection to the link.
func (l *Link) newPair() (*pair, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	if len(l.pairs) >= connsMax {
		return nil, ErrFull
	}
	p := &pair{
		link: l, ends: 2,
		up:   newFlow(l, l.up, l.down, 2*l.made),
		down: newFlow(l, l.down, l.up, 2*l.made+1),
	}
	p.up.mate, p.down.mate = p.down, p.up
	p.up.lost, p.down.lost = l.up.holed(), l.down.holed()
	l.made++
	l.pairs[p] = struct{}{}
	return p, nil
}

// release says that one end is closed. With the second the link forgets the connection.
func (p *pair) release() {
	p.mu.Lock()
	p.ends--
	last := p.ends == 0
	p.mu.Unlock()
	if !last {
		return
	}
	p.link.mu.Lock()
	defer p.link.mu.Unlock()
	if _, ok := p.link.pairs[p]; ok {
		delete(p.link.pairs, p)
		p.link.carried[0] += p.up.carried()
		p.link.carried[1] += p.down.carried()
	}
}

// attach makes a socket share the connection's fate. It returns false if that is sealed.
func (p *pair) attach(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isCut {
		return false
	}
	p.sockets = append(p.sockets, c)
	return true
}

func (p *pair) cut(h How) {
	p.mu.Lock()
	if p.isCut && p.cutAs == Reset {
		p.mu.Unlock()
		return
	}
	p.isCut, p.cutAs = true, h
	sockets := p.sockets
	p.mu.Unlock()

	p.up.kill(h)
	p.down.kill(h)
	for _, c := range sockets {
		if h == Reset {
			abort(c)
		} else {
			shut(c)
		}
	}
}

// Conn is the end of an emulated connection that is not a socket.
type Conn struct {
	pair          *pair
	in, out       *flow
	local, remote net.Addr

	readDue, writeDue deadline
	closed            sync.Once
	gone              chan struct{} // closed by Close
}

var _ net.Conn = (*Conn)(nil)

func newConn(p *pair, in, out *flow, local, remote net.Addr) *Conn {
	c := &Conn{pair: p, in: in, out: out, local: local, remote: remote, gone: make(chan struct{})}
	c.readDue.init()
	c.writeDue.init()
	return c
}

// Read reads what has arrived and waits for the first byte.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.in.read(b, c.readDue.wait())
	return n, c.fail("read", err)
}

// Write returns when the queue has taken all of b, or with how much it has.
func (c *Conn) Write(b []byte) (int, error) {
	n, err := c.out.write(b, c.writeDue.wait())
	return n, c.fail("write", err)
}

func (c *Conn) fail(op string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	if isDone(c.gone) {
		err = net.ErrClosed
	}
	return &net.OpError{Op: op, Net: network, Source: c.local, Addr: c.remote, Err: err}
}

// Close ends both ways. What was written still arrives.
func (c *Conn) Close() error {
	err := net.ErrClosed
	c.closed.Do(func() {
		err = nil
		close(c.gone)
		c.in.leave(c.out.finish(io.EOF))
		c.readDue.stop()
		c.writeDue.stop()
		c.pair.release()
	})
	return c.fail("close", err)
}

// CloseWrite ends the stream to the other end; reading goes on.
func (c *Conn) CloseWrite() error {
	if isDone(c.gone) {
		return c.fail("close", net.ErrClosed)
	}
	c.out.finish(io.EOF)
	return nil
}

// Abort closes the connection so that the other end reads a reset, after what was written.
func (c *Conn) Abort() error {
	c.out.finish(syscall.ECONNRESET)
	return c.Close()
}

// LocalAddr returns the address of this end.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the address of the other end.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline bounds Read, also one that waits already.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDue(&c.readDue, t) }

// SetWriteDeadline bounds Write, also one that waits already.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDue(&c.writeDue, t) }

func (c *Conn) setDue(d *deadline, t time.Time) error {
	if isDone(c.gone) {
		return c.fail("set", net.ErrClosed)
	}
	d.set(t)
	return nil
}

const network = "wan"

// Addr is the address of an end that is not a socket.
type Addr string

// Network returns "wan".
func (Addr) Network() string { return network }

func (a Addr) String() string { return string(a) }

// deadline is a point in time that may be moved while somebody waits for it.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	moves int // a timer that was moved too late finds another number
	past  chan struct{}
}

func (d *deadline) init() { d.past = make(chan struct{}) }

// wait returns a channel that is closed when the deadline has passed. It stays the same when the
// deadline is moved before that.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.past
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopLocked()
	if isDone(d.past) {
		d.past = make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		close(d.past)
		return
	}
	move := d.moves
	d.timer = time.AfterFunc(left, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.moves == move {
			close(d.past)
		}
	})
}

func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopLocked()
}

func (d *deadline) stopLocked() {
	d.moves++
	if d.timer != nil {
		d.timer.Stop()
	}
}
