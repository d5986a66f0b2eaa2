package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"kvasir/engine/model"
	"kvasir/engine/schedule"
	"kvasir/internal/slab"
)

// Serving says where a serving node's state is asked for. What is nil is not there.
type Serving struct {
	Model    string
	Schedule func() schedule.Stats
	Memory   func() model.MemoryStats
	Arena    func() slab.Stats
	Workers  func() []Worker
	Batches  func() (Batches, error)
	Ready    func() []bool // by layer: whether a token went through lately
}

// Batches is how the batch jobs stand.
type Batches struct {
	Open                  int // that have not ended
	Done, Failed, Waiting int // lines of them
}

// Serving adds what is asked for when somebody collects.
func (r *Registry) Serving(s Serving) {
	var parts []collector
	if s.Schedule != nil && s.Memory != nil {
		parts = append(parts, s.engine())
	}
	if s.Arena != nil {
		parts = append(parts, arena(s.Arena))
	}
	if s.Workers != nil {
		parts = append(parts, workers(s.Workers))
	}
	if s.Batches != nil {
		parts = append(parts, batches(s.Batches))
	}
	if s.Ready != nil {
		parts = append(parts, ready(s.Ready))
	}
	for _, p := range parts {
		r.reg.MustRegister(p)
	}
}

// engine collects what vLLM has names for, and what it has not.
func (s Serving) engine() collector {
	const m = "model_name"
	var (
		running   = gauge("vllm:num_requests_running", "Sequences that are computed.", m)
		waiting   = gauge("vllm:num_requests_waiting", "Requests that wait to be computed.", m)
		usage     = gauge("vllm:kv_cache_usage_perc", "Memory of sequences in use; 1 is all.", m)
		queries   = counter("vllm:prefix_cache_queries_total", "Tokens of prompts that were looked for among known ones.", m)
		hits      = counter("vllm:prefix_cache_hits_total", "Of them, those that were known.", m)
		preempted = counter("vllm:num_preemptions_total", "Times that a sequence gave its memory to others.", m)

		budget  = gauge("kvasir_sequence_memory_bytes", "Memory that sequences may take; 0 is no limit.", m)
		used    = gauge("kvasir_sequence_memory_used_bytes", "Memory that sequences take, kept prefixes included.", m)
		cached  = gauge("kvasir_prefix_cache_bytes", "Memory of prefixes that no sequence needs now.", m)
		steps   = counter("kvasir_micro_batches_total", "Micro-batches that went through the layers.", m)
		rows    = counter("kvasir_rows_total", "Tokens that went through the layers, by what for.", m, "what")
		anew    = counter("kvasir_recomputed_tokens_total", "Tokens computed a second time.", m)
		retries = counter("kvasir_sequence_retries_total", "Sequences tried again because experts failed.", m)
		ended   = counter("kvasir_requests_total", "Requests that have ended, by how.", m, "result")
	)
	return func(to chan<- prometheus.Metric) {
		st, mem := s.Schedule(), s.Memory()
		running.put(to, float64(st.Running), s.Model)
		waiting.put(to, float64(st.Waiting), s.Model)
		share := 0.0
		if mem.Budget > 0 {
			share = float64(mem.Used-mem.Cached) / float64(mem.Budget)
		}
		usage.put(to, share, s.Model)
		queries.put(to, float64(st.Prefilled+st.Reused), s.Model)
		hits.put(to, float64(st.Reused), s.Model)
		preempted.put(to, float64(st.Preemptions), s.Model)
		budget.put(to, float64(mem.Budget), s.Model)
		used.put(to, float64(mem.Used), s.Model)
		cached.put(to, float64(mem.Cached), s.Model)
		steps.put(to, float64(st.Batches), s.Model)
		rows.put(to, float64(st.Prefilled), s.Model, "prompt")
		rows.put(to, float64(st.Rows-st.Prefilled), s.Model, "answer")
		anew.put(to, float64(st.Recomputed), s.Model)
		retries.put(to, float64(st.Retries), s.Model)
		ended.put(to, float64(st.Finished), s.Model, "finished")
		ended.put(to, float64(st.Failed), s.Model, "failed")
		ended.put(to, float64(st.Canceled), s.Model, "canceled")
	}
}

// arena collects memory for rows and frames.
func arena(stats func() slab.Stats) collector {
	var (
		mapped  = gauge("kvasir_slab_bytes", "Memory for rows and frames.")
		pinned  = gauge("kvasir_slab_pinned_bytes", "Of it, page-locked.")
		inUse   = gauge("kvasir_slab_used_bytes", "Of it, in use.")
		refused = counter("kvasir_slab_refused_regions_total", "Regions that a device has not taken.")
	)
	return func(to chan<- prometheus.Metric) {
		s := stats()
		mapped.put(to, float64(s.Bytes))
		pinned.put(to, float64(s.Pinned))
		inUse.put(to, float64(s.InUse))
		refused.put(to, float64(s.Refused))
	}
}

func batches(stats func() (Batches, error)) collector {
	var (
		open  = gauge("kvasir_batches_open", "Batch jobs that have not ended.")
		lines = gauge("kvasir_batch_lines", "Lines of batch jobs that have not ended, by how they stand.", "state")
	)
	return func(to chan<- prometheus.Metric) {
		b, err := stats()
		if err != nil {
			to <- prometheus.NewInvalidMetric(open.d, err)
			return
		}
		open.put(to, float64(b.Open))
		lines.put(to, float64(b.Done), "done")
		lines.put(to, float64(b.Failed), "failed")
		lines.put(to, float64(b.Waiting), "waiting")
	}
}

func ready(layers func() []bool) collector {
	d := gauge("kvasir_layer_ready", "1 if a token went through the experts of the layer in the last minute.", "layer")
	return func(to chan<- prometheus.Metric) {
		for l, ok := range layers() {
			v := 0.0
			if ok {
				v = 1
			}
			d.put(to, v, strconv.Itoa(l))
		}
	}
}
