package ws

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gobwas/ws"
)

// ReadMessage reads the next message whole into slab and returns its kind and length. A message
// longer than slab or Options.Message is refused with ErrTooBig before its bytes are read. Pings
// are answered and the Close handshake is kept on the way; the peer's Close frame is returned as
// *CloseError.
//
// What slab has beyond the message is overwritten too. A slab with Readahead bytes more than the
// longest message makes a stream of frames cost one read each.
//
// After a read deadline the call may be repeated with the same slab, and goes on where it stopped.
// Any other error is final, and the caller closes the Conn; Close gives the peer time to read the
// reason.
func (c *Conn) ReadMessage(slab []byte) (op OpCode, n int, err error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	room := min(len(slab), c.o.Message)
	for {
		if !c.in.open {
			if err := c.next(room); err != nil {
				return 0, 0, err
			}
		}
		if c.in.left > int64(room-c.in.sum) {
			return 0, 0, c.fail(fmt.Errorf("%w: message longer than %d bytes", ErrTooBig, room))
		}
		for c.in.left > 0 {
			if _, err := c.payload(slab[c.in.sum:]); err != nil {
				return 0, 0, err
			}
			if c.in.op == Text {
				if err := c.checkText(slab[:c.in.sum]); err != nil {
					return 0, 0, err
				}
			}
		}
		c.in.open = false
		if c.in.more {
			continue
		}
		op, n = c.in.op, c.in.sum
		if op == Text && c.in.good < n {
			return 0, 0, c.fail(fmt.Errorf("%w: message ends within a character", ErrUTF8))
		}
		c.in = inbound{}
		return op, n, nil
	}
}

// checkText checks the characters of a text message that have come with the last read.
func (c *Conn) checkText(text []byte) error {
	n, ok := textPrefix(text[c.in.good:])
	if !ok {
		return c.fail(fmt.Errorf("%w: message, after byte %d", ErrUTF8, c.in.good))
	}
	c.in.good += n
	return nil
}

// next reads to the header of the next data frame and begins that frame. room is the most that its
// message may have in all.
func (c *Conn) next(room int) error {
	for c.rerr == nil {
		h, n, err := parseHeader(c.buf[c.r:c.w])
		if err == nil && n > 0 {
			err = checkHeader(h, c.role, c.in.more)
		}
		if err != nil {
			return c.fail(err)
		}
		if n == 0 {
			if err := c.fill(); err != nil {
				return err
			}
			continue
		}
		if most := spareFrames + c.o.Message/meanFragment; c.in.frames >= most {
			return c.fail(fmt.Errorf("%w: message in more than %d frames", ErrTooBig, most))
		}
		if !h.OpCode.IsControl() {
			return c.begin(h, n, room)
		}
		// A control frame is consumed whole or, when the deadline comes first, not at all.
		size := n + int(h.Length)
		for c.w-c.r < size {
			if err := c.fill(); err != nil {
				return err
			}
		}
		p := c.buf[c.r+n : c.r+size]
		c.r += size
		if h.Masked {
			ws.Cipher(p, h.Mask, 0)
		}
		if c.in.more {
			c.in.frames++
		} else {
			c.slow = 0
		}
		if err := c.control(h.OpCode, p); err != nil {
			return err
		}
	}
	return c.rerr
}

// begin starts the data frame of header h, which has n bytes.
func (c *Conn) begin(h ws.Header, n, room int) error {
	if h.Length > int64(room-c.in.sum) {
		return c.fail(fmt.Errorf("%w: frame of %d bytes makes a message longer than %d", ErrTooBig, h.Length, room))
	}
	if h.OpCode != ws.OpContinuation {
		c.in.op, c.slow = h.OpCode, 0
	}
	c.in.frames++
	c.r += n
	c.in.open, c.in.more, c.in.left = true, !h.Fin, h.Length
	c.in.masked, c.in.mask, c.in.pos = h.Masked && h.Mask != [4]byte{}, h.Mask, 0
	return nil
}

// payload reads at least one byte of the present frame, in.left at most, into p, which is not empty.
// Where p has room for more, it may be overwritten to its end: what comes behind the frame is read
// in the same go, and then put into the buffer.
func (c *Conn) payload(p []byte) (int, error) {
	if c.rerr != nil {
		return 0, c.rerr
	}
	want := int(min(int64(len(p)), c.in.left))
	if c.r == c.w && want < Readahead {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p[:want], c.buf[c.r:c.w])
	c.r += n
	if n == 0 {
		got, err := c.read(p[:min(len(p), want+Readahead)], true)
		if err != nil {
			return 0, err
		}
		if n = min(got, want); n < got {
			c.empty()
			c.w = copy(c.buf, p[n:got])
		}
	}
	if c.in.masked {
		ws.Cipher(p[:n], c.in.mask, c.in.pos)
	}
	c.in.pos += n
	c.in.sum += n
	c.in.left -= int64(n)
	return n, nil
}

// control handles a control frame with payload p, which it does not keep.
func (c *Conn) control(op OpCode, p []byte) error {
	switch op {
	case ws.OpPing:
		c.ctl.putPong(p)
	case ws.OpClose:
		closed, err := parseClose(p)
		if err != nil {
			return c.fail(err)
		}
		c.rerr = &closed
		c.ctl.putClose(closePayload(closed.Code, ""))
		return c.rerr
	}
	return nil
}

// fail ends the reading because the peer broke a rule, and tells it so.
func (c *Conn) fail(err error) error {
	code := StatusProtocolError
	switch {
	case errors.Is(err, ErrTooBig):
		code = StatusTooBig
	case errors.Is(err, ErrUTF8):
		code = StatusInvalid
	case errors.Is(err, ErrUnsupported):
		code = StatusUnsupported
	}
	c.rerr = err
	c.ctl.putClose(closePayload(code, err.Error()))
	return err
}

// fill reads some bytes into the buffer.
func (c *Conn) fill() error {
	if c.r == c.w {
		c.empty()
	}
	if c.w == len(c.buf) {
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	}
	n, err := c.read(c.buf[c.w:], c.in.open || c.in.more || c.r < c.w)
	c.w += n
	return err
}

// empty makes room in the buffer, of which all is consumed.
func (c *Conn) empty() {
	c.r, c.w = 0, 0
	if len(c.buf) != Readahead { // it was the rest of an upgrade
		c.buf = make([]byte, Readahead)
	}
}

// read reads at least one byte from the connection beneath. mid says that something has begun which
// these bytes go on with. Of that, only the time in here counts: a user who is slow to call does not
// make the peer slow.
func (c *Conn) read(p []byte, mid bool) (int, error) {
	if c.rerr != nil {
		return 0, c.rerr
	}
	if !mid {
		c.slow = 0
	}
	wait := c.o.Idle - c.slow
	start, err := c.rd.arm(wait)
	if mid {
		defer func() { c.slow += time.Since(start) }()
	}
	for tries := 0; err == nil; tries++ {
		var n int
		if n, err = c.nc.Read(p); n > 0 {
			return n, nil // an error beside bytes comes again
		}
		if err == nil && tries == 100 {
			err = io.ErrNoProgress
		}
	}
	switch {
	case c.closing.Load() && (isTimeout(err) || isClosed(err)):
		c.rerr = ErrClosed
	case isTimeout(err) && !c.rd.over(start, wait):
		return 0, err // the user's deadline: nothing is lost
	case isTimeout(err) && wait < c.o.Idle:
		c.rerr = fmt.Errorf("%w: waited for the rest of a message for %v", ErrSilent, c.o.Idle)
	case isTimeout(err):
		c.rerr = fmt.Errorf("%w: no byte for %v", ErrSilent, c.o.Idle)
	case errors.Is(err, io.EOF):
		c.rerr = fmt.Errorf("%w without a Close frame", ErrCut)
	default:
		c.rerr = fmt.Errorf("%w: %w", ErrCut, err)
	}
	return 0, c.rerr
}
