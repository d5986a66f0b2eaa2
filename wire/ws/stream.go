package ws

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// NetConn returns c as a stream of bytes over binary messages. One Write is one frame and one write
// beneath, up to the smaller of Options.Message and DefaultMessage bytes; more is sent as several
// frames. Reads run over the bounds of messages.
//
// The peer's Close frame with status 1000 or 1001 reads as io.EOF. A text message is
// ErrUnsupported, or skipped with Options.DropText. Close is Conn.Close with status 1000.
func NetConn(c *Conn) net.Conn { return &stream{c: c} }

type stream struct {
	c  *Conn
	mu sync.Mutex // keeps the frames of one Write together
}

func (s *stream) Read(p []byte) (int, error) {
	c := s.c
	c.rmu.Lock()
	defer c.rmu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	for {
		for !c.in.open || c.in.left == 0 {
			if err := s.next(); err != nil {
				return 0, err
			}
		}
		n, err := c.payload(p)
		if err != nil {
			return 0, err
		}
		if c.in.op != Binary {
			continue
		}
		// The rest of the frame is on its way, and whoever reads a TLS record wants all of it: two reads
		// cost crypto/tls two allocations. An error is the next call's.
		for err == nil && n < len(p) && c.in.left > 0 {
			var more int
			more, err = c.payload(p[n:])
			n += more
		}
		return n, nil
	}
}

// next ends the present frame, of which nothing is left, and begins another.
func (s *stream) next() error {
	c := s.c
	if c.in.open && !c.in.more {
		c.in = inbound{}
	}
	c.in.open = false
	err := c.next(c.o.Message)
	switch {
	case err != nil:
		var closed *CloseError // here, because it is allocated
		if errors.As(err, &closed) && (closed.Code == StatusNormal || closed.Code == StatusGoingAway) {
			return io.EOF
		}
		return err
	case c.in.op == Text && !c.o.DropText:
		return c.fail(fmt.Errorf("%w", ErrUnsupported))
	}
	return nil
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := min(s.c.o.Message, DefaultMessage)
	for n := 0; ; {
		part := p[n:min(n+most, len(p))]
		if len(part) == 0 {
			return n, nil
		}
		if err := s.c.WriteMessage(Binary, part); err != nil {
			return n, err
		}
		n += len(part)
	}
}

func (s *stream) Close() error         { return s.c.Close(StatusNormal, "") }
func (s *stream) LocalAddr() net.Addr  { return s.c.LocalAddr() }
func (s *stream) RemoteAddr() net.Addr { return s.c.RemoteAddr() }

func (s *stream) SetReadDeadline(t time.Time) error  { return s.c.SetReadDeadline(t) }
func (s *stream) SetWriteDeadline(t time.Time) error { return s.c.SetWriteDeadline(t) }

func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.c.SetReadDeadline(t), s.c.SetWriteDeadline(t))
}
