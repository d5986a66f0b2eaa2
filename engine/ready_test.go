package engine

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"kvasir/internal/moe"
)

// layersOf is an executor of which layers can fail.
type layersOf struct{ failing map[int]error }

func (x *layersOf) Forward(_ context.Context, b *moe.Batch, _ *moe.Partials) error {
	return x.failing[b.Layer]
}

// readyBench is a watch on three layers whose clock stands still.
type readyBench struct {
	*watch
	x      *layersOf
	now    time.Time
	tokens int // of its own
}

func newReadyBench() *readyBench {
	b := &readyBench{x: &layersOf{failing: map[int]error{}}, now: time.Unix(1_000_000, 0)}
	p := newPulse(b.x, 3)
	p.now = func() time.Time { return b.now }
	b.watch = newWatch(p, func(ctx context.Context) error { b.tokens++; return b.token(ctx) }, nil)
	return b
}

// token goes through all layers until one fails.
func (b *readyBench) token(ctx context.Context) error {
	for l := range 3 {
		if err := b.p.Forward(ctx, &moe.Batch{Shape: moe.Shape{Layer: l}}, nil); err != nil {
			return err
		}
	}
	return nil
}

func TestReadyzComputesATokenOnlyWhereNobodyElseDoes(t *testing.T) {
	b := newReadyBench()
	for i := range 100 {
		if r := b.look(t.Context()); !r.Ready {
			t.Fatalf("after %d s: %+v", i, r)
		}
		b.now = b.now.Add(time.Second)
	}
	if b.tokens != 4 { // at 0, 30, 60 and 90 s
		t.Errorf("it computed %d tokens in 100 s, want 4", b.tokens)
	}
	for range 100 { // somebody else does
		if err := b.token(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := b.look(t.Context()); !r.Ready {
			t.Fatalf("%+v", r)
		}
		b.now = b.now.Add(time.Second)
	}
	if b.tokens != 4 {
		t.Errorf("it computed %d tokens while others did", b.tokens-4)
	}
}

func TestReadyzNamesTheLayerThatFails(t *testing.T) {
	b := newReadyBench()
	b.workers = func() []WorkerFailed { return []WorkerFailed{{"abc", "layer 1"}} }
	b.x.failing[1] = errors.New("held nowhere")
	r := b.look(t.Context())
	if r.Ready || len(r.Layers) != 2 || r.Layers[0].Layer != 1 || r.Layers[0].Error != "held nowhere" || r.Layers[1].Error != "" ||
		!strings.Contains(r.Why, "2 of 3 layers") || r.Workers[0].Worker != "abc" {
		t.Fatalf("%+v", r)
	}
	b.x.failing = nil
	if r = b.look(t.Context()); r.Ready || b.tokens != 1 {
		t.Errorf("a second token at once: %d, %+v", b.tokens, r)
	}
	b.now = b.now.Add(probeEvery)
	if r = b.look(t.Context()); !r.Ready || len(r.Layers) != 0 || r.Why != "" {
		t.Errorf("when it is mended: %+v", r)
	}
	b.x.failing = map[int]error{0: errors.New("gone")}
	b.now = b.now.Add(readyWithin)
	r = b.look(t.Context())
	if r.Ready || r.Layers[0].Silent != readyWithin.Seconds() || r.Layers[0].Error != "gone" {
		t.Errorf("when it fails again: %+v", r)
	}
}

func TestReadyzAnswersInJSON(t *testing.T) {
	b := newReadyBench()
	ask := func(method string) (int, Readiness) {
		w := httptest.NewRecorder()
		readyz(b.watch).ServeHTTP(w, httptest.NewRequest(method, "/readyz", nil))
		var r Readiness
		if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
			t.Fatalf("%v: %s", err, w.Body)
		}
		return w.Code, r
	}
	if status, r := ask(http.MethodGet); status != http.StatusOK || !r.Ready {
		t.Errorf("status %d: %+v", status, r)
	}
	b.x.failing[2] = errors.New("gone")
	b.now = b.now.Add(time.Hour)
	if status, r := ask(http.MethodGet); status != http.StatusServiceUnavailable || r.Ready || len(r.Layers) == 0 {
		t.Errorf("status %d: %+v", status, r)
	}
	if status, _ := ask(http.MethodPost); status != http.StatusMethodNotAllowed {
		t.Errorf("POST gets status %d", status)
	}
}

func TestReadyzDoesNotWaitBehindAnother(t *testing.T) {
	b := newReadyBench()
	b.turn <- struct{}{} // somebody probes
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := b.look(ctx); r.Ready || b.tokens != 0 {
		t.Errorf("%+v after %d tokens", r, b.tokens)
	}
}

// TestWhoAsksAndLeavesSpoilsNothing has somebody leave while the token is computed: it is there for the next.
func TestWhoAsksAndLeavesSpoilsNothing(t *testing.T) {
	b := newReadyBench()
	ctx, cancel := context.WithCancel(t.Context())
	token := b.watch.token
	b.watch.token = func(own context.Context) error {
		cancel()
		if err := own.Err(); err != nil {
			return err
		}
		return token(own)
	}
	b.look(ctx)
	if r := b.look(t.Context()); !r.Ready || b.tokens != 1 {
		t.Errorf("%+v after %d tokens", r, b.tokens)
	}
}

func TestEngineComputesATokenOfItsOwn(t *testing.T) {
	e, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close() //nolint:errcheck // read only
	for _, ok := range e.pulse.alive() {
		if ok {
			t.Fatal("a layer is alive before any token")
		}
	}
	if r := newWatch(e.pulse, e.token, nil).look(t.Context()); !r.Ready || len(e.pulse.layers) != e.model.Layers {
		t.Errorf("%+v", r)
	}
}
