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
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			l, err := engine.NewLoopback(ctx, engine.LoopbackConfig{Model: m, Workers: tt.workers, Place: tt.place})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			got, _ := generate(t, with(t, e, l), req)
			if got.First().Text != want.First().Text || !slices.Equal(got.First().Tokens, want.First().Tokens) {
				t.Errorf("remote %q, local %q", got.First().Text, want.First().Text)
			}
			picks := int64(0)
			for _, w := range l.Swarm.Workers() {
				picks += w.Picks
				if w.Picks == 0 || w.BytesOut == 0 || w.BytesBack == 0 {
					t.Errorf("a worker without work: %+v", w)
				}
			}
			// Every row of every layer has TopK picks; the last token generated is not fed back, and in the
			// last layer only those rows of the prompt count after which logits are wanted.
			tokens := len(got.First().Tokens)
			rows := int64((len(got.PromptTokens)+tokens-1)*(m.Layers-1) + tokens)
			if picks != rows*4 {
				t.Errorf("%d picks for %d rows in all layers, want 4 each", picks, rows)
			}
		})
	}
}
