package ws

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"
)

// A flood is a connection from which head comes, and then body again and again, total bytes in all.
// What is written to it is kept up to a limit.
type flood struct {
	once
	head, body  []byte
	total, took int
	sent        []byte
}

func (f *flood) Read(p []byte) (int, error) {
	if f.took == f.total {
		return 0, io.EOF
	}
	p = p[:min(len(p), f.total-f.took)]
	n := 0
	if f.took < len(f.head) {
		n = copy(p, f.head[f.took:])
	}
	if len(f.body) > 0 && len(f.body) < 4<<10 {
		f.body = bytes.Repeat(f.body, 4<<10/len(f.body)+1)
	}
	for n < len(p) && len(f.body) > 0 {
		n += copy(p[n:], f.body[(f.took+n-len(f.head))%len(f.body):])
	}
	f.took += n
	return n, nil
}

func (f *flood) Write(p []byte) (int, error) {
	if len(f.sent) < 4<<10 {
		f.sent = append(f.sent, p...)
	}
	return len(p), nil
}

// allocated returns how many bytes f allocates, on any goroutine. Tests that call it are not
// parallel.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// readers are the three ways to read from a Conn until an error.
var readers = []struct {
	name string
	read func(c *Conn) error
}{
	{"messages", func(c *Conn) error {
		slab := make([]byte, DefaultMessage)
		for {
			if _, _, err := c.ReadMessage(slab); err != nil {
				return err
			}
		}
	}},
	{"stream", func(c *Conn) error {
		_, err := io.Copy(io.Discard, struct{ io.Reader }{NetConn(c)})
		return err
	}},
	{"lobby", func(c *Conn) error {
		l := NewLobby(c, 16<<10)
		for {
			if _, err := l.Read(); err != nil {
				return err
			}
		}
	}},
}

// Frames from a peer that means no good. Each ends with one error, one line long, and a Close frame
// that says the same; what the peer sends beyond its breach is not looked at; and no more is
// allocated for it than for a peer that means well.
func TestHostileFramesAreCutCheaply(t *testing.T) {
	const all = 64 << 20 // bytes that the peer has ready
	mask := "\x00\x00\x00\x00"
	long := func(first byte, size uint64) []byte {
		b := []byte{first, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		for i := range 8 {
			b[2+i] = byte(size >> (56 - 8*i))
		}
		return b
	}
	for _, tt := range []struct {
		name       string
		head, body []byte
		want       error
		code       int
		within     int // bytes of the peer's, from the first on, that may be read before the error
		text       bool
	}{
		{"a length of 2^63", long(0x82, 1<<63), []byte("x"), ErrProtocol, 1002, 4 << 10, false},
		{"a length of 2^64-1", long(0x82, 1<<64-1), []byte("x"), ErrProtocol, 1002, 4 << 10, false},
		{"a length of 2^63-1", long(0x82, 1<<63-1), []byte("x"), ErrTooBig, 1009, 4 << 10, false},
		{"a length of 2^62", long(0x82, 1<<62), []byte("x"), ErrTooBig, 1009, 4 << 10, false},
		{"a length of 2^32", long(0x82, 1<<32), []byte("x"), ErrTooBig, 1009, 4 << 10, false},
		{"a length of 2^32+1 in a fragment", append(wire(Server, fb("")), long(0x80, 1<<32+1)...), []byte("x"),
			ErrTooBig, 1009, 4 << 10, false},
		{"a length one over the limit", long(0x82, 0x10000), []byte("x"), ErrTooBig, 1009, 4 << 10, false},
		{"a length of 65535 in eight bytes", long(0x82, 65535), []byte("x"), ErrProtocol, 1002, 4 << 10, false},
		{"a length of 0 in eight bytes", long(0x82, 0), []byte("x"), ErrProtocol, 1002, 4 << 10, false},
		{"a length of 125 in two bytes", []byte("\x82\xfe\x00\x7d" + mask), []byte("x"), ErrProtocol, 1002, 4 << 10, false},
		{"a ping of 2^62", long(0x89, 1<<62), []byte("x"), ErrProtocol, 1002, 4 << 10, false},
		{"a close of 126 bytes", []byte("\x88\xfe\x00\x7e" + mask), []byte("x"), ErrProtocol, 1002, 4 << 10, false},
		{"one message of one-byte fragments", wire(Server, fb("x")), wire(Server, fc("x")), ErrTooBig, 1009, 24 << 10, false},
		{"one text of one-byte fragments", wire(Server, ft("x")), wire(Server, fc("x")), ErrTooBig, 1009, 24 << 10, true},
		{"one message of empty fragments", wire(Server, fb("")), wire(Server, fc("")), ErrTooBig, 1009, 24 << 10, false},
		{"text that is none, and goes on", nil, wire(Server, fT("\xff")), ErrUTF8, 1007, 4 << 10, true},
		{"frames of the other role", nil, wire(Client, fB("x")), ErrProtocol, 1002, 4 << 10, false},
		{"zeros", nil, make([]byte, 16), ErrProtocol, 1002, 4 << 10, false},
		{"ones", nil, bytes.Repeat([]byte{0xff}, 16), ErrProtocol, 1002, 4 << 10, false},
		{"a request for a page", nil, []byte(request), ErrProtocol, 1002, 4 << 10, false},
		{"TLS", nil, []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), ErrProtocol, 1002, 4 << 10, false},
	} {
		for _, r := range readers {
			t.Run(tt.name+"/"+r.name, func(t *testing.T) {
				f := &flood{head: tt.head, body: tt.body, total: all}
				var err error
				took := 0
				n := allocated(func() {
					c := New(f, Server, nil, Options{})
					err = r.read(c)
					took = f.took
					_ = c.Close(StatusNormal, "")
				})
				want, number := tt.want, tt.code
				if r.name == "stream" && tt.text {
					want, number = ErrUnsupported, 1003
				}
				oneClearLine(t, err, want)
				if took > tt.within {
					t.Errorf("%d bytes read, want %d at most", took, tt.within)
				}
				if n > 128<<10 {
					t.Errorf("%d bytes allocated", n)
				}
				if got := frames(t, Server, f.sent); len(got) != 1 || got[0].op != ws.OpClose || got[0].p[:2] != code(number, "").p {
					t.Errorf("sent %v, want close %d", got, number)
				}
			})
		}
	}
}

// oneClearLine checks that err is the one wanted and fit for one line of a log.
func oneClearLine(t *testing.T, err, want error) {
	t.Helper()
	if err == nil || !errors.Is(err, want) {
		t.Errorf("error %v, want %v", err, want)
	}
	if s := fmt.Sprint(err); len(s) > 300 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		t.Errorf("error is not one clear line: %q", s)
	}
}

// A flood of what is allowed has no end but the peer's. It costs no memory, whatever its length.
func TestFloodOfControlFramesCostsNoMemory(t *testing.T) {
	for _, tt := range []struct {
		name string
		head []byte
		body []byte
	}{
		{"pings", nil, wire(Server, fP("are you there?"))},
		{"empty pongs", nil, wire(Server, fO(""))},
		{"empty messages", nil, wire(Server, fT(""))},
		{"pings behind early data", wire(Server, fB(stars(15<<10))), wire(Server, fP(""))},
	} {
		for _, r := range readers {
			t.Run(tt.name+"/"+r.name, func(t *testing.T) {
				f := &flood{head: tt.head, body: tt.body, total: len(tt.head) + len(tt.body)<<16}
				var err error
				n := allocated(func() {
					c := New(f, Server, nil, Options{DropText: true})
					err = r.read(c)
					_ = c.Close(StatusNormal, "")
				})
				oneClearLine(t, err, ErrCut)
				if f.took != f.total || n > 256<<10 {
					t.Errorf("%d of %d bytes read, %d allocated", f.took, f.total, n)
				}
			})
		}
	}
}

func TestGarbageEndsWithAnError(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, 64<<10)
	for range 100 {
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		for _, role := range []Role{Server, Client} {
			for _, r := range readers {
				f := &flood{body: b, total: len(b)}
				var err error
				n := allocated(func() {
					c := New(f, role, nil, Options{})
					err = r.read(c)
					c.CloseNow()
				})
				if err == nil || n > 256<<10 {
					t.Fatalf("%v, %s: %v, %d bytes allocated", role, r.name, err, n)
				}
			}
		}
	}
}

// Heads from a client that means no good, before anybody knows who it is.
func TestHostileHeadsAreCutCheaply(t *testing.T) {
	start := "GET / HTTP/1.1\r\nHost: h\r\n"
	for _, tt := range []struct {
		name       string
		head, body string
		want       error
		answer     string // its beginning; "": nothing
	}{
		{"a line without an end", start + "A: ", "a", ErrTooBig, "HTTP/1.1 431 "},
		{"a request line without an end", "GET /", "a", ErrTooBig, "HTTP/1.1 431 "},
		{"lines without an end", start, "a: b\r\n", ErrTooBig, "HTTP/1.1 431 "},
		{"lines of nothing but ends", start, "\n", ErrTooBig, "HTTP/1.1 431 "},
		{"a cookie without an end", start, "Cookie: a=b; c=d; \t", ErrTooBig, "HTTP/1.1 431 "},
		{"16 lines of 1,000 names", start + strings.Repeat(strings.Repeat("a,", 450)+": x\r\n", 16) + "\r\n", "a",
			ErrHandshake, "HTTP/1.1 400 "},
		{"a body of 2^62 bytes", start + "Content-Length: 4611686018427387904\r\n\r\n", "a", ErrHandshake, "HTTP/1.1 400 "},
		{"a body of 2^65 bytes", start + "Content-Length: 36893488147419103232\r\n\r\n", "a", ErrHandshake, "HTTP/1.1 400 "},
		{"a body of -1 bytes", start + "Content-Length: -1\r\n\r\n", "a", ErrHandshake, "HTTP/1.1 400 "},
		{"chunks without an end", start + "Transfer-Encoding: chunked\r\n\r\n", "1\r\na\r\n", ErrHandshake, "HTTP/1.1 400 "},
		{"zeros", "", "\x00", ErrHandshake, "HTTP/1.1 400 "},
		{"frames", "", "\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff", ErrHandshake, "HTTP/1.1 400 "},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x00", ErrHandshake, "HTTP/1.1 "},
		{"half a head", start, "", ErrCut, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &flood{head: []byte(tt.head), body: []byte(tt.body), total: 64 << 20}
			if tt.body == "" {
				f.total = len(tt.head)
			}
			var err error
			n := allocated(func() { _, _, err = Upgrade(f, ServerOptions{}) })
			oneClearLine(t, err, tt.want)
			if f.took > 2*DefaultHead || n > 16*DefaultHead {
				t.Errorf("%d bytes read, %d allocated", f.took, n)
			}
			if !bytes.HasPrefix(f.sent, []byte(tt.answer)) || (len(f.sent) == 0) != (tt.answer == "") {
				t.Errorf("answered %.60q, want %q", f.sent, tt.answer)
			}
		})
	}
}

// Answers from a server that means no good.
func TestHostileAnswersAreCutCheaply(t *testing.T) {
	for _, tt := range []struct {
		name       string
		head, body string
		want       error // nil: a *StatusError
	}{
		{"a line without an end", "HTTP/1.1 101 X\r\nA: ", "a", ErrTooBig},
		{"lines without an end", "HTTP/1.1 101 X\r\n", "a: b\r\n", ErrTooBig},
		{"interim answers without an end", "", "HTTP/1.1 100 Continue\r\n\r\n", nil},
		{"a reason without an end", "HTTP/1.1 404 Not Found\r\n\r\n", "a", nil},
		{"a reason of 2^62 bytes", "HTTP/1.1 503 X\r\nContent-Length: 4611686018427387904\r\n\r\n", "a", nil},
		{"a reason in chunks without an end", "HTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\na\r\n", nil},
		{"zeros", "", "\x00", ErrHandshake},
		{"frames", "", "\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff", ErrHandshake},
		{"a wrong key, glued to frames", "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
			"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n", "\x82\x01x", ErrHandshake},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &flood{head: []byte(tt.head), body: []byte(tt.body), total: 64 << 20}
			var err error
			n := allocated(func() {
				_, _, err = Dial(t.Context(), "ws://h/", DialOptions{
					NetDial: func(context.Context, string, string) (net.Conn, error) { return f, nil }})
			})
			var status *StatusError
			if tt.want == nil && errors.As(err, &status) {
				tt.want = status
			}
			oneClearLine(t, err, tt.want)
			if f.took > 2*DefaultHead || n > 16*DefaultHead {
				t.Errorf("%d bytes read, %d allocated", f.took, n)
			}
		})
	}
}

// Nothing that comes behind a Close frame is looked at, and a peer that goes on holds nobody up.
func TestFramesAfterCloseAreDropped(t *testing.T) {
	t.Run("the peer's", func(t *testing.T) {
		for _, r := range readers {
			f := &flood{head: wire(Server, code(1000, "bye")), body: wire(Server, fT("\xff")), total: 64 << 20}
			c := New(f, Server, nil, Options{})
			var closed *CloseError
			for range 2 {
				if err := r.read(c); !errors.As(err, &closed) && (r.name != "stream" || err != nil) {
					t.Errorf("%s: %v", r.name, err)
				}
				if r.name == "lobby" {
					break
				}
			}
			if err := c.Close(StatusNormal, ""); err != nil {
				t.Errorf("%s: close: %v", r.name, err)
			}
			if got := frames(t, Server, f.sent); len(got) != 1 || got[0] != code(1000, "") || f.took > 4<<10 {
				t.Errorf("%s: %d bytes read, sent %v", r.name, f.took, got)
			}
		}
	})
	t.Run("ours", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			near, far := net.Pipe()
			out := collect(far)
			c := New(near, Server, nil, Options{})
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					time.Sleep(time.Millisecond)
					if _, err := far.Write(wire(Server, fB(stars(1000)))); err != nil {
						return
					}
				}
			}()
			start := time.Now()
			if err := c.Close(StatusPolicy, "enough"); !errors.Is(err, ErrSilent) || time.Since(start) > DefaultClose {
				t.Errorf("close after %v: %v", time.Since(start), err)
			}
			<-done
			<-out.done
			synctest.Wait()
			if got := frames(t, Server, out.bytes()); len(got) != 1 || got[0] != code(1008, "enough") {
				t.Errorf("sent %v", got)
			}
			if _, _, err := c.ReadMessage(nil); errors.Is(err, os.ErrDeadlineExceeded) || err == nil {
				t.Errorf("read: %v", err)
			}
		})
	})
}
