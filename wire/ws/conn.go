package ws

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gobwas/ws"
)

// Readahead is the size of a Conn's read buffer: enough for any control frame, and small enough that
// thousands of idle connections cost little. What it does not hold of a payload is read straight
// into the caller's slab, with the beginning of what follows where there is room, so a chunk in a
// stream of them takes one read.
const Readahead = 4 << 10

// Conn is one side of a WebSocket connection. One goroutine reads at a time and others wait for it;
// any number may write. Close, CloseNow and the deadlines may be called at any time.
//
// Its only goroutine is the one that empties the control slot. It runs while there is a Pong or a
// Close to send, ends by the write deadline at the latest, and Close waits for it.
type Conn struct {
	nc   net.Conn
	role Role
	o    Options

	rd, wd  deadline
	ctl     slot
	closing atomic.Bool // Close or CloseNow has been called
	once    sync.Once   // the closing
	end     error       // what Close returns; set in once

	// Reading. Lock order: rmu before ctl.mu; never together with wmu.
	rmu  turn
	buf  []byte // bytes read and not consumed are buf[r:w]
	r, w int
	in   inbound
	rerr error         // what every further read returns
	slow time.Duration // has been waited for the message or frame that has begun

	lobby *Lobby // reads in the place of the Conn

	// Writing. Lock order: wmu before ctl.mu.
	wmu     turn
	werr    error // what every further write returns
	keys    keys
	scratch [Headroom + ws.MaxControlFramePayloadSize]byte // for control frames
}

// A turn is a lock that is held while the network is waited for. It is a channel of one place,
// because waiters then come in their order, and because a bubble of testing/synctest sees that they
// wait.
type turn chan struct{}

func (t turn) Lock()   { t <- struct{}{} }
func (t turn) Unlock() { <-t }

// inbound is the message that is being read.
type inbound struct {
	op     OpCode
	open   bool  // within a data frame: left bytes of it are to come
	more   bool  // another fragment follows the present or last frame
	left   int64 // bytes
	sum    int   // bytes of the message so far
	frames int   // of the message so far, and control frames between them
	masked bool
	mask   [4]byte
	pos    int // bytes of the frame so far, for the mask
	good   int // bytes of a text message known to be whole characters
}

// New returns a Conn over a connection that is past its upgrade. rest is what has been read from nc
// beyond that; the Conn keeps it and reads it first.
func New(nc net.Conn, role Role, rest []byte, o Options) *Conn {
	c := &Conn{nc: nc, role: role, o: o.withDefaults(), rmu: make(turn, 1), wmu: make(turn, 1)}
	c.rd = deadline{apply: nc.SetReadDeadline, slack: c.o.Idle / 16}
	c.wd = deadline{apply: nc.SetWriteDeadline, slack: c.o.Write / 16}
	c.ctl.init(c.flush)
	c.feed(rest)
	return c
}

// feed makes rest, which the Conn keeps, the bytes that have been read and not consumed.
func (c *Conn) feed(rest []byte) {
	c.buf, c.r, c.w = rest, 0, len(rest)
	if len(rest) < Readahead {
		c.buf = make([]byte, Readahead)
		copy(c.buf, rest)
	}
}

// Role returns the side that this Conn speaks.
func (c *Conn) Role() Role { return c.role }

// LocalAddr returns the address of this end of the connection beneath.
func (c *Conn) LocalAddr() net.Addr { return c.nc.LocalAddr() }

// RemoteAddr returns the address of the far end of the connection beneath.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// SetReadDeadline bounds reads, also one that waits already. A read that it ends returns an error
// for which os.ErrDeadlineExceeded is true, loses nothing, and may be repeated. Options.Idle holds
// beside it; the zero time leaves that alone.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.rd.set(t) }

// SetWriteDeadline bounds writes. A write that it ends may have sent half a frame, so the
// connection is cut. Options.Write holds beside it.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.wd.set(t) }

// Close sends a Close frame, waits for the peer's for Options.Close at most, and closes the
// connection beneath. Messages that a reader has not taken meanwhile are dropped. It returns nil
// when the peer's Close frame has come, at any time, and otherwise what ended the connection.
// Further calls wait for the first and return the same.
func (c *Conn) Close(code StatusCode, reason string) error {
	c.once.Do(func() { c.end = c.shut(closePayload(code, reason)) })
	return c.end
}

// CloseNow cuts the connection. It returns when the Conn's goroutine has ended.
func (c *Conn) CloseNow() {
	c.closing.Store(true)
	c.sever()
	c.once.Do(func() { c.end = ErrClosed })
	c.ctl.wait()
}

func (c *Conn) shut(payload []byte) error {
	limit := time.Now().Add(c.o.Close)
	c.closing.Store(true)
	// A connection that is gone refuses deadlines; reads and writes on it end by themselves.
	_ = c.wd.set(limit)
	_ = c.rd.set(limit)
	c.ctl.putClose(payload)
	c.ctl.wait()

	c.rmu.Lock()
	c.drain()
	err := c.rerr
	var closed *CloseError
	if errors.As(err, &closed) {
		c.rerr, err = ErrClosed, nil
	}
	c.rmu.Unlock()

	if err != nil {
		c.sever()
		if errors.Is(err, ErrClosed) {
			err = fmt.Errorf("%w: no Close frame within %v", ErrSilent, c.o.Close)
		}
		return err
	}
	if err := c.nc.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// drain reads to the peer's Close frame. After an error of protocol, there is nothing to understand
// any more: then it reads to the end of the stream, since closing with bytes unread would make TCP
// throw away our Close frame, which tells the peer why.
func (c *Conn) drain() {
	slab := getSlab()
	defer putSlab(slab)
	if l := c.lobby; l != nil {
		c.feed(l.raw[l.r:])
		c.in.more, c.lobby = l.more, nil
	}
	for c.rerr == nil {
		if !c.in.open {
			if !c.in.more {
				c.in = inbound{}
			}
			c.in.sum = 0
			_ = c.next(c.o.Message) // in rerr, unless by deadline, and then closing makes it so
			continue
		}
		if c.in.left > 0 {
			_, _ = c.payload(*slab)
		}
		c.in.open = c.in.left > 0
	}
	if !failed(c.rerr) {
		return
	}
	if half, ok := c.nc.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	for dropped := 0; dropped < 1<<20; {
		n, err := c.nc.Read(*slab)
		if err != nil {
			return
		}
		dropped += n
	}
}

// failed reports whether err is the peer's breach of a rule, after which the connection still
// stands.
func failed(err error) bool {
	return errors.Is(err, ErrProtocol) || errors.Is(err, ErrTooBig) || errors.Is(err, ErrUTF8) ||
		errors.Is(err, ErrUnsupported)
}

// sever closes the connection beneath without a word. A tls.Conn would try for 5 s to say goodbye,
// so its own connection goes first.
func (c *Conn) sever() {
	if t, ok := c.nc.(interface{ NetConn() net.Conn }); ok {
		_ = t.NetConn().Close()
	}
	_ = c.nc.Close()
}

// A slab is a buffer for one frame of at most DefaultMessage bytes. Idle connections hold none.
var slabs = sync.Pool{New: func() any {
	b := make([]byte, Headroom+DefaultMessage)
	return &b
}}

func getSlab() *[]byte  { return slabs.Get().(*[]byte) }
func putSlab(b *[]byte) { slabs.Put(b) }

// isClosed reports whether err is that of using a connection after closing it.
func isClosed(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe)
}

// isTimeout reports whether err is a deadline's.
func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
