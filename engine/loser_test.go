package engine_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"kvasir/engine"
	"kvasir/internal/moe"
)

// TestWhoLosesAHedgeIsPaid has the only worker stall now and then, so that this machine computes the same rows:
// whatever the worker has computed settles all the same, to the last pick, and not a pick more.
func TestWhoLosesAHedgeIsPaid(t *testing.T) {
	e := open(t, "")
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	m := e.Model()
	var computed, calls atomic.Int64
	l, err := engine.NewLoopback(ctx, engine.LoopbackConfig{
		Model: m, Workers: 1, Local: m.Experts, Place: engine.ByLayer(m.Layers, m.PerLayer), Home: t.TempDir(),
		Audit: &engine.AuditOptions{Share: 1, Hold: 10 * time.Millisecond},
		Wrap: func(_ int, x moe.Experts) moe.Experts {
			return executor(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
				if calls.Add(1)%100 == 0 {
					select {
					case <-time.After(200 * time.Millisecond):
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				err := x.Forward(ctx, b, out)
				if err == nil {
					computed.Add(int64(len(b.Expert)))
				}
				return err
			})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far := with(t, e, l)
	for calls.Load() < 300 {
		req := engine.Request{Prompt: "There was once a king", Tokens: 16, Choices: 8}
		if _, err := far.Generate(ctx, req, func(engine.Piece) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for paid := int64(-1); paid != computed.Load(); { // the last answers are on their way
		if err := ctx.Err(); err != nil {
			t.Fatalf("%v: %d picks are paid of %d", err, paid, computed.Load())
		}
		w := l.Swarm.Metrics().Workers[0]
		if paid = w.Picks + w.Spare; paid == computed.Load() && w.Spare == 0 {
			t.Fatalf("nothing was late in %d dispatches: %+v", calls.Load(), w.Counts)
		}
	}
	l.StopWorker(0)
	for {
		if _, err := l.PollWallet(ctx); err != nil {
			t.Fatal(err)
		}
		all, err := l.Wallet.Balances(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 1 && all[0].Pending == 0 && all[0].Settled > 0 {
			if b := all[0]; b.Picks != computed.Load() || b.Voided != 0 || b.Disputed != 0 {
				t.Errorf("%+v, and %d picks were computed", b, computed.Load())
			}
			return
		}
	}
}
