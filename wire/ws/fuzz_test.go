package ws

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
)

// once is a connection that gives b in reads of at most chunk bytes, and then ends.
type once struct {
	b       []byte
	chunk   int
	written int
}

func (o *once) Read(p []byte) (int, error) {
	if len(o.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), o.chunk)], o.b)
	o.b = o.b[n:]
	return n, nil
}
func (o *once) Write(p []byte) (int, error)      { o.written += len(p); return len(p), nil }
func (o *once) Close() error                     { return nil }
func (o *once) LocalAddr() net.Addr              { return nil }
func (o *once) RemoteAddr() net.Addr             { return nil }
func (o *once) SetDeadline(time.Time) error      { return nil }
func (o *once) SetReadDeadline(time.Time) error  { return nil }
func (o *once) SetWriteDeadline(time.Time) error { return nil }

// Whatever comes, a Conn and a Lobby end with an error, allocate little, and give no message that
// is longer than the limit or than what came.
func FuzzConn(f *testing.F) {
	for _, r := range rules() {
		if b := wire(Server, r.in...); len(b) < 1000 {
			f.Add(b, true)
			f.Add(wire(Client, r.in...), false)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, server bool) {
		role := Client
		if server {
			role = Server
		}
		for _, chunk := range []int{1, 1 << 20} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			c := New(&once{b: b, chunk: chunk}, role, nil, Options{Message: 1000, Close: time.Millisecond})
			slab, sum := make([]byte, 2000), 0
			for {
				_, n, err := c.ReadMessage(slab)
				if err != nil {
					break
				}
				if sum += n; n > 1000 || sum > len(b) {
					t.Fatalf("message of %d bytes, %d in all, from %d", n, sum, len(b))
				}
			}
			_ = c.Close(StatusNormal, "")

			c = New(&once{b: b, chunk: chunk}, role, nil, Options{Message: 1000, Close: time.Millisecond})
			if n, err := io.Copy(io.Discard, NetConn(c)); n > int64(len(b)) || err != nil && c.rerr == nil {
				t.Fatalf("stream of %d bytes, %v", n, err)
			}
			_ = c.Close(StatusNormal, "")

			c = New(&once{b: b, chunk: chunk}, role, nil, Options{Message: 1000, Close: time.Millisecond})
			l := NewLobby(c, 1000)
			for {
				if p, err := l.Read(); err != nil {
					break
				} else if len(p) > 1000 {
					t.Fatalf("text of %d bytes", len(p))
				}
			}
			_ = c.Close(StatusNormal, "")
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
				t.Fatalf("%d bytes allocated for %d", n, len(b))
			}
		}
	})
}

// Whatever a client sends, it is answered with HTTP and nothing that came beyond the head is lost.
func FuzzUpgrade(f *testing.F) {
	f.Add([]byte(request))
	f.Add([]byte(request + "glued"))
	f.Add([]byte("\x16\x03\x01\r\n\r\n"))
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"))
	f.Add([]byte("GET / HTTP/1.1\nHost: a\n\n" + request))
	f.Add([]byte(strings.Replace(request, "Kvasir-Key: k", "Kvasir-Key:\r\n k", 1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		nc := &once{b: bytes.Clone(b), chunk: 7}
		c, req, err := Upgrade(nc, ServerOptions{Head: 1000})
		if (c == nil) != (err != nil) {
			t.Fatalf("%v, %v", c, err)
		}
		if err == nil {
			if all := append(bytes.Clone(req.Head), append(bytes.Clone(req.Rest), nc.b...)...); !bytes.Equal(all, b) {
				t.Fatalf("head %q, rest %q, unread %q from %q", req.Head, req.Rest, nc.b, b)
			}
			// Who reads lines by LF alone, or unfolds them, finds the same head.
			lines := strings.Split(strings.TrimSuffix(string(req.Head), "\r\n\r\n"), "\n")
			for i, line := range lines {
				if line == "" || line[0] <= ' ' || strings.HasSuffix(line, "\r") != (i < len(lines)-1) ||
					strings.Trim(line, "\r") == "" {
					t.Fatalf("line %d of the head: %q", i, line)
				}
			}
			second := bufio.NewReader(bytes.NewReader(req.Head))
			if _, err := http.ReadRequest(second); err != nil || second.Buffered() > 0 {
				t.Fatalf("%d bytes of the head are another request's, %v", second.Buffered(), err)
			}
		}
	})
}

// Whatever a server answers, Dial ends.
func FuzzDial(f *testing.F) {
	f.Add([]byte("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
	f.Add([]byte("HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		u, err := parseURL("ws://h/")
		if err != nil {
			t.Fatal(err)
		}
		d := dialer{url: u, protocol: WebSocket, nc: &once{b: b, chunk: 7}}
		if _, err := d.upgrade(); err == nil {
			t.Fatal("a key that nobody knew was answered")
		}
	})
}
