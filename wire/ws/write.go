package ws

import (
	"crypto/rand"
	"fmt"
	"sync"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

// WriteSlab sends slab[Headroom:] as one message in one frame, with one write. The header goes into
// the end of the headroom, and a client masks in place: afterwards the slab's content is undefined.
// A message longer than Options.Message is refused with ErrTooBig, a text that is none with ErrUTF8,
// and nothing is sent.
func (c *Conn) WriteSlab(op OpCode, slab []byte) error {
	n := len(slab) - Headroom
	if n < 0 || op != Text && op != Binary {
		panic(fmt.Sprintf("BUG: write of a slab of %d bytes, kind %d", len(slab), op))
	}
	if n > c.o.Message {
		return fmt.Errorf("%w: message of %d bytes to send, limit %d", ErrTooBig, n, c.o.Message)
	}
	if op == Text && !utf8.Valid(slab[Headroom:]) {
		return fmt.Errorf("%w: message to send", ErrUTF8)
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.writeFrame(op, slab)
}

// WriteMessage sends p as one message in one frame. p is copied, and left as it is.
func (c *Conn) WriteMessage(op OpCode, p []byte) error {
	if len(p) > DefaultMessage {
		return c.WriteSlab(op, append(make([]byte, Headroom, Headroom+len(p)), p...))
	}
	slab := getSlab()
	defer putSlab(slab)
	return c.WriteSlab(op, (*slab)[:Headroom+copy((*slab)[Headroom:], p)])
}

// writeFrame sends slab[Headroom:]. wmu is held.
func (c *Conn) writeFrame(op OpCode, slab []byte) error {
	if c.werr != nil {
		return c.werr
	}
	h := ws.Header{Fin: true, OpCode: op, Masked: c.role == Client, Length: int64(len(slab) - Headroom)}
	if h.Masked {
		h.Mask = c.keys.next()
		ws.Cipher(slab[Headroom:], h.Mask, 0)
	}
	frame := slab[Headroom-ws.HeaderSize(h):]
	putHeader(frame, h)

	start, err := c.wd.arm(c.o.Write)
	if err == nil {
		_, err = c.nc.Write(frame)
	}
	if err == nil {
		return nil
	}
	// Half a frame may be out, so nothing can follow it, and there is nothing to wait for.
	switch {
	case c.closing.Load() && (isTimeout(err) || isClosed(err)):
		c.werr = ErrClosed
	case isTimeout(err) && c.wd.over(start, c.o.Write):
		c.werr = fmt.Errorf("%w: it has taken nothing for %v", ErrSilent, c.o.Write)
	default:
		c.werr = fmt.Errorf("%w: %w", ErrCut, err)
	}
	c.sever()
	return c.werr
}

// flush sends what is in the control slot, until it is empty. It is the body of the Conn's
// goroutine.
func (c *Conn) flush() {
	for c.flushOne() {
	}
}

func (c *Conn) flushOne() bool {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	op, n, ok := c.ctl.take(c.scratch[Headroom:])
	if !ok {
		return false
	}
	// An error stays in werr, where the next writer finds it; the connection is cut by then, so the
	// reader learns of it too.
	if err := c.writeFrame(op, c.scratch[:Headroom+n]); err == nil && op == ws.OpClose {
		c.werr = ErrClosed
	}
	return true
}

// A slot holds what the reader wants to say: one Pong and one Close, no more. Putting never waits
// for a write.
type slot struct {
	start func() // runs flush on a goroutine

	mu      sync.Mutex // leaf
	idle    sync.Cond  // running has become false
	running bool       // flush is under way
	pong    [ws.MaxControlFramePayloadSize]byte
	pongLen int // -1: none
	bye     []byte
	byeSet  bool // a Close waits to be sent
	byeEver bool // a Close has been put: there is no second
}

func (s *slot) init(flush func()) {
	s.idle.L = &s.mu
	s.pongLen = -1
	s.start = func() { go flush() }
}

// putPong leaves the answer to a Ping, in the place of one that has not been sent yet.
func (s *slot) putPong(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.byeEver {
		s.pongLen = copy(s.pong[:], p)
		s.run()
	}
}

// putClose leaves a Close frame, unless there has been one.
func (s *slot) putClose(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.byeEver {
		s.bye, s.byeSet, s.byeEver = p, true, true
		s.run()
	}
}

func (s *slot) run() {
	if !s.running {
		s.running = true
		s.start()
	}
}

// take moves the next control frame's payload to p. When there is none, flush is over.
func (s *slot) take(p []byte) (op OpCode, n int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.pongLen >= 0:
		n = copy(p, s.pong[:s.pongLen])
		s.pongLen = -1
		return ws.OpPong, n, true
	case s.byeSet:
		s.byeSet = false
		return ws.OpClose, copy(p, s.bye), true
	}
	s.running = false
	s.idle.Broadcast()
	return 0, 0, false
}

// wait returns when nothing is left to send and the goroutine has ended its work.
func (s *slot) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.running {
		s.idle.Wait()
	}
}

// keys draws masking keys, many at a time, from the system's generator.
type keys struct {
	pool [256]byte
	left int
}

func (k *keys) next() (key [4]byte) {
	for key == [4]byte{} {
		if k.left == 0 {
			_, _ = rand.Read(k.pool[:]) // never returns an error
			k.left = len(k.pool)
		}
		copy(key[:], k.pool[len(k.pool)-k.left:])
		k.left -= len(key)
	}
	return key
}
