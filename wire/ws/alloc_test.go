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
	for n := 0; n < len(p); {
		m := copy(p[n:], l.in[l.at:])
		n, l.at = n+m, (l.at+m)%len(l.in)
	}
	return len(p), nil
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

// reads counts the reads on a connection.
type reads struct {
	loop
	n int
}

func (r *reads) Read(p []byte) (int, error) {
	r.n++
	return r.loop.Read(p)
}

// Where the socket has enough and the slab has room, a frame costs one read, and several small ones
// do.
func TestFramesCostOneReadEach(t *testing.T) {
	for _, tt := range []struct {
		name    string
		payload int
		read    func(c *Conn) func() error // reads a frame's payload at least
		most    int                        // reads for 1,000 frames
	}{
		{"chunks as messages", 16000, func(c *Conn) func() error {
			slab := make([]byte, 16000+Readahead)
			return func() error { _, _, err := c.ReadMessage(slab); return err }
		}, 1001},
		{"chunks as messages, into slabs without room", 16000, func(c *Conn) func() error {
			slab := make([]byte, 16000)
			return func() error { _, _, err := c.ReadMessage(slab); return err }
		}, 2001},
		{"chunks as a stream", 16000, func(c *Conn) func() error {
			s, p := NetConn(c), make([]byte, 16000+Readahead)
			return func() error {
				for n := 0; n < 16000; {
					m, err := s.Read(p)
					if err != nil {
						return err
					}
					n += m
				}
				return nil
			}
		}, 1001},
		{"frames of 100 bytes", 100, func(c *Conn) func() error {
			slab := make([]byte, 100)
			return func() error { _, _, err := c.ReadMessage(slab); return err }
		}, 30},
	} {
		for _, role := range []Role{Server, Client} {
			r := &reads{loop: loop{in: wire(role, fB(stars(tt.payload)))}}
			read := tt.read(New(r, role, nil, Options{}))
			for range 1000 {
				if err := read(); err != nil {
					t.Fatal(err)
				}
			}
			if r.n > tt.most {
				t.Errorf("%v, %s: %d reads for 1,000 frames, want %d at most", role, tt.name, r.n, tt.most)
			}
		}
	}
}

// portions is a connection that gives b in reads of the sizes told.
type portions struct {
	once
	sizes []int
}

func (p *portions) Read(b []byte) (int, error) {
	if len(p.sizes) > 0 {
		p.chunk, p.sizes = p.sizes[0], p.sizes[1:]
	}
	return p.once.Read(b)
}

// Whatever comes behind a frame in the same read is there for the next one.
func TestReadaheadLosesNothing(t *testing.T) {
	next := wire(Server, fP("ping"), fB(stars(Readahead)))
	for k := 0; k <= len(next); k++ {
		if k == 200 { // beyond the small frame, only the last bytes are another case
			k = len(next) - 200
		}
		in := append(wire(Server, fB(stars(16000))), next...)
		nc := &portions{once: once{b: in, chunk: 1 << 20}, sizes: []int{8, 16000 + k, 1 << 20}}
		c := New(nc, Server, nil, Options{})
		slab := make([]byte, 16000+Readahead+k%2)
		for _, want := range []int{16000, Readahead} {
			if _, n, err := c.ReadMessage(slab); n != want || err != nil || string(slab[:n]) != stars(n) {
				t.Fatalf("%d bytes behind the frame: read %d bytes, %v; want %d", k, n, err, want)
			}
		}
		c.CloseNow()
	}
}
