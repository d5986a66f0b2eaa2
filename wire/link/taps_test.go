package link

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"kvasir/wire"
)

// tap records the writes of a connection, and can hold them up.
type tap struct {
	net.Conn
	mu   sync.Mutex
	list [][]byte
	gate chan struct{} // closed: writes pass
}

func newTap(c net.Conn) *tap {
	t := &tap{Conn: c, gate: make(chan struct{})}
	close(t.gate)
	return t
}

func (t *tap) Write(p []byte) (int, error) {
	t.mu.Lock()
	t.list = append(t.list, append([]byte(nil), p...))
	gate := t.gate
	t.mu.Unlock()
	<-gate
	return t.Conn.Write(p)
}

func (t *tap) hold() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gate = make(chan struct{})
}

func (t *tap) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.gate)
}

func (t *tap) writes() [][]byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([][]byte(nil), t.list...)
}

// counter counts what the other side of a pipe has read of its writes.
type counter struct {
	net.Conn
	mu sync.Mutex
	n  int
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += n
	return n, err
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func drainConn(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// trickle writes a good Hello, a byte a second.
func trickle(c net.Conn) {
	h := hello()
	h.Min, h.Max, h.Role, h.Class = 1, 1, wire.RoleWorker, wire.Exact
	p := wire.AppendHello(nil, &h)
	for _, b := range append(wire.AppendHeader(nil, wire.NewHeader(wire.TypeHello, len(p), 0)), p...) {
		if _, err := c.Write([]byte{b}); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}

// flood writes the same chunk until that fails.
func flood(c net.Conn, h wire.Header) {
	p := append(wire.AppendHeader(nil, h), make([]byte, h.Size)...)
	for {
		if _, err := c.Write(p); err != nil {
			return
		}
	}
}

// logged keeps log lines.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
