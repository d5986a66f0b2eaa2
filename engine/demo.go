package engine

import (
	"context"
	"net"
	"os"
	"slices"
	"time"

	"kvasir/engine/ledger"
	"kvasir/internal/moe"
	"kvasir/wire/seal"
)

// DemoConfig is for Demo.
type DemoConfig struct {
	Request
	Workers int
	// Dial replaces the way from worker i to the gateway; may be nil.
	Dial func(i int) func(ctx context.Context, network, addr string) (net.Conn, error)
	// Wrap, if set, wraps the executor of worker i: a test spoils an answer with it.
	Wrap func(i int, x moe.Experts) moe.Experts
	// Ready is told when gateway, hub, workers and backbone stand; may be nil.
	Ready func(gateway, hub string)
}

// DemoResult is what came of a Demo.
type DemoResult struct {
	Remote, Local Result
	Identical     bool  // tokens and final logits, bit for bit
	Picks         int64 // that the rows of all layers had
	Workers       []WorkerStats
	Balances      map[seal.PublicKey]ledger.Balance // in the gateway's wallet, by worker
}

// Demo generates once with every routed expert of every layer on workers, in a Loopback swarm without a
// fallback, and once with local experts, and compares the two. Text of the first is given to emit as it
// is made.
func (e *Engine) Demo(ctx context.Context, c DemoConfig, emit func(piece string) error) (DemoResult, error) {
	var d DemoResult
	if _, err := e.encode(c.Request); err != nil { // before anything is started
		return d, err
	}
	home, err := os.MkdirTemp("", "kvasir-demo-")
	if err != nil {
		return d, err
	}
	defer func() { _ = os.RemoveAll(home) }() // it is the system's temporary folder
	start, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	l, err := NewLoopback(start, LoopbackConfig{
		Model: e.Model(), Workers: c.Workers, Home: home, Dial: c.Dial, Wrap: c.Wrap,
	})
	if err != nil {
		return d, err
	}
	defer l.Close()
	if c.Ready != nil {
		c.Ready(l.listeners[1].Addr().String(), l.listeners[0].Addr().String())
	}
	if d.Remote, err = e.With(l.Swarm.Experts()).Generate(ctx, c.Request, emit); err != nil {
		return d, err
	}
	d.Workers = l.Swarm.Workers()
	if d.Balances, err = l.settle(ctx); err != nil {
		return d, err
	}
	if d.Local, err = e.Generate(ctx, c.Request, func(string) error { return nil }); err != nil {
		return d, err
	}
	d.Identical = slices.Equal(d.Remote.Tokens, d.Local.Tokens) && sameBits(d.Remote.Logits, d.Local.Logits)
	d.Picks = d.Remote.Picks
	return d, nil
}

// settle ends the workers' sessions, so that their last work is reported, has the gateway read the hub's
// ledger, and returns what each worker has earned.
func (l *Loopback) settle(ctx context.Context) (map[seal.PublicKey]ledger.Balance, error) {
	l.Swarm.Close()
	if _, err := l.PollWallet(ctx); err != nil {
		return nil, err
	}
	list, err := l.Wallet.Balances(ctx)
	if err != nil {
		return nil, err
	}
	all := map[seal.PublicKey]ledger.Balance{}
	for _, b := range list {
		all[b.Worker] = b
	}
	return all, nil
}
