package engine

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"kvasir/engine/ledger"
	slicing "kvasir/engine/slices"
	"kvasir/engine/worker"
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
func (e *Engine) Demo(ctx context.Context, c DemoConfig, emit func(Piece) error) (DemoResult, error) {
	var d DemoResult
	if _, _, err := e.encode(c.Request); err != nil { // before anything is started
		return d, err
	}
	home, err := os.MkdirTemp("", "kvasir-demo-")
	if err != nil {
		return d, err
	}
	defer func() { _ = os.RemoveAll(home) }() // it is the system's temporary folder
	start, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	lc := LoopbackConfig{Model: e.Model(), Workers: c.Workers, Home: home, Dial: c.Dial, Wrap: c.Wrap}
	end, err := e.lend(&lc)
	if err != nil {
		return d, err
	}
	defer end()
	l, err := NewLoopback(start, lc)
	if err != nil {
		return d, err
	}
	defer l.Close()
	if c.Ready != nil {
		c.Ready(l.listeners[1].Addr().String(), l.listeners[0].Addr().String())
	}
	before := l.Swarm.Workers()
	c.keep = true
	if d.Remote, err = e.remotely(ctx, l, c.Request, emit); err != nil {
		return d, err
	}
	d.Workers = l.Swarm.Workers()
	for i := range before {
		d.Workers[i].BytesOut -= before[i].BytesOut // weights, and greetings
		d.Workers[i].BytesBack -= before[i].BytesBack
	}
	if d.Balances, err = l.settle(ctx); err != nil {
		return d, err
	}
	if d.Local, err = e.Generate(ctx, c.Request, func(Piece) error { return nil }); err != nil {
		return d, err
	}
	remote, local := d.Remote.First(), d.Local.First()
	d.Identical = slices.Equal(remote.Tokens, local.Tokens) && sameBits(remote.logits, local.logits)
	d.Picks = e.picks(&d.Remote)
	return d, nil
}

// demoFetch is how large the experts of a model may be for the workers of a demo to fetch copies of them
// into the temporary folder; of larger ones they load their parts out of the file.
const demoFetch = 1 << 30

// lend makes the workers of a loopback swarm hold what they are assigned: each has memory for its share
// of the model, and a layer more. end is to be called after the swarm's.
func (e *Engine) lend(c *LoopbackConfig) (end func(), err error) {
	src, err := e.Source()
	if err != nil {
		return nil, err
	}
	all, layer := int64(0), int64(0)
	for l := range c.Model.Layers {
		n := int64(c.Model.PerLayer) * src.ExpertBytes(l)
		all += n
		layer = max(layer, n)
	}
	var caches []*slicing.Cache
	c.Slices, c.Exponents, c.TopK = src, e.Exponents(), e.TopK()
	c.Memory = func(int) int64 { return (all/int64(max(1, c.Workers)) + layer) * 3 / 2 }
	c.Shelf = func(i int) (worker.Shelf, error) {
		if all > demoFetch {
			return worker.FileShelf{File: e.file}, nil
		}
		cache, err := slicing.OpenCache(filepath.Join(c.Home, fmt.Sprintf("slices-%d", i)), 0)
		if err == nil {
			caches = append(caches, cache)
		}
		return worker.CacheShelf{Cache: cache}, err
	}
	return func() {
		for _, cache := range caches {
			_ = cache.Close() // it goes with the folder
		}
	}, nil
}

// remotely generates with the workers of a swarm.
func (e *Engine) remotely(ctx context.Context, l *Loopback, r Request, emit func(Piece) error) (Result, error) {
	far, err := e.With(l.Swarm.Experts(), 1)
	if err != nil {
		return Result{}, err
	}
	defer func() { _ = far.Close() }() // the file is e's
	return far.Generate(ctx, r, emit)
}

// picks is how many picks the rows of a result had. All but the last of the prompt and the tokens chosen
// went through all layers but the last one, where only those rows go on whose logits are wanted.
func (e *Engine) picks(r *Result) int64 {
	steps := r.First().steps
	rows := len(r.PromptTokens) + steps - 1
	return int64(e.model.TopK) * int64(rows*(e.model.Layers-1)+steps)
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
