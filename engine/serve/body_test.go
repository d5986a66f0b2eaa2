package serve

import (
	"bytes"
	"context"
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
