package engine

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"kvasir/engine/serve"
	"kvasir/internal/moe"
)

// hanging are experts that hang in every call after so many, until its context ends.
type hanging struct {
	moe.Experts
	left      int           // calls that come through; of the scheduler's one flight
	hangs     chan struct{} // gets one when a call hangs
	cancelled chan struct{} // gets one when its context has ended
}

func (h *hanging) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	if h.left > 0 {
		h.left--
		return h.Experts.Forward(ctx, b, out)
	}
	h.hangs <- struct{}{}
	<-ctx.Done()
	h.cancelled <- struct{}{}
	return ctx.Err()
}

// TestClientThatLeavesCancelsItsDispatch has a client leave over HTTP while the experts of its step hang: the
// dispatch that is under way is cancelled, no other begins, and nothing is held any more.
func TestClientThatLeavesCancelsItsDispatch(t *testing.T) {
	e, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close() //nolint:errcheck // the model is built in
	h := &hanging{Experts: e.Experts(), left: e.model.Layers, hangs: make(chan struct{}, 1), cancelled: make(chan struct{}, 1)}
	far, err := e.With(h, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close() //nolint:errcheck // nothing is under way
	handler := serve.New(generator{far, nil}, serve.Options{Model: "m", Requests: 1})
	s := httptest.NewServer(handler)
	defer s.Close()
	ask := func(body string) *http.Response {
		res, err := http.Post(s.URL+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	res := ask(`{"prompt":"There was once a poor miller","max_tokens":20,"stream":true}`)
	if _, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	<-h.hangs // in its second step

	// Whoever comes meanwhile is refused, though nothing moves, and told when to come again.
	full := ask(`{"prompt":"x"}`)
	if full.StatusCode != http.StatusTooManyRequests || full.Header.Get("Retry-After") == "" {
		t.Errorf("status %d, Retry-After %q", full.StatusCode, full.Header.Get("Retry-After"))
	}
	_ = full.Body.Close() // it was only refused

	_ = res.Body.Close() // the client leaves
	select {
	case <-h.cancelled:
	case <-time.After(time.Minute):
		t.Fatal("the dispatch goes on without anybody")
	}
	s.Close() // waits for the handler
	if err := far.Close(); err != nil {
		t.Error(err)
	}
	st, mem := far.Standing()
	if st.Running != 0 || st.Waiting != 0 || mem.Sequences != 0 || st.Canceled != 1 || handler.Busy() != 0 || len(h.hangs) != 0 {
		t.Errorf("%+v, %+v, %d places, %d more dispatches", st, mem, handler.Busy(), len(h.hangs))
	}
}
