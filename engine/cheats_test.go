package engine_test

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"kvasir/engine"
	"kvasir/engine/ledger"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
	"kvasir/wire"
	"kvasir/wire/seal"
)

// cheat is a worker that wants more than it works for.
type cheat struct {
	name     string
	answer   func(ctx context.Context, x moe.Experts, b *moe.Batch, out *moe.Partials) error
	conn     func(net.Conn) net.Conn
	harmless bool // its answers are right: it is paid for them, and for nothing else
}

// spoilt answers right, and then changes what it likes.
func spoilt(spoil func(b *moe.Batch, out *moe.Partials)) func(context.Context, moe.Experts, *moe.Batch, *moe.Partials) error {
	return func(ctx context.Context, x moe.Experts, b *moe.Batch, out *moe.Partials) error {
		err := x.Forward(ctx, b, out)
		if err == nil {
			spoil(b, out)
		}
		return err
	}
}

// instead answers to another batch.
func instead(change func(b *moe.Batch)) func(context.Context, moe.Experts, *moe.Batch, *moe.Partials) error {
	return func(ctx context.Context, x moe.Experts, b *moe.Batch, out *moe.Partials) error {
		other, err := moe.NewBatch(b.Shape, b.Rows, len(b.Expert))
		if err != nil {
			return err
		}
		other.Reset(b.Layer)
		for r := range b.Rows {
			to, from := other.Row(other.Grow(b.Picks(r))), b.Row(r)
			copy(to.Q, from.Q)
			copy(to.Scales, from.Scales)
			copy(to.F, from.F)
		}
		change(other)
		return x.Forward(ctx, other, out)
	}
}

func cheats(perLayer int) []cheat {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(10, 10)) // seed 10
	last := map[int][]int64{}            // a row's answer by layer; under mu
	return []cheat{
		{name: "zeros", answer: func(_ context.Context, _ moe.Experts, b *moe.Batch, out *moe.Partials) error {
			out.Reset(b.Rows, b.Hidden)
			return nil
		}},
		{name: "another expert's output", answer: instead(func(b *moe.Batch) {
			for i, e := range b.Expert {
				b.Expert[i] = uint16((int(e) + 1) % perLayer)
			}
		})},
		{name: "a cheaper quantisation", answer: instead(func(b *moe.Batch) {
			for i, q := range b.Q { // seven bits
				b.Q[i] = q / 2 * 2
			}
		})},
		{name: "10 % wrong rows", answer: spoilt(func(b *moe.Batch, out *moe.Partials) {
			mu.Lock()
			defer mu.Unlock()
			for r := range b.Rows {
				if rng.IntN(10) == 0 {
					out.Row(r)[rng.IntN(b.Hidden)]++
				}
			}
		})},
		{name: "replayed answers", answer: spoilt(func(b *moe.Batch, out *moe.Partials) {
			mu.Lock()
			defer mu.Unlock()
			for r := range b.Rows {
				before := last[b.Layer]
				last[b.Layer] = slices.Clone(out.Row(r))
				if before != nil {
					copy(out.Row(r), before)
				}
			}
		})},
		{name: "padding bytes", conn: func(c net.Conn) net.Conn { return &padded{Conn: c} }, harmless: true},
		{name: "claimed picks", answer: spoilt(func(b *moe.Batch, _ *moe.Partials) {
			b.Expert = append(b.Expert, b.Expert...) // what it counts by; nobody has asked for them
		}), harmless: true},
	}
}

// padded sends a message that nobody knows, and everybody skips, after each of its own.
type padded struct {
	net.Conn
	writes int
}

func (p *padded) Write(b []byte) (int, error) {
	n, err := p.Conn.Write(b)
	if p.writes++; p.writes > 20 && err == nil {
		h := wire.NewHeader(wire.Type(100), 4000, 0)
		h.Size = 4000
		_, err = p.Conn.Write(append(wire.AppendHeader(nil, h), make([]byte, 4000)...))
	}
	return n, err
}

// TestCheatsGainNothing has a cheat and an honest worker serve a backbone by gateway and hub: who answers wrong is
// sent away and has nothing, not even what was right; who is only loud is paid for what was asked and computed; and
// the neighbour is paid for all that it has done.
func TestCheatsGainNothing(t *testing.T) {
	e := open(t, "")
	for _, c := range cheats(e.Model().PerLayer) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cheatOnce(t, e, c)
		})
	}
}

func cheatOnce(t *testing.T, e *engine.Engine, c cheat) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	m := e.Model()
	court := engine.Home(t.TempDir()).OpenCourt(seal.NewKey(), nil)
	keys := []seal.Key{seal.NewKey(), seal.NewKey()}
	l, err := engine.NewLoopback(ctx, engine.LoopbackConfig{
		Model: m, Workers: 2, Local: m.Experts, Place: engine.ByLayer(m.Layers, m.PerLayer), Home: t.TempDir(),
		Audit:  &engine.AuditOptions{Share: 1, Hold: 10 * time.Millisecond, Convict: court.Convict},
		Refuse: func(p seal.Proof) error { return court.Refuse(p.Key, seal.TokenID{}) },
		Worker: func(i int, w *worker.Config) {
			if w.Key = keys[i]; i == 0 {
				w.WrapConn = c.conn
			}
		},
		Wrap: func(i int, x moe.Experts) moe.Experts {
			if i > 0 || c.answer == nil {
				return x
			}
			return executor(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error { return c.answer(ctx, x, b, out) })
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far := with(t, e, l)
	var asked [2]int64
	trial := func() (on bool) {
		for _, w := range l.Swarm.Metrics().Workers {
			on = on || w.Trial
		}
		return on
	}
	for trial() {
		req := engine.Request{Prompt: "There was once a king", Tokens: 16, Choices: 4}
		if _, err := far.Generate(ctx, req, func(engine.Piece) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	l.StopWorker(0)
	l.StopWorker(1)
	var got [2]ledger.Balance
	for got[1].Settled == 0 || got[0].Pending+got[1].Pending > 0 { // what waits to be judged
		if _, err := l.PollWallet(ctx); err != nil {
			t.Fatalf("%v; %+v", err, got)
		}
		for i, k := range keys {
			if got[i], err = l.Wallet.Balance(ctx, k.Public()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, w := range l.Swarm.Workers() {
		for i, k := range keys {
			if w.Key == k.Public() {
				asked[i] += w.Picks
			}
		}
	}
	convicted := court.Refuse(keys[0].Public(), seal.TokenID{}) != nil
	if b := got[0]; convicted == c.harmless || !c.harmless && (b.Settled != 0 || b.Pending != 0) || b.Picks != asked[0] {
		t.Errorf("the cheat: convicted %v, %d picks asked, %+v", convicted, asked[0], b)
	}
	if c.harmless && got[0].Settled == 0 {
		t.Errorf("right answers are not paid: %+v", got[0])
	}
	if b := got[1]; b.Settled == 0 || b.Voided != 0 || b.Picks != asked[1] || court.Refuse(keys[1].Public(), seal.TokenID{}) != nil {
		t.Errorf("the neighbour: %d picks asked, %+v", asked[1], b)
	}
	if err := l.Wallet.Verify(ctx); err != nil {
		t.Error(err)
	}
}
