package engine

import (
	"context"
	"net/http"
	"time"

	"kvasir/batcher"
	"kvasir/engine/metrics"
	"kvasir/engine/serve"
	"kvasir/internal/slab"
)

// askTime bounds what a collection of metrics waits for.
const askTime = 2 * time.Second

// observe answers /metrics and /readyz.
func (n *ServeNode) observe() {
	e := n.Engine()
	s := metrics.Serving{
		Model: e.Name(), Schedule: e.scheduler.Stats, Memory: e.memory.Stats, Arena: slab.Shared.Stats,
		Ready: e.pulse.alive,
	}
	if n.swarm != nil {
		s.Workers = n.swarm.workerMetrics
	}
	if n.batches != nil {
		s.Batches = n.batchMetrics
	}
	n.metrics.Serving(s)
	if n.swarm != nil {
		n.metrics.Relay("backbone", n.swarm.Counts, func() map[string]int { return nil })
	}
	if n.embedded != nil {
		hubMetrics(n.embedded.hub.Hub, n.embedded.hub.books.Counts)(n.metrics)
		gatewayMetrics(n.embedded.gateway.Gateway, n.embedded.gateway.wallets.counts())(n.metrics)
	}
	n.handler.Handle("/metrics", n.metrics.Handler())
	var failing func() []WorkerFailed
	if n.swarm != nil {
		failing = n.swarm.failing
	}
	n.handler.Handle("/readyz", readyz(newWatch(e.pulse, e.token, failing)))
}

// readyz answers 200 where tokens come through, and else 503 and what fails.
func readyz(w *watch) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, q *http.Request) {
		if q.Method != http.MethodGet && q.Method != http.MethodHead {
			out.Header().Set("Allow", "GET, HEAD")
			serve.Refuse(out, http.StatusMethodNotAllowed, "", "/readyz is read with GET")
			return
		}
		r, status := w.look(q.Context()), http.StatusOK
		if !r.Ready {
			status = http.StatusServiceUnavailable
		}
		out.Header().Set("Cache-Control", "no-store")
		serve.WriteJSON(out, status, r)
	})
}

func (n *ServeNode) batchMetrics() (metrics.Batches, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	s, err := n.batches.Standing(ctx)
	return metrics.Batches{Open: s.Open, Done: s.Done, Failed: s.Failed, Waiting: s.Total - s.Done - s.Failed}, err
}

// workerMetrics lists the workers that are present, and this machine.
func (s *Swarm) workerMetrics() []metrics.Worker {
	all := s.Metrics()
	list := make([]metrics.Worker, 0, len(all.Workers)+1)
	for i := range all.Workers {
		w := &all.Workers[i]
		m := workerMetrics(&w.Stats)
		m.ID, m.Queue = w.ID, w.Lane.Rows
		m.RTT, m.MinRTT, m.BytesOut, m.BytesIn = w.Session.RTT, w.Session.MinRTT, w.Session.BytesOut, w.Session.BytesIn
		list = append(list, m)
	}
	if all.Local != nil {
		list = append(list, workerMetrics(all.Local))
	}
	return list
}

func workerMetrics(s *batcher.Stats) metrics.Worker {
	w := metrics.Worker{
		ID: s.Name, Local: s.Local, Calls: s.Calls, Picks: s.InFlight, Breaker: s.Breaker.String(), Counts: countMetrics(&s.Counts),
		Faults: map[string]int64{},
	}
	for kind, n := range s.Faults {
		w.Faults[batcher.Fault(kind).String()] = n
	}
	for i := range s.Layers {
		l := &s.Layers[i]
		w.Layers = append(w.Layers, metrics.Layer{Layer: l.Layer, Counts: countMetrics(&l.Counts)})
	}
	return w
}

func countMetrics(c *batcher.Counts) metrics.Counts {
	return metrics.Counts{
		Dispatches: c.Dispatches, Rows: c.Rows, Picks: c.Picks, Failures: c.Failures, Late: c.Late,
		Hedges: c.Hedges, Retries: c.Retries, Wait: c.Wait,
	}
}
