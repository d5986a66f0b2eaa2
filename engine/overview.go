package engine

import (
	"context"
	"fmt"
	"time"

	"kvasir/engine/batches"
	"kvasir/engine/ledger"
	"kvasir/engine/page"
	"kvasir/wire/seal"
)

// shownBatches is how many batch jobs the page looks at, the newest first, and keptBatches how many of those
// it shows that have ended.
const (
	shownBatches = 20
	keptBatches  = 3
)

// status is what the page shows. Nothing in it is secret: no text, no token, no whole id.
func (n *ServeNode) status(ctx context.Context) (page.Status, error) {
	e := n.Engine()
	t := e.scheduler.Stats()
	s := page.Status{
		Model: n.Model(), Since: n.since.UnixMilli(), Layers: e.model.Layers, Experts: e.model.Experts, Context: e.Context(),
		Requests: page.Requests{Running: t.Running, Waiting: t.Waiting},
		Tokens:   page.Tokens{Prompt: t.Prefilled, Generated: t.Decoded}, Swarm: n.swarm != nil,
	}
	balances := n.balances(ctx)
	for _, w := range n.Workers() {
		if w.Here {
			s.Workers = append(s.Workers, n.shown(&w, balances))
		}
	}
	if n.batches == nil {
		return s, nil
	}
	list, err := n.batches.Batches(ctx, "", shownBatches)
	ended := 0
	for _, b := range list {
		if b.Done() {
			if ended++; ended > keptBatches {
				continue
			}
		}
		s.Batches = append(s.Batches, shownBatch(b))
	}
	return s, err
}

// balances are the wallets of this process; it has none where the gateway is elsewhere.
func (n *ServeNode) balances(ctx context.Context) map[seal.PublicKey]ledger.Balance {
	if n.embedded == nil || n.embedded.gateway.wallets == nil {
		return nil
	}
	list, err := n.embedded.gateway.wallets.wallet.Balances(ctx)
	if err != nil {
		return nil // the page goes without
	}
	all := make(map[seal.PublicKey]ledger.Balance, len(list))
	for _, b := range list {
		all[b.Worker] = b
	}
	return all
}

// shown is a worker on the page. Where its wallet is elsewhere, its pay is that of this session.
func (n *ServeNode) shown(w *WorkerStats, balances map[seal.PublicKey]ledger.Balance) page.Worker {
	const first = 8
	b, here := balances[w.Key]
	if !here {
		b = earned(w, n.Engine().model.Hidden)
	}
	return page.Worker{
		ID: w.ID, Hub: w.Hub[:min(first, len(w.Hub))], Holds: w.Holds, RTT: milliseconds(w.RTT), Rate: w.Rate,
		Dispatches: w.Dispatches, Rows: w.Rows, Picks: w.Picks, Failures: w.Failures, Wait: milliseconds(w.Wait),
		Pending: int64(b.Pending), Settled: int64(b.Settled), Voided: int64(b.Voided),
		Idle: idle(w), Unpaid: unpaid(w, &b, n.swarm != nil && n.swarm.auditor != nil),
	}
}

// earned is the pay of a session: what was not signed yet, or is not said to hold or to be wrong, is pending.
func earned(w *WorkerStats, hidden int) ledger.Balance {
	b := ledger.Balance{Settled: w.Settled, Voided: w.Voided}
	bytes, err := ledger.OutputBytes(w.Picks, hidden)
	if err != nil {
		return b
	}
	all, err := ledger.Reward(bytes)
	if err != nil {
		all = ledger.MaxBalance
	}
	b.Pending = max(0, all-b.Settled-b.Voided)
	return b
}

// idle is why a worker has no work; "" for one that has had some.
func idle(w *WorkerStats) string {
	switch {
	case w.Holds == "":
		return "loads its experts"
	case w.Dispatches == 0:
		return "nobody has asked for its experts yet"
	}
	return ""
}

// unpaid is why pay does not settle, where that is not just a matter of time.
func unpaid(w *WorkerStats, b *ledger.Balance, checked bool) string {
	switch {
	case !checked:
		return "nobody checks the work"
	case w.Wanted > 0:
		return fmt.Sprintf("on trial until %d more rows are found right", w.Wanted)
	case b.Waiting > 0:
		return "more waits for the limit of this backbone"
	}
	return ""
}

func shownBatch(b *batches.Batch) page.Batch {
	const last = 6
	return page.Batch{
		ID: b.ID[max(0, len(b.ID)-last):], Endpoint: b.Endpoint, Status: b.Status, Total: b.Total,
		Completed: b.Completed, Failed: b.Failed,
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
