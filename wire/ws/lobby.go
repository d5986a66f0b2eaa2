package ws

import (
	"fmt"
	"net"
	"time"

	"github.com/gobwas/ws"
)

// A Lobby is a Conn on which text messages are exchanged until the connection is handed to somebody
// else, as a hub does with a worker that waits for its backbone. Text is read from it; binary
// frames that come early are not looked into: they are kept as they came and handed over with the
// connection.
//
// A read consumes a message whole or not at all, so it can be interrupted at any moment (Interrupt)
// without a byte being lost, and Detach returns the stream exactly from the first frame on that
// Read has not used up.
type Lobby struct {
	c    *Conn
	keep int // most bytes of binary frames, headers included

	// All under c.rmu. The wire's bytes that nobody has used are early and raw[r:]: early is whole
	// frames, kept binary ones and then the fragments of a text message that has no end yet.
	early []byte
	raw   []byte
	r     int
	op    OpCode // of the message under way, where more is set
	more  bool   // the last data frame was a fragment with others to follow
	text  []byte // payload of the text message under way
	used  int    // wire bytes of the text message under way, at the end of early
}

// NewLobby returns a Lobby over c, on which nothing has been read. keep is how many bytes of binary
// frames may come before Detach; Options.Message of c limits the text messages.
func NewLobby(c *Conn, keep int) *Lobby {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	l := &Lobby{c: c, keep: keep, raw: append([]byte(nil), c.buf[c.r:c.w]...)}
	c.buf, c.r, c.w, c.lobby = nil, 0, 0, l
	return l
}

// Read returns the next text message, valid until the next call. It returns an error for which
// os.ErrDeadlineExceeded is true when it has been interrupted, and may then be called again. Any
// other error is final; the peer's Close frame is a *CloseError.
func (l *Lobby) Read() ([]byte, error) {
	l.c.rmu.Lock()
	defer l.c.rmu.Unlock()
	if !l.more {
		l.text = l.text[:0]
	}
	for {
		if l.c.rerr != nil {
			return nil, l.c.rerr
		}
		h, n, err := parseHeader(l.raw[l.r:])
		if err == nil && n > 0 {
			if err = checkHeader(h, l.c.role, l.more); err == nil {
				err = l.room(h, n)
			}
		}
		if err != nil {
			return nil, l.c.fail(err)
		}
		if n == 0 || int64(len(l.raw)-l.r-n) < h.Length {
			if err := l.fill(); err != nil {
				return nil, err
			}
			continue
		}
		done, err := l.frame(h, n)
		if err != nil {
			return nil, err
		}
		if done {
			return l.text, nil
		}
	}
}

// room checks a data frame against the limits, before its payload is read.
func (l *Lobby) room(h ws.Header, n int) error {
	op := h.OpCode
	if op == ws.OpContinuation {
		op = l.op
	}
	switch {
	case op == Text && h.Length > int64(l.c.o.Message-l.used-n):
		return fmt.Errorf("%w: text message longer than %d bytes", ErrTooBig, l.c.o.Message)
	case op == Binary && h.Length > int64(l.keep-len(l.early)-n):
		return fmt.Errorf("%w: more than %d bytes of binary frames before they were asked for", ErrTooBig, l.keep)
	}
	return nil
}

// frame handles the frame of header h, whose n+h.Length bytes are at raw[r:]. done says that text
// holds a message.
func (l *Lobby) frame(h ws.Header, n int) (done bool, err error) {
	size := n + int(h.Length)
	wire := l.raw[l.r : l.r+size]
	l.r += size
	if h.OpCode.IsControl() {
		if h.Masked {
			ws.Cipher(wire[n:], h.Mask, 0)
		}
		if !l.more {
			l.c.slow = 0
		}
		return false, l.c.control(h.OpCode, wire[n:])
	}
	if h.OpCode != ws.OpContinuation {
		l.op = h.OpCode
	}
	if l.more = !h.Fin; h.Fin {
		l.c.slow = 0
	}
	// The wire's bytes stay masked: until the message is whole, they may be handed over.
	l.early = append(l.early, wire...)
	if l.op == Binary {
		return false, nil
	}
	at := len(l.text)
	l.text = append(l.text, wire[n:]...)
	if h.Masked {
		ws.Cipher(l.text[at:], h.Mask, 0)
	}
	l.used += size
	whole, ok := textPrefix(l.text)
	if !ok || h.Fin && whole < len(l.text) {
		return false, l.c.fail(fmt.Errorf("%w: message of %d bytes", ErrUTF8, len(l.text)))
	}
	if !h.Fin {
		return false, nil
	}
	l.early = l.early[:len(l.early)-l.used]
	l.used = 0
	return true, nil
}

// fill reads some bytes. What has been used makes room when it is more than half of raw, so that no
// byte is moved more than about once; otherwise raw grows, to no more than four times the longest
// frame and a bit.
func (l *Lobby) fill() error {
	const step = 1 << 10
	if cap(l.raw)-len(l.raw) < step {
		to := l.raw[:0]
		if l.r <= cap(l.raw)/2 {
			to = make([]byte, 0, 2*cap(l.raw)+step)
		}
		l.raw, l.r = append(to, l.raw[l.r:]...), 0
	}
	n, err := l.c.read(l.raw[len(l.raw):cap(l.raw)], l.more || l.r < len(l.raw))
	l.raw = l.raw[:len(l.raw)+n]
	return err
}

// Interrupt ends a Read that waits, and every later one, until Resume. Detach may follow.
func (l *Lobby) Interrupt() error { return l.c.SetReadDeadline(time.Unix(1, 0)) }

// Resume lets Read wait again.
func (l *Lobby) Resume() error { return l.c.SetReadDeadline(time.Time{}) }

// Detach ends the Lobby and its Conn, and returns the connection beneath, without deadlines, and
// the bytes that have been read from it and not been used: the kept frames and what follows them,
// as they came. It waits for a Read, which the caller therefore interrupts, and for a Pong on its
// way out. After an error that was final it returns that error, and the caller closes the Conn.
func (l *Lobby) Detach() (net.Conn, []byte, error) {
	c := l.c
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if c.rerr != nil {
		return nil, nil, c.rerr
	}
	c.ctl.wait()
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.werr != nil {
		return nil, nil, c.werr
	}
	c.rerr, c.werr = ErrClosed, ErrClosed
	if err := c.nc.SetDeadline(time.Time{}); err != nil {
		return nil, nil, err
	}
	rest := append(l.early, l.raw[l.r:]...) //nolint:gocritic // early is of no more use
	l.early, l.raw, l.r, c.lobby = nil, nil, 0, nil
	return c.nc, rest, nil
}
