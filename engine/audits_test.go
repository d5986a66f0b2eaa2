package engine_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvasir/engine"
	"kvasir/engine/audit"
	"kvasir/engine/ledger"
	"kvasir/internal/moe"
	"kvasir/wire/seal"
)

// TestAWorkerThatAnswersWrongIsConvicted has one of two workers spoil a row now and then: he is sent away, what
// was pending for him is void, and he is not let in again; the other's work settles.
func TestAWorkerThatAnswersWrongIsConvicted(t *testing.T) {
	e := open(t, "")
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	m := e.Model()
	home := engine.Home(t.TempDir())
	court := home.OpenCourt(seal.NewKey(), nil)
	var mu sync.Mutex
	var found []audit.Finding
	l, err := engine.NewLoopback(ctx, engine.LoopbackConfig{
		Model: m, Workers: 2, Local: m.Experts, Place: engine.ByLayer(m.Layers, m.PerLayer), Home: t.TempDir(),
		Audit: &engine.AuditOptions{Every: 8, Share: 1, Convict: func(f audit.Finding, token seal.TokenID) (ledger.Hash, error) {
			mu.Lock()
			defer mu.Unlock()
			found = append(found, f)
			return court.Convict(f, token)
		}},
		Refuse: func(p seal.Proof) error { return court.Refuse(p.Key, p.Token.ID) },
		Wrap: func(i int, x moe.Experts) moe.Experts {
			var n atomic.Int64
			return executor(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
				err := x.Forward(ctx, b, out)
				if n := n.Add(1); i == 1 && n > 40 && err == nil {
					out.Row(b.Rows - 1)[7] ^= 1
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
	caught := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(found) > 0
	}
	for !caught() {
		if _, err := far.Generate(ctx, engine.Request{Prompt: "There was once", Tokens: 32}, func(engine.Piece) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	l.Swarm.Close() // the last reports
	mu.Lock()
	defer mu.Unlock()
	if len(found) == 0 {
		t.Fatal("nobody was convicted")
	}
	cheat := found[0].Worker
	for _, f := range found {
		if f.Worker != cheat || !slices.Equal(f.Judges, []string{"backbone"}) || slices.Equal(f.Answer.Sum, f.Right.Sum) {
			t.Errorf("found %+v", f)
		}
	}
	wantVerdicts(ctx, t, l, cheat)
	wantEvidence(t, court, string(home), found[0])
}

// TestWhatALeaverHasPendingIsDecided has a worker leave while its rows wait to be judged: what was right settles
// all the same, and one wrong row voids it.
func TestWhatALeaverHasPendingIsDecided(t *testing.T) {
	for name, cheats := range map[string]bool{"honest": false, "cheat": true} {
		t.Run(name, func(t *testing.T) {
			e := open(t, "")
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			m := e.Model()
			l, err := engine.NewLoopback(ctx, engine.LoopbackConfig{
				Model: m, Workers: 1, Local: m.Experts, Place: engine.ByLayer(m.Layers, m.PerLayer), Home: t.TempDir(),
				Audit: &engine.AuditOptions{Share: 1, Hold: 2 * time.Second},
				Wrap: func(_ int, x moe.Experts) moe.Experts {
					var n atomic.Int64
					return executor(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
						err := x.Forward(ctx, b, out)
						if n := n.Add(1); cheats && n == 1 && err == nil {
							out.Row(b.Rows - 1)[7] ^= 1
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
			req := engine.Request{Prompt: "There was once a king who lived by the sea", Tokens: 32, Choices: 16}
			if _, err := far.Generate(ctx, req, func(engine.Piece) error { return nil }); err != nil {
				t.Fatal(err)
			}
			l.StopWorker(0)
			for b := (ledger.Balance{}); b.Settled+b.Voided == 0 || b.Pending > 0; {
				if _, err := l.PollWallet(ctx); err != nil {
					t.Fatal(err)
				}
				all, err := l.Wallet.Balances(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if len(all) > 0 {
					b = all[0]
				}
				if cheats && b.Settled > 0 || !cheats && b.Voided > 0 {
					t.Fatalf("%+v", b)
				}
			}
		})
	}
}

// wantVerdicts looks into the wallet.
func wantVerdicts(ctx context.Context, t *testing.T, l *engine.Loopback, cheat seal.PublicKey) {
	t.Helper()
	if _, err := l.PollWallet(ctx); err != nil {
		t.Fatal(err)
	}
	if err := l.Wallet.Verify(ctx); err != nil {
		t.Fatal(err)
	}
	all, err := l.Wallet.Balances(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 2 {
		t.Errorf("%d wallets, want 2", len(all))
	}
	for _, b := range all {
		if b.Worker == cheat && (b.Voided == 0 || b.Pending != 0) || b.Worker != cheat && b.Voided != 0 {
			t.Errorf("%+v; the cheat is %s", b, cheat)
		}
	}
}

// wantEvidence looks into the court: who was convicted, by what, and that nobody else can read that.
func wantEvidence(t *testing.T, court *engine.Court, dir string, want audit.Finding) {
	t.Helper()
	list, err := court.Convicted()
	if err != nil || len(list) == 0 || list[0].Worker != want.Worker {
		t.Fatalf("convicted %+v, error %v", list, err)
	}
	got, err := court.Evidence(list[0].Evidence)
	if err != nil || !slices.Equal(got.Answer.Sum, want.Answer.Sum) || !slices.Equal(got.Row.Values.Q, want.Row.Values.Q) {
		t.Errorf("evidence %+v, error %v", got, err)
	}
	stranger := engine.Home(dir).OpenCourt(seal.NewKey(), nil)
	if _, err := stranger.Evidence(list[0].Evidence); err == nil || !strings.Contains(err.Error(), "another key") {
		t.Errorf("another backbone reads the evidence: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "evidence", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil || bytes.Contains(text, []byte("Worker")) {
		t.Errorf("the evidence is not sealed, error %v", err)
	}
	if err := court.Refuse(want.Worker, seal.TokenID{}); err == nil {
		t.Error("who was convicted is let in")
	}
	if err := court.Pardon(want.Worker); err != nil {
		t.Error(err)
	}
	if err := court.Refuse(want.Worker, seal.TokenID{}); err != nil {
		t.Error(err)
	}
	if err := court.Pardon(want.Worker); err == nil {
		t.Error("who is not convicted is pardoned")
	}
}

// TestOldEvidenceIsRemoved moves the clock.
func TestOldEvidenceIsRemoved(t *testing.T) {
	now := time.Now()
	home := engine.Home(t.TempDir())
	court := home.OpenCourt(seal.NewKey(), func() time.Time { return now })
	finding := audit.Finding{Worker: seal.NewKey().Public(), Answer: audit.Answer{Sum: []int64{1}}}
	first, err := court.Convict(finding, seal.TokenID{})
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(91 * 24 * time.Hour)
	finding.Answer.Sum[0]++
	if again, err := court.Convict(finding, seal.TokenID{}); err != nil || again != first {
		t.Fatalf("a second row of the same worker is kept as %x, error %v", again[:4], err)
	}
	finding.Worker = seal.NewKey().Public()
	second, err := court.Convict(finding, seal.TokenID{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := court.Evidence(first); err == nil {
		t.Error("the old evidence is still there")
	}
	if _, err := court.Evidence(second); err != nil {
		t.Error(err)
	}
	if list, err := court.Convicted(); err != nil || len(list) != 2 {
		t.Errorf("convicted %+v, error %v", list, err)
	}
}
