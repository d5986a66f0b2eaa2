package engine_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"kvasir/engine"
	"kvasir/engine/audit"
	"kvasir/engine/ledger"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
	"kvasir/wire/seal"
)

// TestPayOfProbationIsCarriedOver has a worker leave before it has proved itself, and come back: what is pending
// of its first session settles once the probation is over, and is void if a row of the second is wrong.
func TestPayOfProbationIsCarriedOver(t *testing.T) {
	for name, cheats := range map[string]bool{"honest": false, "cheat": true} {
		t.Run(name, func(t *testing.T) {
			e := open(t, "")
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			m, key := e.Model(), seal.NewKey()
			var convicted atomic.Bool
			l, err := engine.NewLoopback(ctx, engine.LoopbackConfig{
				Model: m, Workers: 1, Local: m.Experts, Place: engine.ByLayer(m.Layers, m.PerLayer), Home: t.TempDir(),
				Audit: &engine.AuditOptions{Share: 1, Hold: 10 * time.Millisecond, Convict: func(audit.Finding, seal.TokenID) (h ledger.Hash, err error) {
					convicted.Store(true)
					return ledger.Hash{1}, nil
				}},
				Worker: func(_ int, c *worker.Config) { c.Key = key },
				Wrap: func(i int, x moe.Experts) moe.Experts {
					return executor(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
						err := x.Forward(ctx, b, out)
						if cheats && i == 1 && err == nil {
							out.Row(0)[7] ^= 1
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
			generate := func(tokens, choices int) {
				t.Helper()
				req := engine.Request{Prompt: "There was once", Tokens: tokens, Choices: choices}
				if _, err := far.Generate(ctx, req, func(engine.Piece) error { return nil }); err != nil {
					t.Fatal(err)
				}
			}
			generate(4, 1)
			if !l.Swarm.Metrics().Workers[0].Trial {
				t.Error("a new worker is not on trial")
			}
			l.StopWorker(0)
			first := balanceWhen(ctx, t, l, func(b ledger.Balance) bool { return b.Pending > 0 })
			if first.Settled != 0 {
				t.Errorf("paid within probation: %+v", first)
			}
			if err := l.AddWorker(); err != nil {
				t.Fatal(err)
			}
			for len(l.Swarm.Metrics().Workers) == 0 {
				if err := l.Swarm.WaitFor(ctx, 1); err != nil {
					t.Fatal(err)
				}
			}
			for !convicted.Load() && (cheats || l.Swarm.Metrics().Workers[0].Trial) {
				generate(16, 8)
			}
			if !cheats {
				l.StopWorker(1)
			}
			last := balanceWhen(ctx, t, l, func(b ledger.Balance) bool { return b.Pending == 0 })
			if cheats && (last.Settled != 0 || last.Voided <= first.Pending) || !cheats && (last.Voided != 0 || last.Settled <= first.Pending) {
				t.Errorf("first %+v, at last %+v", first, last)
			}
		})
	}
}

// balanceWhen polls until the only wallet is as is wanted.
func balanceWhen(ctx context.Context, t *testing.T, l *engine.Loopback, wanted func(ledger.Balance) bool) ledger.Balance {
	t.Helper()
	for {
		if _, err := l.PollWallet(ctx); err != nil {
			t.Fatal(err)
		}
		all, err := l.Wallet.Balances(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(all) == 1 && wanted(all[0]) {
			return all[0]
		}
	}
}
