package engine_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"kvasir/engine"
)

// TestRemoteEqualsLocal generates with all routed experts on workers, behind gateway and hub, and
// compares tokens and final logits with those of local experts, bit for bit.
func TestRemoteEqualsLocal(t *testing.T) {
	e := open(t, "")
	req := engine.Request{Prompt: "There was once a poor miller", Tokens: 12}
	want, _ := generate(t, e, req)
	m := e.Model()
	for _, tt := range []struct {
		name    string
		workers int
		place   engine.Placement
	}{
		{"one worker", 1, nil},
		{"three workers by layer", 3, engine.ByLayer(m.Layers, m.PerLayer)},
		{"three workers by expert", 3, engine.ByExpert(m.Layers, m.PerLayer)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			l, err := engine.NewLoopback(ctx, engine.LoopbackConfig{Model: m, Workers: tt.workers, Place: tt.place})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			got, _ := generate(t, e.With(l.Swarm.Experts()), req)
			if got.Text != want.Text || !slices.Equal(got.Tokens, want.Tokens) || !slices.Equal(got.Logits, want.Logits) {
				t.Errorf("remote %q, local %q", got.Text, want.Text)
			}
			picks := int64(0)
			for _, w := range l.Swarm.Workers() {
				picks += w.Picks
				if w.Picks == 0 || w.BytesOut == 0 || w.BytesBack == 0 {
					t.Errorf("a worker without work: %+v", w)
				}
			}
			// Every row of every layer has TopK picks; the last token generated is not fed back.
			rows := int64(len(got.PromptTokens) + len(got.Tokens) - 1)
			if picks != rows*int64(m.Layers)*4 {
				t.Errorf("%d picks for %d rows of %d layers, want 4 each", picks, rows, m.Layers)
			}
		})
	}
}
