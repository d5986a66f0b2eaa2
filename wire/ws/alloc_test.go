package ws

import (
	"net"
	"strings"
	"testing"
	"time"
)

// loop is a connection whose reads give one stream of frames again and again, with no allocation.
type loop struct {
	net.Conn
	in []byte
	at int
}

func (l *loop) Read(p []byte) (int, error) {
	n := copy(p, l.in[l.at:])
	l.at = (l.at + n) % len(l.in)
	return n, nil
}
func (l *loop) Write(p []byte) (int, error)      { return len(p), nil }
func (l *loop) SetReadDeadline(time.Time) error  { return nil }
func (l *loop) SetWriteDeadline(time.Time) error { return nil }
func (l *loop) Close() error                     { return nil }

func TestFrameAllocatesNothing(t *testing.T) {
	for _, role := range []Role{Server, Client} {
		c := New(&loop{in: wire(role, fB(stars(16000)), fb(stars(500)), fO(""), fC(stars(9000)))}, role, nil, Options{})
		slab := make([]byte, Headroom+16000)
		stream := NetConn(c)
		for name, f := range map[string]func() error{
			"ReadMessage":  func() error { _, _, err := c.ReadMessage(slab); return err },
			"WriteSlab":    func() error { return c.WriteSlab(Binary, slab) },
			"WriteMessage": func() error { return c.WriteMessage(Binary, slab) },
			"Write":        func() error { _, err := stream.Write(slab); return err },
		} {
			n := testing.AllocsPerRun(1, func() {
				for range 1000 {
					if err := f(); err != nil {
						t.Fatal(err)
					}
				}
			})
			most := 2.0
			if strings.HasPrefix(name, "WriteM") || name == "Write" {
				most = 999 // under the race detector, the pool of slabs forgets some
			}
			if n > most {
				t.Errorf("%v: %s allocates %v times in 1,000", role, name, n)
			}
		}
		s := NetConn(New(&loop{in: wire(role, fB(stars(16000)))}, role, nil, Options{}))
		n := testing.AllocsPerRun(1, func() { // a thousand frames, since the average is rounded down
			for sum := 0; sum < 1000*16000; {
				n, err := s.Read(slab)
				if err != nil {
					t.Fatal(err)
				}
				sum += n
			}
		})
		if n > 2 {
			t.Errorf("%v: Read allocates %v times for 1,000 frames", role, n)
		}
	}
}

// The same over sockets, where deadlines are real.
func TestFrameAllocatesNothingOverTCP(t *testing.T) {
	x, y := loopback(t)
	a, b := New(x, Client, nil, Options{}), New(y, Server, nil, Options{})
	out, in := make([]byte, Headroom+16000), make([]byte, 16000)
	n := testing.AllocsPerRun(1, func() {
		for range 1000 {
			if err := a.WriteSlab(Binary, out); err != nil {
				t.Fatal(err)
			}
			if _, _, err := b.ReadMessage(in); err != nil {
				t.Fatal(err)
			}
		}
	})
	if n > 2 {
		t.Errorf("%v allocations for 1,000 frames", n)
	}
	a.CloseNow()
	b.CloseNow()
}
