package engine_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvasir/batcher"
	"kvasir/engine"
	"kvasir/engine/audit"
	"kvasir/engine/ledger"
	"kvasir/internal/moe"
	"kvasir/wire/seal"
)

// TestNobodyIsToBlameForOthersThatComeAndGo has honest workers leave and others join, some be slow so that they
// are overtaken, and callers leave at any moment, while every row is looked at: no text changes, and nobody is
// found wrong, which a row read after it was lent on would bring about.
func TestNobodyIsToBlameForOthersThatComeAndGo(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	e := open(t, "")
	req := engine.Request{Prompt: "There was once a poor miller", Tokens: 24, Choices: 4}
	want, _ := generate(t, e, req)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	m := e.Model()
	var found []audit.Finding // until the swarm is closed by its auditor alone
	l, err := engine.NewLoopback(ctx, engine.LoopbackConfig{
		Model: m, Workers: 3, Local: m.Experts,
		Place: func(i, n int) *batcher.Set { return engine.ByLayer(m.Layers, m.PerLayer)(i/2, (n+1)/2) }, // some of it twice
		Audit: &engine.AuditOptions{Every: 1, Share: 1, Hold: 10 * time.Millisecond, Convict: func(f audit.Finding, _ seal.TokenID) (ledger.Hash, error) {
			found = append(found, f)
			return ledger.Hash{1}, nil
		}},
		Wrap: func(i int, x moe.Experts) moe.Experts { return sometimesLate(x, i%2 == 1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far := with(t, e, l)
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for c := range uint64(4) {
		own := caller{far, req, want.Choices, rand.New(rand.NewPCG(seed, c))}
		callers.Go(func() { own.run(ctx, t, stop) })
	}
	random := rand.New(rand.NewPCG(seed, 99))
	here := []int{0, 1, 2}
	for i := range 4 {
		k := random.IntN(len(here))
		if err := l.AddWorker(); err != nil {
			t.Fatal(err)
		}
		if _, err := far.Generate(ctx, req, func(engine.Piece) error { return nil }); err != nil { // some time passes
			t.Error(err)
		}
		l.StopWorker(here[k])
		here[k] = 3 + i
	}
	close(stop)
	callers.Wait()
	l.Swarm.Close()
	for _, f := range found {
		t.Errorf("an honest worker was found wrong: %+v", f)
	}
	if t.Failed() {
		t.Logf("seed %d", seed)
	}
}

// sometimesLate is an executor that takes its time now and then, if it is slow.
func sometimesLate(x moe.Experts, slow bool) moe.Experts {
	var n atomic.Int64
	return executor(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
		if n := n.Add(1); slow && n%40 == 0 {
			late := time.NewTimer(60 * time.Millisecond)
			defer late.Stop()
			select {
			case <-late.C:
			case <-ctx.Done():
			}
		}
		return x.Forward(ctx, b, out)
	})
}

// caller generates the same text again and again.
type caller struct {
	e      *engine.Engine
	req    engine.Request
	want   []engine.Choice
	random *rand.Rand
}

// run generates until stop is closed, and leaves each second time at some moment.
func (c *caller) run(ctx context.Context, t *testing.T, stop <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
		}
		own, leave := context.WithCancel(ctx)
		left := -1
		if n%2 == 1 {
			left = c.random.IntN(60)
		}
		r, err := c.e.Generate(own, c.req, func(engine.Piece) error {
			if left--; left == 0 {
				leave()
			}
			return nil
		})
		gone := own.Err() != nil
		leave()
		switch {
		case gone && errors.Is(err, context.Canceled):
		case err != nil:
			t.Error(err)
		case !slices.EqualFunc(r.Choices, c.want, func(a, b engine.Choice) bool { return slices.Equal(a.Tokens, b.Tokens) }):
			t.Errorf("another text: %+v, want %+v", r.Choices, c.want)
		}
	}
}
