package serve

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// TestBrokenBodiesAreRefused has clients that send less than they say: none is told 200.
func TestBrokenBodiesAreRefused(t *testing.T) {
	address := strings.TrimPrefix(start(t, &fake{}, Options{}), "http://")
	for name, request := range map[string]string{
		"half":      "Content-Length: 100\r\n\r\n{\"prompt\"",
		"bad chunk": "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
	} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+request)
		err = errors.Join(err, conn.(*net.TCPConn).CloseWrite())
		got, readErr := io.ReadAll(conn)
		if err := errors.Join(err, readErr, conn.Close()); err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(got, []byte("HTTP/1.1 400 ")) || !bytes.Contains(got, []byte("ends in the middle")) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if f := badBody(os.ErrDeadlineExceeded); f.status != http.StatusRequestTimeout {
		t.Errorf("a slow body gets %d", f.status)
	}
}

// run runs a handler until the test ends, and returns its address.
func run(t *testing.T, h *Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx, l, 0) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return l.Addr().String()
}

// TestWhatNoHandlerHearsOfIsRefusedInOneShape sends what net/http refuses by itself. It fails where net/http has
// found other words.
func TestWhatNoHandlerHearsOfIsRefusedInOneShape(t *testing.T) {
	address := run(t, New(&fake{}, Options{}))
	for request, want := range map[string]int{
		"GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 1<<20) + "\r\n\r\n": http.StatusRequestHeaderFieldsTooLarge,
		"GET / HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X: y\r\n", 5000) + "\r\n":  http.StatusRequestHeaderFieldsTooLarge,
		"GET / HTTP/1.1\r\n\r\n":                                        http.StatusBadRequest,
		"hello\r\n\r\n":                                                 http.StatusBadRequest,
		"GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n":                          http.StatusBadRequest,
		"GET / HTTP/3.7\r\nHost: x\r\n\r\n":                             http.StatusHTTPVersionNotSupported,
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n": http.StatusNotImplemented,
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na":                 http.StatusBadRequest,
		"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":                                 http.StatusOK,
		"GET /nothing HTTP/1.0\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n": http.StatusNotFound,
	} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, request) // it may be refused before its end
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%.40q: %v", request, err)
		}
		var body errorBody
		if res.StatusCode != want {
			t.Errorf("%.40q: %s, want %d", request, res.Status, want)
		}
		if want != http.StatusOK {
			if err := json.NewDecoder(res.Body).Decode(&body); err != nil || body.Error.Message == "" || body.Error.Type == "" {
				t.Errorf("%.40q: %v: %+v", request, err, body)
			}
		}
		_ = res.Body.Close() // it was only read
		_ = conn.Close()     // it may be already
	}
}

// TestPlainTextIsRefusedWhereTLSIsSpoken sends HTTP, and what is neither, to a port of TLS.
func TestPlainTextIsRefusedWhereTLSIsSpoken(t *testing.T) {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS() // for its certificate
	defer s.Close()
	for request, want := range map[string]string{
		"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n": "https://",
		"POST /v1/completions HTTP/1.0\r\n\r\n":      "https://",
		"hello\r\n\r\n":                              "",
	} {
		ours, theirs := net.Pipe()
		over := make(chan error, 1)
		go func() { // ends when the server has read what it can
			_, err := lingerer{tls.Server(theirs, s.TLS)}.Read(make([]byte, 10))
			over <- errors.Join(err, theirs.Close())
		}()
		go func() { _, _ = io.WriteString(ours, request) }() // ends with the connection
		got, _ := io.ReadAll(ours)                           // a pipe that is closed says so in its own way
		if err := <-over; err == nil {
			t.Errorf("%q was read", request)
		}
		_ = ours.Close()
		if has := strings.Contains(string(got), "HTTP/1.1 400 "); has != (want != "") || !strings.Contains(string(got), want) {
			t.Errorf("%q gets %q, want %q", request, got, want)
		}
	}
}

// TestSlowBodiesKeepNobodyOut has clients that send a part of their requests, as many as may be answered and
// more, and as large as may be.
func TestSlowBodiesKeepNobodyOut(t *testing.T) {
	h := New(&fake{}, Options{Requests: 2, Body: 1 << 20, Bodies: 2 << 20})
	address := run(t, h)
	url := "http://" + address + "/v1/completions"
	var senders []net.Conn
	send := func(part string) {
		t.Helper()
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		senders = append(senders, conn)
		if _, err := io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"+part); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		send(`{"prompt":`)
	}
	if status, body := post(t, url, `{"prompt":"a"}`); status != http.StatusOK {
		t.Errorf("%d %s beside those that send nothing more", status, body)
	}
	for range 2 {
		send(strings.Repeat(" ", 600_000)) // for which there is a room of 1 MiB
	}
	for h.bodies.Load() < 3<<19 {
		runtime.Gosched()
	}
	large := `{"prompt":"a"` + strings.Repeat(" ", 600_000) + "}"
	if status, body := post(t, url, large); status != http.StatusTooManyRequests {
		t.Errorf("%d %.200s for a body that there is no memory for, want 429", status, body)
	}
	if status, body := post(t, url, `{"prompt":"a"}`); status != http.StatusOK {
		t.Errorf("%d %s for a small one beside them", status, body)
	}
	for _, conn := range senders {
		_ = conn.Close() // in the middle
	}
	for h.bodies.Load() > 0 {
		runtime.Gosched()
	}
	if status, body := post(t, url, large); status != http.StatusOK {
		t.Errorf("%d %.200s when there is memory again", status, body)
	}
}

func TestBodiesAreRefusedByTheirHeads(t *testing.T) {
	h := New(&fake{}, Options{})
	for head, want := range map[[2]string]int{
		{"Content-Length", "99999999999"}: http.StatusRequestEntityTooLarge,
		{"Content-Encoding", "gzip"}:      http.StatusUnsupportedMediaType,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", iotest.ErrReader(errors.New("it was read")))
		r.Header.Set(head[0], head[1])
		if r.ContentLength = -1; head[0] == "Content-Length" {
			r.ContentLength = 99999999999
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%v: %d %s, want %d", head, w.Code, w.Body, want)
		}
	}
}

// deadlines is a client that takes so many bytes, and then nothing.
type deadlines struct {
	httptest.ResponseRecorder
	left int
	did  []string
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	if at.IsZero() {
		d.did = append(d.did, "none")
	} else {
		d.did = append(d.did, "limit")
	}
	return nil
}

func (d *deadlines) FlushError() error { return nil }

func (d *deadlines) Write(b []byte) (int, error) {
	if d.left -= len(b); d.left < 0 {
		return 0, os.ErrDeadlineExceeded
	}
	d.did = append(d.did, "write")
	return len(b), nil
}

func TestClientThatTakesNothingIsLetGo(t *testing.T) {
	const step = 64 << 10
	for left, want := range map[int][]string{
		step:     {"limit", "write", "limit", "none"},
		3 * step: {"limit", "write", "limit", "write", "limit", "none"},
	} {
		d := &deadlines{left: left}
		Copy(d, bytes.NewReader(make([]byte, 2*step)))
		if got := slices.Compact(d.did); !slices.Equal(got, want) {
			t.Errorf("with %d bytes taken: %v, want %v", left, got, want)
		}
	}
}

func TestWholeAnswersAreBounded(t *testing.T) {
	f := &fake{say: strings.Repeat("word ", 20)}
	url := start(t, f, Options{Answer: 1000})
	for body, want := range map[string]int{
		`{"prompt":"a","max_tokens":100}`:                            http.StatusOK,
		`{"prompt":"a","max_tokens":100,"n":20}`:                     http.StatusBadRequest,
		`{"prompt":["a","a"],"max_tokens":100,"n":20}`:               http.StatusBadRequest,
		`{"prompt":"a","max_tokens":100,"logprobs":3}`:               http.StatusBadRequest,
		`{"prompt":"a","max_tokens":100,"logprobs":3,"stream":true}`: http.StatusOK,
		`{"prompt":"a","max_tokens":2,"logprobs":3}`:                 http.StatusOK,
	} {
		status, answer := post(t, url+"/v1/completions", body)
		if status != want || want != http.StatusOK && !strings.Contains(answer, `"param":"max_tokens"`) {
			t.Errorf("%s: %d %.300s", body, status, answer)
		}
	}
	h := New(f, Options{Answer: 1000})
	if status, _ := h.Answer(t.Context(), "/v1/completions", []byte(`{"prompt":"a","max_tokens":100,"n":20}`), Stamp{ID: "00"}); status != http.StatusBadRequest {
		t.Errorf("a line of a batch gets %d", status)
	}
}

// TestAnswersToLinesOfBatchesShareAMemory asks for answers of 100 bytes, where two fit.
func TestAnswersToLinesOfBatchesShareAMemory(t *testing.T) {
	h := New(&fake{say: strings.Repeat("word ", 20)}, Options{Answer: 125, Answers: 1})
	ask := func(ctx context.Context) int {
		status, _ := h.Answer(ctx, "/v1/completions", []byte(`{"prompt":"a","max_tokens":100}`), Stamp{ID: "00"})
		return status
	}
	one, first := context.WithCancel(t.Context())
	two, second := context.WithCancel(t.Context())
	defer second()
	if a, b := ask(one), ask(two); a != http.StatusOK || b != http.StatusOK {
		t.Fatalf("%d and %d, want 200", a, b)
	}
	held := h.held.Load()
	if status := ask(t.Context()); status != http.StatusTooManyRequests {
		t.Errorf("%d while %d bytes are held, want 429", status, held)
	}
	first()
	for h.held.Load() >= held { // who asked lets go in time of its own
		runtime.Gosched()
	}
	if status := ask(t.Context()); status != http.StatusOK {
		t.Errorf("%d when there is room again, want 200", status)
	}
}
