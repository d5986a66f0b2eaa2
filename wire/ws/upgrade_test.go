package ws

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

const request = "GET /join?x=1 HTTP/1.1\r\nHost: hub\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nKvasir-Key: k\r\n\r\n"

// serve runs Upgrade on what a client writes, and returns what it answers.
func serve(o ServerOptions, in string) (req *Request, answer []byte, err error) {
	near, far := net.Pipe()
	out := collect(far)
	go func() { _, _ = io.WriteString(far, in) }()
	c, req, err := Upgrade(near, o)
	if err != nil {
		_ = near.Close()
	} else {
		c.CloseNow()
	}
	<-out.done
	return req, out.bytes(), err
}

func TestUpgradeAnswersTheSampleOfTheRFC(t *testing.T) {
	o := ServerOptions{Admit: func(r *Request) (http.Header, error) {
		if r.URL.Path != "/join" || r.Header.Get("Kvasir-Key") != "k" || r.Host != "hub" {
			t.Errorf("request %+v", r.Request)
		}
		return http.Header{"Kvasir-Hub": {"h"}}, nil
	}}
	req, answer, err := serve(o, request)
	if err != nil {
		t.Fatal(err)
	}
	want := "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nKvasir-Hub: h\r\n\r\n"
	if string(answer) != want {
		t.Errorf("answered %q", answer)
	}
	if string(req.Head) != request {
		t.Errorf("head %q", req.Head)
	}
}

func TestUpgradeNeverNegotiatesCompression(t *testing.T) {
	in := strings.Replace(request, "\r\n\r\n", "\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n", 1)
	_, answer, err := serve(ServerOptions{}, in)
	if err != nil || bytes.Contains(answer, []byte("Extensions")) {
		t.Errorf("answered %q, %v", answer, err)
	}
}

func TestUpgradeRefuses(t *testing.T) {
	swap := func(old, new string) string { return strings.Replace(request, old, new, 1) }
	for _, tt := range []struct {
		name, in, want string
	}{
		{"POST", swap("GET", "POST"), "405 Method Not Allowed\r\n"},
		{"HTTP/1.0", swap("HTTP/1.1", "HTTP/1.0"), "505 HTTP"},
		{"no host", swap("Host: hub\r\n", ""), "400 Bad Request"},
		{"no upgrade", swap("Upgrade: websocket\r\n", ""), "426 Upgrade Required"},
		{"another upgrade", swap("websocket", "h2c"), "426 Upgrade Required"},
		{"no connection header", swap("Connection: keep-alive, Upgrade\r\n", ""), "426 Upgrade Required"},
		{"version 8", swap("Version: 13", "Version: 8"), "426 Upgrade Required"},
		{"two versions", swap("Sec-WebSocket-Version: 13", "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Version: 13"),
			"426 Upgrade Required"},
		{"no key", swap("Sec-WebSocket-Key", "Sec-WebSocket-Nokey"), "400 Bad Request"},
		{"two keys", swap("Kvasir-Key: k", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="), "400 Bad Request"},
		{"key too short", swap("dGhlIHNhbXBsZSBub25jZQ==", "dGhlIHNhbXBsZQ=="), "400 Bad Request"},
		{"key not base64", swap("dGhl", "dG*l"), "400 Bad Request"},
		{"a body", swap("Kvasir-Key: k", "Content-Length: 3"), "400 Bad Request"},
		{"a chunked body", swap("Kvasir-Key: k", "Transfer-Encoding: chunked"), "400 Bad Request"},
		{"a bad header", swap("Kvasir-Key: k", "Kvasir Key: k"), "400 Bad Request"},
		{"a bad path", swap("/join?x=1", "/%zz"), "400 Bad Request"},
		{"two hosts", swap("Kvasir-Key: k", "hOST: other"), "400 Bad Request"},
		{"a header over two lines", swap("Kvasir-Key: k", "Kvasir-Key:\r\n k"), "400 Bad Request"},
		{"a line that ends with LF", swap("Kvasir-Key: k", "Kvasir-Key: k\nA: b"), "400 Bad Request"},
		{"a head that ends with LF, and another", "GET / HTTP/1.1\nHost: a\n\n" + request, "400 Bad Request"},
		{"a CR within a line", swap("Kvasir-Key: k", "Kvasir-Key: k\rA: b"), "400 Bad Request"},
		{"a NUL in a header", swap("Kvasir-Key: k", "Kvasir-Key: k\x00"), "400 Bad Request"},
		{"an escape in the path", swap("/join?x=1", "/\x1b[31m"), "400 Bad Request"},
		{"garbage", "\x00\x01\x02\x03garbage\r\n\r\n", "400 Bad Request"},
		{"words", "hello there\r\n\r\n", "400 Bad Request"},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00", "400 Bad Request"},
		{"a long line", swap("Kvasir-Key: k", "Kvasir-Key: "+strings.Repeat("k", 20000)), "431 Request Header"},
		{"many lines", swap("Kvasir-Key: k", strings.Repeat("a: b\r\n", 100)+"a: b"), "431 Request Header"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := ServerOptions{Admit: func(*Request) (http.Header, error) { t.Error("admitted"); return nil, nil }}
			_, answer, err := serve(o, tt.in)
			if err == nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v", err)
			}
			if !errors.Is(err, ErrHandshake) && !errors.Is(err, ErrTooBig) {
				t.Errorf("error %v", err)
			}
			if !bytes.HasPrefix(answer, []byte("HTTP/1.1 "+tt.want)) {
				t.Errorf("answered %q, want %s", answer, tt.want)
			}
			res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(res.Body); err != nil || len(body) == 0 {
				t.Errorf("body %q, %v", body, err)
			}
			_ = res.Body.Close()
		})
	}
}

func TestAdmitDecides(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"refusal", &Refusal{Status: 403, Reason: "token revoked"}, "HTTP/1.1 403 Forbidden"},
		{"refusal with a time", &Refusal{Status: 503, Header: http.Header{"Retry-After": {"7"}}}, "Retry-After: 7\r\n"},
		{"our own trouble", errors.New("disk /secret/path is full"), "HTTP/1.1 500"},
		{"a line break in a header", &Refusal{Status: 403, Header: http.Header{"A": {"b\r\nC: d"}}}, "A: b  C: d\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, answer, err := serve(ServerOptions{Admit: func(*Request) (http.Header, error) { return nil, tt.err }}, request)
			if !errors.Is(err, tt.err) || !bytes.Contains(answer, []byte(tt.want)) {
				t.Errorf("answered %q, error %v", answer, err)
			}
			if bytes.Contains(answer, []byte("secret")) {
				t.Error("told a stranger")
			}
		})
	}
	_, _, err := serve(ServerOptions{Admit: func(*Request) (http.Header, error) {
		return http.Header{"upgrade": {"h2c"}}, nil
	}}, request)
	if err == nil {
		t.Error("a header of the handshake's own was taken")
	}
}

func TestChallengeIsAnsweredOnTheSameConnection(t *testing.T) {
	for _, tries := range []int{1, 2, 3, 4} {
		n := 0
		o := ServerOptions{Admit: func(*Request) (http.Header, error) {
			if n++; n < tries {
				return nil, &Refusal{Status: 401, Reason: "who are you?", Again: true}
			}
			return nil, nil
		}}
		_, answer, err := serve(o, strings.Repeat(request, tries)) // pipelined: nothing of them may be lost
		if got := bytes.Count(answer, []byte("HTTP/1.1 401")); got != min(tries-1, 3) {
			t.Errorf("%d tries: %d refusals", tries, got)
		}
		if (err == nil) != (tries <= 3) {
			t.Errorf("%d tries: %v", tries, err)
		}
	}
}

// Frames glued to the upgrade request, cut into writes at every byte.
func TestFramesGluedToTheRequestAreDelivered(t *testing.T) {
	in := append([]byte(request), wire(Server, fB("first"), fB(stars(6000)), fB("last"))...)
	for cut := 0; cut <= len(request)+40; cut++ {
		near, far := net.Pipe()
		go func() { _, _ = io.CopyN(io.Discard, far, 1<<20) }()
		go func() {
			_, _ = far.Write(in[:cut])
			_, _ = far.Write(in[cut:])
		}()
		c, _, err := Upgrade(near, ServerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		slab := make([]byte, 6000)
		for i, want := range []int{5, 6000, 4} {
			if _, n, err := c.ReadMessage(slab); err != nil || n != want {
				t.Fatalf("cut at %d: message %d has %d bytes, %v", cut, i, n, err)
			}
		}
		c.CloseNow()
		_ = far.Close()
	}
}

func TestSwitchToAnotherProtocol(t *testing.T) {
	head := "GET /session/7 HTTP/1.1\r\nHost: hub\r\nUpgrade: kvasir-session/1\r\nConnection: Upgrade\r\n\r\n"
	for _, tt := range []struct {
		name, in, want, rest string
	}{
		{"asked for", head + "glued", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: kvasir-session/1\r\n" +
			"Connection: Upgrade\r\n\r\n", "glued"},
		{"not asked for", request, "HTTP/1.1 426 ", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			near, far := net.Pipe()
			out := collect(far)
			go func() { _, _ = io.WriteString(far, tt.in) }()
			req, err := ReadRequest(near, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			_ = Switch(near, req, "kvasir-session/1", nil)
			_ = near.Close()
			<-out.done
			if !strings.HasPrefix(string(out.bytes()), tt.want) || string(req.Rest) != tt.rest {
				t.Errorf("answered %q, rest %q", out.bytes(), req.Rest)
			}
		})
	}
}

// A head that never ends costs no more than its limit, and no longer than the deadline.
func TestHeadIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe()
		var sent int
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				n, err := far.Write(bytes.Repeat([]byte("a"), 1000))
				if sent += n; err != nil {
					return
				}
			}
		}()
		_, err := ReadRequest(near, []byte("GET / HTTP/1.1\r\nA: "), 3000)
		_ = near.Close()
		<-done
		if !errors.Is(err, ErrTooBig) || sent > 4000 {
			t.Errorf("%d bytes taken, %v", sent, err)
		}
	})
	if _, _, err := readHead(strings.NewReader(request), nil, len(request)-1); !errors.Is(err, ErrTooBig) {
		t.Errorf("a head that is one byte too long: %v", err)
	}
	if _, _, err := readHead(strings.NewReader(""), []byte(request), len(request)); err != nil {
		t.Errorf("the longest head: %v", err)
	}
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe()
		start, done := time.Now(), make(chan struct{})
		go func() { // a byte a second
			defer close(done)
			for i := range request {
				time.Sleep(time.Second)
				if _, err := far.Write([]byte(request[i : i+1])); err != nil {
					return
				}
			}
		}()
		_, _, err := Upgrade(near, ServerOptions{})
		if !errors.Is(err, ErrSilent) || time.Since(start) != DefaultHandshake {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		_ = near.Close()
		<-done
	})
}

func TestHeadAllocationsAreBounded(t *testing.T) {
	lines := []byte("GET / HTTP/1.1\r\nHost: h\r\n" + strings.Repeat("a: b\r\n", 1<<16))
	for _, in := range [][]byte{lines, bytes.Repeat([]byte("G"), 1<<20), bytes.Repeat([]byte("G\r\n"), 1<<19)} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := readHead(bytes.NewReader(in), nil, DefaultHead)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 4*DefaultHead || !errors.Is(err, ErrTooBig) {
			t.Errorf("%d bytes for a head that begins with %.20q, %v", n, in, err)
		}
	}
}

func TestOneLineIsFitToPrint(t *testing.T) {
	for in, want := range map[string]string{
		"token revoked\n":                   "token revoked",
		"a\r\nkvasir: all is well\x1b[31m":  "a kvasir: all is well [31m",
		"\xff\xfe":                          "?",
		strings.Repeat("é", 150):            strings.Repeat("é", 100),
		"  \x00 ":                           "",
		strings.Repeat("x", 199) + "éééééé": strings.Repeat("x", 199),
	} {
		if got := oneLine(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestHasToken(t *testing.T) {
	h := http.Header{"Connection": {"keep-alive", "x,  uPgrade ,y"}}
	if !hasToken(h, "Connection", "Upgrade") || hasToken(h, "Connection", "up") || hasToken(h, "Upgrade", "upgrade") {
		t.Error("wrong")
	}
	if !slices.Contains(reserved, http.CanonicalHeaderKey("Sec-WebSocket-Key")) {
		t.Error("reserved names are not in canonical form")
	}
}
