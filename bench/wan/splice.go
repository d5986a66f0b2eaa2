package wan

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// drainMax is how long a socket that was shut is read on, so that its peer gets the end of the
// stream and not a reset.
const drainMax = 5 * time.Second

// Pipe returns the two ends of a connection over the link, without any socket.
func (l *Link) Pipe() (near, far *Conn, err error) {
	p, err := l.newPair()
	if err != nil {
		return nil, nil, err
	}
	near = newConn(p, p.down, p.up, Addr("near"), Addr("far"))
	far = newConn(p, p.up, p.down, Addr("far"), Addr("near"))
	return near, far, nil
}

// Wrap returns the near end of a connection whose far end is another connection. The link owns far
// from then on, also when it returns an error.
func (l *Link) Wrap(far net.Conn) (*Conn, error) {
	return l.wrap(far, nil)
}

// wrap is Wrap, with the far end not read before ready returns nil.
func (l *Link) wrap(far net.Conn, ready func() error) (*Conn, error) {
	p, err := l.newPair()
	if err != nil {
		return nil, errors.Join(err, far.Close())
	}
	near := newConn(p, p.down, p.up, far.LocalAddr(), far.RemoteAddr())
	if !p.plug(far, p.up, p.down, ready) {
		return nil, errors.Join(ErrClosed, near.Close())
	}
	return near, nil
}

// Join puts the link between two connections and returns. The link owns both from then on, also
// when it returns an error.
func (l *Link) Join(near, far net.Conn) error {
	p, err := l.newPair()
	if err != nil {
		abort(near)
		abort(far)
		return err
	}
	okNear := p.plug(near, p.down, p.up, nil)
	okFar := p.plug(far, p.up, p.down, nil)
	if !okNear || !okFar {
		p.cut(Reset)
		return ErrClosed
	}
	return nil
}

// Dial connects as a net.Dialer does and puts the link between the caller and the connection. It
// takes a round trip.
func (l *Link) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := l.join(ctx)
	defer cancel()
	if err := l.travel(ctx, l.up); err != nil {
		return nil, l.dialError(network, err)
	}
	var d net.Dialer
	far, dialErr := d.DialContext(ctx, network, address)
	if err := l.travel(ctx, l.down); err != nil {
		if far != nil {
			abort(far)
		}
		return nil, l.dialError(network, err)
	}
	if dialErr != nil {
		return nil, dialErr
	}
	// Over a real path the far end hears that it is connected half a round trip from now.
	c, err := l.wrap(far, func() error { return l.travel(l.ctx, l.up) })
	if err != nil {
		return nil, l.dialError(network, err)
	}
	return c, nil
}

func (l *Link) dialError(network string, err error) error {
	if l.ctx.Err() != nil {
		err = ErrClosed
	}
	return &net.OpError{Op: "dial", Net: network, Err: err}
}

// join returns a context that also ends with the link.
func (l *Link) join(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// travel takes as long as something without length does. In a black hole it waits for ctx.
func (l *Link) travel(ctx context.Context, n *lane) error {
	arrives := n.pass(l.now())
	if n.holed() {
		<-ctx.Done()
		return ctx.Err()
	}
	var w waiter
	for {
		resumed := n.resumed()
		if n.here(l.now()) >= arrives {
			return ctx.Err()
		}
		if err := l.await(n.there(arrives), resumed, ctx.Done(), &w); err != nil {
			return ctx.Err()
		}
	}
}

// plug pumps between a socket and its flows until both ways have ended. The socket is not read
// before ready returns nil.
func (p *pair) plug(c net.Conn, toSocket, fromSocket *flow, ready func() error) bool {
	s := &socket{pair: p, Conn: c, in: toSocket, out: fromSocket}
	s.users.Store(2)
	shrink(c, fromSocket.lane)
	if !p.attach(c) || !p.link.start(s.deliver) {
		s.users.Store(1)
		abort(c)
		s.done()
		return false
	}
	if !p.link.start(func() { s.collect(ready) }) {
		abort(c)
		s.done()
		return false
	}
	return true
}

// socket is the end of an emulated connection that is one. Two goroutines use it: collect reads,
// and deliver writes. Each ends when its way of the connection does, by a stream's end or a cut.
type socket struct {
	net.Conn
	pair    *pair
	in, out *flow
	users   atomic.Int32
}

// done closes the socket when both goroutines are through.
func (s *socket) done() {
	if s.users.Add(-1) == 0 {
		_ = s.Close() // the peer has had what it will get
		s.pair.release()
	}
}

// collect moves what the socket's peer writes onto the link.
func (s *socket) collect(ready func() error) {
	defer s.done()
	if ready != nil {
		if err := ready(); err != nil {
			abort(s.Conn)
		}
	}
	size := 64 << 10
	if s.out.lane.rate > 0 {
		size = s.out.lane.cut // what waits here is a queue too
	}
	buf := make([]byte, size)
	for {
		n, err := s.Read(buf)
		if n > 0 {
			if _, err := s.out.write(buf[:n], nil); err != nil {
				s.refuse(buf)
				return
			}
		}
		if errors.Is(err, io.EOF) {
			s.out.finish(io.EOF)
			return
		}
		if err != nil {
			s.out.finish(syscall.ECONNRESET)
			return
		}
	}
}

// refuse deals with a peer whose bytes nobody takes any more.
func (s *socket) refuse(buf []byte) {
	if !s.pair.shutDown() {
		s.out.finish(syscall.ECONNRESET)
		abort(s.Conn)
		return
	}
	for { // until the deadline that shut has set
		if _, err := s.Read(buf); err != nil {
			return
		}
	}
}

// shutDown tells whether the connection was cut by an end of stream.
func (p *pair) shutDown() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isCut && p.cutAs == Fin
}

// deliver moves what comes off the link to the socket's peer.
func (s *socket) deliver() {
	defer s.done()
	buf := make([]byte, 64<<10)
	for {
		n, err := s.in.read(buf, nil)
		if n > 0 {
			if _, err := s.Write(buf[:n]); err != nil {
				s.in.leave(s.out.lane.pass(s.in.link.now()))
				return
			}
			continue
		}
		if errors.Is(err, io.EOF) {
			closeWrite(s.Conn)
		} else {
			abort(s.Conn)
		}
		return
	}
}

// shrink keeps the kernel from adding a queue of its own in front of the link's.
func shrink(c net.Conn, n *lane) {
	if s, ok := c.(interface{ SetReadBuffer(int) error }); ok && n.rate > 0 {
		// Two milliseconds' worth, so that the limiter does not wait for the socket. A socket that
		// refuses works all the same.
		_ = s.SetReadBuffer(int(max(QueueMax, n.rate/8/500)))
	}
}

// closeWrite ends the stream to the peer. A connection that cannot do so alone is closed.
func closeWrite(c net.Conn) {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite() // fails where the peer is gone, which the reader sees
		return
	}
	_ = c.Close()
}

// shut ends the stream to the peer and gives it a while to do the same.
func shut(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(drainMax))
	closeWrite(c)
}

// abort closes a connection with a reset, where it can.
func abort(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(int) error }); ok {
		_ = l.SetLinger(0)
	}
	if a, ok := c.(interface{ Abort() error }); ok {
		_ = a.Abort()
		return
	}
	_ = c.Close()
}
