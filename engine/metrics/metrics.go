// Package metrics tells Prometheus how a node is.
//
// A Registry is the node's own: nothing is taken from, or put into, the process-wide one. What counts once
// a token or a request is kept in counters that are found beforehand, so that a token costs no allocation
// and no look-up (Requests). Everything else is asked for when somebody collects (Serving, Relay), so that
// between two collections it costs nothing.
//
// Names that begin with vllm: are those of vLLM's production metrics, where the meaning is the same, so
// that its dashboards work as they are; all others begin with kvasir_. Labels are bounded: workers that
// have left disappear, and beyond maxWorkers and maxPairs no series are added.
package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// Build is which program this is.
type Build struct {
	Version, Commit, Arithmetic string
}

// Registry is the metrics of one node.
type Registry struct {
	reg *prometheus.Registry
}

// New returns a registry with what is known of every node: the program, its memory and goroutines.
func New(b Build) *Registry {
	r := &Registry{prometheus.NewRegistry()}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kvasir_build_info", Help: "1; the labels say which program this is.",
		ConstLabels: prometheus.Labels{"version": b.Version, "commit": b.Commit, "arithmetic": b.Arithmetic},
	})
	info.Set(1)
	r.reg.MustRegister(info, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// scrapes is how many collections are answered at a time.
const scrapes = 4

// Handler answers GET with all metrics.
func (r *Registry) Handler() http.Handler {
	h := promhttp.HandlerFor(r.reg, promhttp.HandlerOpts{MaxRequestsInFlight: scrapes})
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method != http.MethodGet && q.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "metrics are read with GET", http.StatusMethodNotAllowed)
			return
		}
		h.ServeHTTP(w, q)
	})
}

// Gather returns all metrics as they are now.
func (r *Registry) Gather() ([]*dto.MetricFamily, error) { return r.reg.Gather() }

// desc describes a metric that is asked for when somebody collects.
type desc struct {
	d    *prometheus.Desc
	kind prometheus.ValueType
}

func counter(name, help string, labels ...string) desc {
	return desc{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue}
}

func gauge(name, help string, labels ...string) desc {
	return desc{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

// put sends one value.
func (d desc) put(to chan<- prometheus.Metric, v float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(d.d, d.kind, v, labels...)
}

// collector is a prometheus.Collector of two functions. The series that it has are not known beforehand.
type collector func(chan<- prometheus.Metric)

// Describe is prometheus.Collector's; it says nothing, since what there is changes.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect is prometheus.Collector's.
func (c collector) Collect(to chan<- prometheus.Metric) { c(to) }
