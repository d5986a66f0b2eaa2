package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Bounds of labels.
const (
	maxWorkers = 1024
	maxPairs   = 4096 // of a worker and a layer
)

// Worker is one that is present, or this machine.
type Worker struct {
	ID      string
	Local   bool          // this machine: it is not counted as a worker
	RTT     time.Duration // the last
	MinRTT  time.Duration // 0: not known yet
	Queue   int           // rows that wait for it
	Calls   int           // dispatches under way
	Picks   int           // of them
	Breaker string        // closed, open or probing; empty: not known
	Faults  map[string]int64

	BytesOut, BytesIn uint64 // to it, and from it
	Counts
	Layers []Layer
}

// Layer is what a worker has done in one layer.
type Layer struct {
	Layer int
	Counts
}

// Counts is what came of dispatches.
type Counts struct {
	Dispatches, Rows, Picks         int64
	Failures, Late, Hedges, Retries int64
	Wait                            time.Duration // from dispatch to answer, added up
}

func (c *Counts) add(o *Counts) {
	c.Dispatches += o.Dispatches
	c.Rows += o.Rows
	c.Picks += o.Picks
	c.Failures += o.Failures
	c.Late += o.Late
	c.Hedges += o.Hedges
	c.Retries += o.Retries
	c.Wait += o.Wait
}

// breakers are the states of a breaker.
var breakers = []string{"closed", "open", "probing"}

type workerDescs struct {
	present, leftOff             desc
	rtt, minRTT                  desc
	queue, calls, picks, breaker desc
	bytes, faults                desc
	whole                        countDescs
	byLayer                      countDescs
}

// countDescs are of Counts.
type countDescs struct{ dispatches, rows, picks, failures, late, hedges, retries, wait desc }

func newCountDescs(prefix, suffix string, labels ...string) countDescs {
	c := func(name, help string) desc { return counter(prefix+name, help+suffix, labels...) }
	return countDescs{
		dispatches: c("dispatches_total", "Batches sent to a worker"),
		rows:       c("rows_total", "Rows whose answer was used"),
		picks:      c("picks_total", "Picks whose answer was used"),
		failures:   c("failures_total", "Dispatches that brought no answer"),
		late:       c("late_total", "Dispatches that others answered first, being asked because it was late"),
		hedges:     c("hedges_total", "Dispatches that it got because others were late"),
		retries:    c("retries_total", "Dispatches that it got because others had failed"),
		wait:       c("wait_seconds_total", "Time from dispatch to answer, added up"),
	}
}

func (d *countDescs) put(to chan<- prometheus.Metric, c *Counts, labels ...string) {
	d.dispatches.put(to, float64(c.Dispatches), labels...)
	d.rows.put(to, float64(c.Rows), labels...)
	d.picks.put(to, float64(c.Picks), labels...)
	d.failures.put(to, float64(c.Failures), labels...)
	d.late.put(to, float64(c.Late), labels...)
	d.hedges.put(to, float64(c.Hedges), labels...)
	d.retries.put(to, float64(c.Retries), labels...)
	d.wait.put(to, c.Wait.Seconds(), labels...)
}

func newWorkerDescs() *workerDescs {
	const w = "worker"
	return &workerDescs{
		present: gauge("kvasir_workers", "Workers that are present."),
		leftOff: gauge("kvasir_workers_left_off", "Workers, or layers of workers, that are too many to be listed."),
		rtt:     gauge("kvasir_worker_rtt_seconds", "Last round trip to a worker.", w),
		minRTT:  gauge("kvasir_worker_min_rtt_seconds", "Smallest round trip to a worker, lately.", w),
		queue:   gauge("kvasir_worker_queue_rows", "Rows that wait for a worker.", w),
		calls:   gauge("kvasir_worker_in_flight", "Dispatches to a worker under way.", w),
		picks:   gauge("kvasir_worker_in_flight_picks", "Picks of them.", w),
		breaker: gauge("kvasir_worker_breaker", "1 for the state that a worker's breaker is in.", w, "state"),
		bytes:   counter("kvasir_worker_bytes_total", "Bytes to and from a worker, within the inner TLS.", w, "direction"),
		faults:  counter("kvasir_worker_faults_total", "Dispatches that brought no answer, by the kind.", w, "kind"),
		whole:   newCountDescs("kvasir_worker_", ".", w),
		byLayer: newCountDescs("kvasir_worker_layer_", ", by layer.", w, "layer"),
	}
}

// workers collects those that are present.
func workers(list func() []Worker) collector {
	d := newWorkerDescs()
	return func(to chan<- prometheus.Metric) {
		present := distinct(list())
		local := 0
		for _, w := range present {
			if w.Local {
				local++
			}
		}
		d.present.put(to, float64(len(present)-local))
		leftOff, pairs := max(len(present)-maxWorkers, 0), 0
		for _, w := range present[:min(len(present), maxWorkers)] {
			d.put(to, w)
			for i := range w.Layers {
				if pairs++; pairs > maxPairs {
					leftOff++
					continue
				}
				l := &w.Layers[i]
				d.byLayer.put(to, &l.Counts, w.ID, strconv.Itoa(l.Layer))
			}
		}
		d.leftOff.put(to, float64(leftOff))
	}
}

func (d *workerDescs) put(to chan<- prometheus.Metric, w *Worker) {
	if w.MinRTT > 0 {
		d.rtt.put(to, w.RTT.Seconds(), w.ID)
		d.minRTT.put(to, w.MinRTT.Seconds(), w.ID)
	}
	d.queue.put(to, float64(w.Queue), w.ID)
	d.calls.put(to, float64(w.Calls), w.ID)
	d.picks.put(to, float64(w.Picks), w.ID)
	if w.Breaker != "" {
		for _, state := range breakers {
			v := 0.0
			if state == w.Breaker {
				v = 1
			}
			d.breaker.put(to, v, w.ID, state)
		}
	}
	if !w.Local {
		d.bytes.put(to, float64(w.BytesOut), w.ID, "out")
		d.bytes.put(to, float64(w.BytesIn), w.ID, "in")
	}
	for kind, n := range w.Faults {
		d.faults.put(to, float64(n), w.ID, kind)
	}
	d.whole.put(to, &w.Counts, w.ID)
}

// distinct puts together what has the same ID: a worker that came back before its old session had ended.
// The later one says how things stand.
func distinct(list []Worker) []*Worker {
	at := map[string]*Worker{}
	var out []*Worker
	for i := range list {
		w := list[i]
		old := at[w.ID]
		if old == nil {
			at[w.ID] = &w
			out = append(out, &w)
			continue
		}
		sum := old.Counts
		sum.add(&w.Counts)
		layers := merged(old.Layers, w.Layers)
		in, bytesOut := old.BytesIn+w.BytesIn, old.BytesOut+w.BytesOut
		*old = w
		old.Counts, old.Layers, old.BytesIn, old.BytesOut = sum, layers, in, bytesOut
	}
	return out
}

// merged adds the counts of b to those of a.
func merged(a, b []Layer) []Layer {
	out := append([]Layer(nil), a...)
	at := map[int]int{}
	for i, l := range out {
		at[l.Layer] = i
	}
	for _, l := range b {
		if i, ok := at[l.Layer]; ok {
			out[i].add(&l.Counts)
			continue
		}
		out = append(out, l)
	}
	return out
}
