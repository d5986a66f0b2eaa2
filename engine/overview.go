package engine

import (
	"context"
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
	settled := n.settled(ctx)
	for _, w := range n.Workers() {
		if w.Here {
			s.Workers = append(s.Workers, n.shown(&w, settled[w.Key]))
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

// settled is what the wallets of this process have settled; it has none where the gateway is elsewhere.
func (n *ServeNode) settled(ctx context.Context) map[seal.PublicKey]ledger.NKVR {
	if n.embedded == nil || n.embedded.gateway.wallets == nil {
		return nil
	}
	list, err := n.embedded.gateway.wallets.wallet.Balances(ctx)
	if err != nil {
		return nil // the page goes without
	}
	all := make(map[seal.PublicKey]ledger.NKVR, len(list))
	for _, b := range list {
		all[b.Worker] = b.Settled
	}
	return all
}

// shown is a worker on the page. What it has pending is what its answers of this session are worth.
func (n *ServeNode) shown(w *WorkerStats, settled ledger.NKVR) page.Worker {
	const first = 8
	var pending ledger.NKVR
	if bytes, err := ledger.OutputBytes(w.Picks, n.Engine().model.Hidden); err == nil {
		if pending, err = ledger.Reward(bytes); err != nil {
			pending = ledger.MaxBalance
		}
	}
	return page.Worker{
		ID: w.ID, Hub: w.Hub[:min(first, len(w.Hub))], Holds: w.Holds, RTT: milliseconds(w.RTT), Rate: w.Rate,
		Dispatches: w.Dispatches, Rows: w.Rows, Picks: w.Picks, Failures: w.Failures, Wait: milliseconds(w.Wait),
		Pending: int64(pending), Settled: int64(settled),
	}
}

func shownBatch(b *batches.Batch) page.Batch {
	const last = 6
	return page.Batch{
		ID: b.ID[max(0, len(b.ID)-last):], Endpoint: b.Endpoint, Status: b.Status, Total: b.Total,
		Completed: b.Completed, Failed: b.Failed,
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
