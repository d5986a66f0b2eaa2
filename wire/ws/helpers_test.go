package ws

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A frame as a test writes it down.
type frame struct {
	op  OpCode
	fin bool
	rsv byte
	p   string

	missing int // bytes of payload that the header says and that do not come
}

// Frames: a capital is final, a small letter is a fragment with others to follow.
func ft(p string) frame { return frame{op: ws.OpText, p: p} }
func fT(p string) frame { return frame{op: ws.OpText, fin: true, p: p} }
func fb(p string) frame { return frame{op: ws.OpBinary, p: p} }
func fB(p string) frame { return frame{op: ws.OpBinary, fin: true, p: p} }
func fc(p string) frame { return frame{op: ws.OpContinuation, p: p} }
func fC(p string) frame { return frame{op: ws.OpContinuation, fin: true, p: p} }
func fP(p string) frame { return frame{op: ws.OpPing, fin: true, p: p} }
func fO(p string) frame { return frame{op: ws.OpPong, fin: true, p: p} }
func fX(p string) frame { return frame{op: ws.OpClose, fin: true, p: p} }

// code is a Close frame with a status code.
func code(c int, reason string) frame {
	return fX(string(binary.BigEndian.AppendUint16(nil, uint16(c))) + reason)
}

func (f frame) String() string {
	if f.op == ws.OpClose && len(f.p) >= 2 {
		return fmt.Sprintf("close %d %.20q", binary.BigEndian.Uint16([]byte(f.p)), f.p[2:])
	}
	return fmt.Sprintf("op %x fin %v %d bytes %.20q", byte(f.op), f.fin, len(f.p), f.p)
}

// wire returns the frame as the peer of a Conn of this role sends it.
func (f frame) wire(to Role) []byte {
	h := ws.Header{Fin: f.fin, Rsv: f.rsv, OpCode: f.op, Length: int64(len(f.p) + f.missing)}
	p := []byte(f.p)
	if to == Server {
		h.Masked, h.Mask = true, [4]byte{0x37, 0xfa, 0x21, 0x3d}
		ws.Cipher(p, h.Mask, 0)
	}
	var b bytes.Buffer
	if err := ws.WriteHeader(&b, h); err != nil {
		panic(err)
	}
	b.Write(p)
	return b.Bytes()
}

func wire(to Role, fs ...frame) (b []byte) {
	for _, f := range fs {
		b = append(b, f.wire(to)...)
	}
	return b
}

// frames parses what a Conn of the given role has sent, with gobwas's own reader. It wants masks
// where they belong and nowhere else.
func frames(t testing.TB, from Role, b []byte) (fs []frame) {
	t.Helper()
	for r := bytes.NewReader(b); r.Len() > 0; {
		h, err := ws.ReadHeader(r)
		if err != nil {
			t.Fatalf("header after %d frames: %v", len(fs), err)
		}
		if h.Masked != (from == Client) {
			t.Fatalf("frame %d of a %v: masked %v", len(fs), from, h.Masked)
		}
		if h.Masked && h.Mask == [4]byte{} {
			t.Fatalf("frame %d has mask key 0", len(fs))
		}
		p := make([]byte, h.Length)
		if _, err := io.ReadFull(r, p); err != nil {
			t.Fatalf("payload of frame %d, %d bytes: %v", len(fs), h.Length, err)
		}
		if h.Masked {
			ws.Cipher(p, h.Mask, 0)
		}
		fs = append(fs, frame{op: h.OpCode, fin: h.Fin, rsv: h.Rsv, p: string(p)})
	}
	return fs
}

// A collector reads what comes from a connection, until it ends.
type collector struct {
	mu   sync.Mutex
	b    []byte
	done chan struct{}
}

func collect(nc net.Conn) *collector {
	c := &collector{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		p := make([]byte, 64<<10)
		for {
			n, err := nc.Read(p)
			c.mu.Lock()
			c.b = append(c.b, p[:n]...)
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return c
}

func (c *collector) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.b)
}

// counted counts the writes on a connection.
type counted struct {
	net.Conn
	mu     sync.Mutex
	writes [][]byte
}

func (c *counted) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.writes = append(c.writes, bytes.Clone(p))
	c.mu.Unlock()
	return c.Conn.Write(p)
}

func (c *counted) taken() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.writes
	c.writes = nil
	return w
}

// loopback returns the two ends of a TCP connection.
func loopback(t testing.TB) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // of a test
	a, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

// bubble runs f with time that passes only while everything waits.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func inTime(t testing.TB, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatal("nothing for a minute")
	}
}
