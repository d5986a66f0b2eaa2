package ws

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// listen serves every connection to a new port of 127.0.0.1 with f, which owns it.
func listen(t testing.TB, f func(nc net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer nc.Close() //nolint:errcheck // of a test
				f(nc)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

// say answers each request with a text.
func say(answer string) func(net.Conn) {
	return func(nc net.Conn) {
		if _, err := ReadRequest(nc, nil, 0); err == nil {
			_, _ = io.WriteString(nc, answer)
			_, _ = io.Copy(io.Discard, nc)
		}
	}
}

// upgradeAndEcho is a server.
func upgradeAndEcho(o ServerOptions) func(net.Conn) {
	return func(nc net.Conn) {
		if c, _, err := Upgrade(nc, o); err == nil {
			echo(c)
		}
	}
}

func roundTrip(t testing.TB, c *Conn) {
	t.Helper()
	slab := make([]byte, 100)
	if err := c.WriteMessage(Binary, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if op, n, err := c.ReadMessage(slab); err != nil || op != Binary || string(slab[:n]) != "hello" {
		t.Fatalf("read %q, %v", slab[:n], err)
	}
	if err := c.Close(StatusNormal, ""); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestDialSpeaksToUpgrade(t *testing.T) {
	addr := listen(t, upgradeAndEcho(ServerOptions{Admit: func(r *Request) (http.Header, error) {
		return http.Header{"Echo": {r.Header.Get("Kvasir-Token") + r.URL.RequestURI() + r.Host}}, nil
	}}))
	c, h, err := Dial(t.Context(), "ws://"+addr+"/a%20b?c=d", DialOptions{Header: http.Header{"Kvasir-Token": {"t"}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := h.Get("Echo"); got != "t/a%20b?c=d"+addr {
		t.Errorf("server saw %q", got)
	}
	roundTrip(t, c)
}

func TestDialSpeaksTLSWithHTTP1(t *testing.T) {
	cert, pool := certificate(t, never)
	var protocol atomic.Value
	addr := listen(t, func(nc net.Conn) {
		s := tls.Server(nc, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}})
		if err := s.Handshake(); err != nil {
			return
		}
		protocol.Store(s.ConnectionState().NegotiatedProtocol)
		upgradeAndEcho(ServerOptions{})(s)
	})
	config := &tls.Config{RootCAs: pool, NextProtos: []string{"h2"}}
	c, _, err := Dial(t.Context(), "wss://"+addr, DialOptions{TLS: config})
	if err != nil {
		t.Fatal(err)
	}
	roundTrip(t, c)
	if protocol.Load() != "http/1.1" || config.NextProtos[0] != "h2" || config.ServerName != "" {
		t.Errorf("protocol %v, config %v", protocol.Load(), config)
	}
}

func TestExpiredCertificateAsksForTheClock(t *testing.T) {
	cert, pool := certificate(t, time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC))
	addr := listen(t, func(nc net.Conn) {
		_ = tls.Server(nc, &tls.Config{Certificates: []tls.Certificate{cert}}).Handshake()
	})
	_, _, err := Dial(t.Context(), "wss://"+addr, DialOptions{TLS: &tls.Config{RootCAs: pool}})
	if err == nil || !strings.Contains(err.Error(), "2001-01-01") || !strings.Contains(err.Error(), "clock") {
		t.Errorf("got %v", err)
	}
}

// A frame that the server sends with its answer, in one write, and in two at every byte.
func TestFramesGluedToTheAnswerAreDelivered(t *testing.T) {
	for cut := -200; cut < 100; cut++ {
		near, far := net.Pipe()
		go func() {
			req, err := ReadRequest(far, nil, 0)
			if err != nil {
				return
			}
			w := &bytes.Buffer{}
			if err := Switch(buffered{far, w}, req, WebSocket, nil); err != nil {
				return
			}
			w.Write(wire(Client, fB("first"), fB(stars(5000))))
			all := w.Bytes()
			n := max(0, cut+len(all)-5015) // around the end of the head
			_, _ = far.Write(all[:n])
			_, _ = far.Write(all[n:])
		}()
		c, _, err := Dial(t.Context(), "ws://hub/", DialOptions{
			NetDial: func(context.Context, string, string) (net.Conn, error) { return near, nil }})
		if err != nil {
			t.Fatal(err)
		}
		slab := make([]byte, 5000)
		for i, want := range []int{5, 5000} {
			if _, n, err := c.ReadMessage(slab); err != nil || n != want {
				t.Fatalf("cut at %d: message %d has %d bytes, %v", cut, i, n, err)
			}
		}
		c.CloseNow()
		_ = far.Close()
	}
}

type buffered struct {
	net.Conn
	w io.Writer
}

func (b buffered) Write(p []byte) (int, error) { return b.w.Write(p) }

func TestDialAnswersAChallenge(t *testing.T) {
	for _, again := range []bool{true, false} {
		var conns atomic.Int32
		server := upgradeAndEcho(ServerOptions{Admit: func(r *Request) (http.Header, error) {
			if r.Header.Get("Kvasir-Nonce") == "" {
				return nil, &Refusal{Status: 401, Header: http.Header{"Www-Authenticate": {"Kvasir nonce=n1"}},
					Reason: "prove it", Again: again}
			}
			if got := r.Header.Get("Kvasir-Nonce") + r.Header.Get("Kvasir-Token"); got != "Kvasir nonce=n1t" {
				t.Errorf("proof %q", got)
			}
			return nil, nil
		}})
		addr := listen(t, func(nc net.Conn) { conns.Add(1); server(nc) })
		o := DialOptions{Header: http.Header{"Kvasir-Token": {"t"}}, Challenge: func(h http.Header) (http.Header, error) {
			return http.Header{"kvasir-nonce": {h.Get("WWW-Authenticate")}}, nil
		}}
		c, _, err := Dial(t.Context(), "ws://"+addr, o)
		if err != nil {
			t.Fatal(err)
		}
		roundTrip(t, c)
		if want := map[bool]int32{true: 1, false: 2}[again]; conns.Load() != want {
			t.Errorf("kept open %v: %d connections, want %d", again, conns.Load(), want)
		}
		o.Challenge = func(http.Header) (http.Header, error) { return nil, errors.New("not for this hub") }
		if _, _, err := Dial(t.Context(), "ws://"+addr, o); err == nil || !strings.Contains(err.Error(), "not for this hub") {
			t.Errorf("challenge refused: %v", err)
		}
	}
}

func TestDialRefuses(t *testing.T) {
	const ok = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
	for _, tt := range []struct {
		name, answer, want string
	}{
		{"another status", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", "the server answered 200 OK: hi"},
		{"refusal", "HTTP/1.1 403 Forbidden\r\nContent-Length: 14\r\n\r\ntoken revoked\n",
			"the server answered 403 Forbidden: token revoked"},
		{"refusal without a length", "HTTP/1.0 502 Bad Gateway\r\n\r\nno hub", "502 Bad Gateway: no hub"},
		{"chunked refusal", "HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "503 Service Unavailable"},
		{"refusal of a terabyte", "HTTP/1.1 403 Forbidden\r\nContent-Length: 1099511627776\r\n\r\nno\x1b[2J\n", "403 Forbidden: no [2J"},
		{"challenge without an answer", "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "401 Unauthorized"},
		{"redirection", "HTTP/1.1 302 Found\r\nLocation: https://x/\r\nContent-Length: 0\r\n\r\n",
			"302 Found to https://x/; redirects are not followed"},
		{"no accept", ok + "\r\n", "wrong Sec-WebSocket-Accept"},
		{"wrong accept", ok + "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n", "wrong Sec-WebSocket-Accept"},
		{"another protocol", "HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", "no upgrade to websocket"},
		{"HTTP/1.0", "HTTP/1.0 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", "another version"},
		{"not HTTP", "220 smtp.example.org ESMTP\r\n", "not HTTP"},
		{"not quite HTTP", "HTTPS\r\n\r\n", "malformed"},
		{"TLS", "\x15\x03\x01\x00\x02\x02\x46", "speaks TLS"},
		{"nothing", "", "cut in the handshake"},
		{"half", "HTTP/1.1 101 Switching", "cut in the handshake"},
		{"an endless head", "HTTP/1.1 101 X\r\nA: " + strings.Repeat("a", 20000), "too big"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr := listen(t, func(nc net.Conn) {
				if _, err := ReadRequest(nc, nil, 0); err == nil {
					_, _ = io.WriteString(nc, tt.answer)
					_ = nc.(*net.TCPConn).CloseWrite()
					_, _ = io.Copy(io.Discard, nc)
				}
			})
			_, _, err := Dial(t.Context(), "ws://"+addr, DialOptions{})
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.ContainsAny(err.Error(), "\r\n\x1b") {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			if want := "dial ws://" + addr + "/: "; err != nil && !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got %v, want %s…", err, want)
			}
		})
	}
	for _, head := range []string{"Sec-WebSocket-Extensions: permessage-deflate", "Sec-WebSocket-Protocol: chat"} {
		addr := listen(t, func(nc net.Conn) {
			if req, err := ReadRequest(nc, nil, 0); err == nil {
				key := acceptKey(req.Header.Get("Sec-WebSocket-Key"))
				_, _ = io.WriteString(nc, ok+"Sec-WebSocket-Accept: "+key+"\r\n"+head+"\r\n\r\n")
			}
		})
		if _, _, err := Dial(t.Context(), "ws://"+addr, DialOptions{}); err == nil || !strings.Contains(err.Error(), "not offered") {
			t.Errorf("%s: %v", head, err)
		}
	}
}

func TestDialRefusesAddresses(t *testing.T) {
	for _, tt := range []struct {
		name, address, want string
		header              http.Header
	}{
		{"http", "http://h/", `scheme is "http", want ws or wss`, nil},
		{"no scheme", "hub.example.org", "want ws or wss", nil},
		{"no host", "ws:///x", "no host", nil},
		{"a user", "wss://me:secret@h/", "no place", nil},
		{"a fragment", "wss://h/#x", "no place", nil},
		{"not a URL", "ws://h\x7f/", "invalid control character", nil},
		{"nobody there", "ws://127.0.0.1:1/", "refused", nil},
		{"a header of the handshake's own", "", "header host is the handshake's own", http.Header{"host": {"x"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.address == "" {
				tt.address = "ws://" + listen(t, say(""))
			}
			_, _, err := Dial(t.Context(), tt.address, DialOptions{Header: tt.header})
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestDialEndsInTime(t *testing.T) {
	for _, tt := range []struct {
		name string
		url  string
		dial func(context.Context, string, string) (net.Conn, error)
	}{
		{"no connection", "ws://h", func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}},
		{"no answer", "ws://h", func(context.Context, string, string) (net.Conn, error) { return mute(), nil }},
		{"no TLS", "wss://h", func(context.Context, string, string) (net.Conn, error) { return mute(), nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				start := time.Now()
				_, _, err := Dial(t.Context(), tt.url, DialOptions{NetDial: tt.dial})
				if !errors.Is(err, ErrSilent) || time.Since(start) != DefaultHandshake {
					t.Errorf("after %v: %v", time.Since(start), err)
				}
			})
			bubble(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, cancel)
				start := time.Now()
				_, _, err := Dial(ctx, tt.url, DialOptions{NetDial: tt.dial})
				if !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
					t.Errorf("cancelled after %v: %v", time.Since(start), err)
				}
			})
		})
	}
}

// mute takes everything and says nothing.
func mute() net.Conn {
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, far) }()
	return near
}

// ctx is for the dialling only: the connection outlives it.
func TestConnOutlivesItsContext(t *testing.T) {
	addr := listen(t, upgradeAndEcho(ServerOptions{}))
	ctx, cancel := context.WithCancel(t.Context())
	c, _, err := Dial(ctx, "ws://"+addr, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	roundTrip(t, c)
}

func TestDialProtocolHandsOverTheConnection(t *testing.T) {
	addr := listen(t, func(nc net.Conn) {
		req, err := ReadRequest(nc, nil, 0)
		if err == nil && Switch(nc, req, "kvasir-session/1", http.Header{"Session": {"7"}}) == nil {
			_, _ = io.Copy(nc, io.MultiReader(bytes.NewReader(req.Rest), nc))
		}
	})
	nc, rest, h, err := DialProtocol(t.Context(), "ws://"+addr+"/s", "kvasir-session/1", DialOptions{})
	if err != nil || h.Get("Session") != "7" {
		t.Fatalf("header %v, %v", h, err)
	}
	if _, ok := nc.(*net.TCPConn); !ok || len(rest) > 0 {
		t.Errorf("connection is a %T, rest %q", nc, rest)
	}
	if _, err := nc.Write([]byte("ping")); err != nil {
		t.Error(err)
	}
	p := make([]byte, 4)
	if _, err := io.ReadFull(nc, p); err != nil || string(p) != "ping" {
		t.Errorf("read %q, %v", p, err)
	}
	_ = nc.Close()
	if _, _, _, err := DialProtocol(t.Context(), "ws://"+addr+"/s", "other", DialOptions{}); err == nil {
		t.Error("another protocol was accepted")
	}
}

// A server that says everything in one write.
func TestAnswersGluedTogetherAreToldApart(t *testing.T) {
	addr := listen(t, say("HTTP/1.1 401 Unauthorized\r\nContent-Length: 3\r\n\r\nwhoHTTP/1.1 101 X\r\nUpgrade: p\r\n"+
		"Connection: Upgrade\r\n\r\nglued"))
	nc, rest, _, err := DialProtocol(t.Context(), "ws://"+addr, "p", DialOptions{
		Challenge: func(http.Header) (http.Header, error) { return nil, nil }})
	if err != nil || string(rest) != "glued" {
		t.Fatalf("rest %q, %v", rest, err)
	}
	_ = nc.Close()
}

func TestDialGoesThroughAProxy(t *testing.T) {
	cert, pool := certificate(t, never)
	target := listen(t, func(nc net.Conn) {
		upgradeAndEcho(ServerOptions{})(tls.Server(nc, &tls.Config{Certificates: []tls.Certificate{cert}}))
	})
	var asked atomic.Value
	proxy := listen(t, func(nc net.Conn) {
		br := bufio.NewReader(nc)
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		asked.Store(req.Method + " " + req.Host)
		switch req.Header.Get("Proxy-Authorization") {
		case "Basic bWU6c2VjcmV0":
		case "":
			_, _ = io.WriteString(nc, "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
			return
		default:
			_, _ = io.WriteString(nc, "HTTP/1.1 200 OK\r\n\r\nearly")
			return
		}
		up, err := net.Dial("tcp", req.Host)
		if err != nil {
			return
		}
		defer up.Close() //nolint:errcheck // of a test
		_, _ = io.WriteString(nc, "HTTP/1.1 200 Connection established\r\n\r\n")
		go func() { _, _ = io.Copy(up, br); _ = up.Close() }()
		_, _ = io.Copy(nc, up)
	})
	dial := func(user string) (*Conn, error) {
		c, _, err := Dial(t.Context(), "wss://"+target, DialOptions{TLS: &tls.Config{RootCAs: pool},
			Proxy: func(r *http.Request) (*url.URL, error) {
				if r.URL.Scheme != "https" {
					t.Errorf("proxy asked for %v", r.URL)
				}
				return url.Parse("http://" + user + proxy)
			}})
		return c, err
	}
	c, err := dial("me:secret@")
	if err != nil {
		t.Fatal(err)
	}
	if asked.Load() != "CONNECT "+target {
		t.Errorf("proxy was asked for %v", asked.Load())
	}
	roundTrip(t, c)
	for user, want := range map[string]string{"": "407 Proxy Authentication Required", "other@": "5 bytes before"} {
		if _, err := dial(user); err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, ErrHandshake) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	_, _, err = Dial(t.Context(), "wss://"+target, DialOptions{
		Proxy: func(*http.Request) (*url.URL, error) { return url.Parse("socks5://x") }})
	if err == nil || !strings.Contains(err.Error(), "want http or https") {
		t.Errorf("socks5: %v", err)
	}
}

func TestStatusErrorCarriesHeaders(t *testing.T) {
	addr := listen(t, say("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 9\r\nContent-Length: 4\r\n\r\nbusy"))
	_, _, err := Dial(t.Context(), "ws://"+addr, DialOptions{})
	var e *StatusError
	if !errors.As(err, &e) || e.Status != 503 || e.Header.Get("Retry-After") != "9" || e.Reason != "busy" {
		t.Errorf("got %v", err)
	}
	if want := fmt.Sprintf("dial ws://%s/: ws: the server answered 503 Service Unavailable: busy", addr); err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
