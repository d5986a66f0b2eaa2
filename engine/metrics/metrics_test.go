package metrics_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"kvasir/engine/metrics"
	"kvasir/engine/model"
	"kvasir/engine/schedule"
	"kvasir/internal/slab"
)

// value returns the value of one series, or fails.
func value(t *testing.T, r *metrics.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if fits(m, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	t.Fatalf("there is no %s with %q", name, labels)
	return 0
}

// fits reports whether a series has labels, each name=value.
func fits(m *dto.Metric, labels []string) bool {
	for _, want := range labels {
		found := false
		for _, l := range m.GetLabel() {
			found = found || l.GetName()+"="+l.GetValue() == want
		}
		if !found {
			return false
		}
	}
	return true
}

func TestRequestsAreCountedByVLLMsNames(t *testing.T) {
	t.Parallel()
	r := metrics.New(metrics.Build{Version: "v1"})
	q := r.Requests("tiny")
	at := time.Unix(1000, 0)
	a := q.Begin(2, false, at)
	a.Prompt(7)
	for i := range 3 {
		a.Token(0, at.Add(time.Duration(i+1)*time.Second))
	}
	a.EndChoice(0, metrics.Stop)
	a.EndChoice(0, metrics.Length) // it has ended
	a.Token(1, at.Add(4*time.Second))
	a.End(metrics.Abort, at.Add(5*time.Second))
	b := q.Begin(1, true, at) // of a batch
	b.Prompt(3)
	b.Token(0, at)
	b.Token(0, at)
	b.EndChoice(0, metrics.Length)
	b.End(metrics.Failed, at)
	q.Refused()
	for _, c := range []struct {
		name, label string
		want        float64
	}{
		{"vllm:time_to_first_token_seconds", "", 1},
		{"vllm:inter_token_latency_seconds", "", 2},
		{"vllm:request_time_per_output_token_seconds", "", 1},
		{"vllm:e2e_request_latency_seconds", "", 1},
		{"vllm:request_prompt_tokens", "", 2},
		{"vllm:request_generation_tokens", "", 3},
		{"vllm:prompt_tokens_total", "", 10},
		{"vllm:generation_tokens_total", "", 6},
		{"vllm:request_success_total", "finished_reason=stop", 1},
		{"vllm:request_success_total", "finished_reason=length", 1},
		{"vllm:request_success_total", "finished_reason=abort", 1},
		{"vllm:request_success_total", "finished_reason=error", 0},
		{"kvasir_requests_refused_total", "", 1},
	} {
		labels := []string{"model_name=tiny"}
		if c.label != "" {
			labels = append(labels, c.label)
		}
		if got := value(t, r, c.name, labels...); got != c.want {
			t.Errorf("%s %s is %v, want %v", c.name, c.label, got, c.want)
		}
	}
	if value(t, r, "kvasir_build_info", "version=v1") != 1 {
		t.Error("the program is not told")
	}
}

func TestTokenAllocatesNothing(t *testing.T) {
	q := metrics.New(metrics.Build{}).Requests("tiny").Begin(1, false, time.Now())
	if n := testing.AllocsPerRun(1000, func() { q.Token(0, time.Now()) }); n != 0 {
		t.Errorf("a token makes %v allocations, want none", n)
	}
}

func TestNoRequestsCountNothing(t *testing.T) {
	t.Parallel()
	var none *metrics.Requests
	q := none.Begin(1, false, time.Now())
	q.Prompt(1)
	q.Token(0, time.Now())
	q.EndChoice(0, metrics.Stop)
	q.End(metrics.Stop, time.Now())
	none.Refused()
}

func serving(list *[]metrics.Worker, batches func() (metrics.Batches, error)) metrics.Serving {
	return metrics.Serving{
		Model: "tiny",
		Schedule: func() schedule.Stats {
			return schedule.Stats{Waiting: 3, Running: 2, Rows: 100, Prefilled: 60, Reused: 20, Preemptions: 1, Finished: 9}
		},
		Memory:  func() model.MemoryStats { return model.MemoryStats{Budget: 1000, Used: 500, Cached: 250} },
		Arena:   func() slab.Stats { return slab.Stats{Bytes: 64, Pinned: 32} },
		Workers: func() []metrics.Worker { return *list },
		Batches: batches,
		Ready:   func() []bool { return []bool{true, false} },
	}
}

func TestStateIsAskedForAtCollection(t *testing.T) {
	t.Parallel()
	var list []metrics.Worker
	r := metrics.New(metrics.Build{})
	r.Serving(serving(&list, func() (metrics.Batches, error) { return metrics.Batches{Open: 1, Done: 2, Failed: 3, Waiting: 4}, nil }))
	for _, c := range []struct {
		name, label string
		want        float64
	}{
		{"vllm:num_requests_running", "model_name=tiny", 2},
		{"vllm:num_requests_waiting", "model_name=tiny", 3},
		{"vllm:kv_cache_usage_perc", "model_name=tiny", 0.25},
		{"vllm:prefix_cache_queries_total", "model_name=tiny", 80},
		{"vllm:prefix_cache_hits_total", "model_name=tiny", 20},
		{"vllm:num_preemptions_total", "model_name=tiny", 1},
		{"kvasir_rows_total", "what=answer", 40},
		{"kvasir_requests_total", "result=finished", 9},
		{"kvasir_slab_pinned_bytes", "", 32},
		{"kvasir_batch_lines", "state=waiting", 4},
		{"kvasir_layer_ready", "layer=1", 0},
		{"kvasir_workers", "", 0},
	} {
		var labels []string
		if c.label != "" {
			labels = []string{c.label}
		}
		if got := value(t, r, c.name, labels...); got != c.want {
			t.Errorf("%s %s is %v, want %v", c.name, c.label, got, c.want)
		}
	}
}

// text collects as Prometheus does.
func text(t *testing.T, r *metrics.Registry) (status int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	all, err := io.ReadAll(w.Result().Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.Code, string(all)
}

func TestWorkersThatLeftDisappear(t *testing.T) {
	t.Parallel()
	list := []metrics.Worker{
		{ID: "a", RTT: time.Second, MinRTT: time.Millisecond, Breaker: "open", BytesOut: 5, Counts: metrics.Counts{Hedges: 2},
			Faults: map[string]int64{"late": 1}, Layers: []metrics.Layer{{Layer: 7, Counts: metrics.Counts{Rows: 11}}}},
		{ID: "b"},
		// The same worker, come back before its old session has ended.
		{ID: "a", MinRTT: 2 * time.Millisecond, Breaker: "closed", BytesOut: 6, Counts: metrics.Counts{Hedges: 3},
			Layers: []metrics.Layer{{Layer: 7, Counts: metrics.Counts{Rows: 4}}, {Layer: 8}}},
	}
	r := metrics.New(metrics.Build{})
	r.Serving(serving(&list, nil))
	for _, c := range []struct {
		name string
		want float64
		l    []string
	}{
		{"kvasir_workers", 2, nil},
		{"kvasir_worker_hedges_total", 5, []string{"worker=a"}},
		{"kvasir_worker_bytes_total", 11, []string{"worker=a", "direction=out"}},
		{"kvasir_worker_breaker", 1, []string{"worker=a", "state=closed"}},
		{"kvasir_worker_breaker", 0, []string{"worker=a", "state=open"}},
		{"kvasir_worker_layer_rows_total", 15, []string{"worker=a", "layer=7"}},
		{"kvasir_worker_min_rtt_seconds", 0.002, []string{"worker=a"}},
	} {
		if got := value(t, r, c.name, c.l...); got != c.want {
			t.Errorf("%s %q is %v, want %v", c.name, c.l, got, c.want)
		}
	}
	list = append(list[1:2], metrics.Worker{ID: "local", Local: true})
	if _, body := text(t, r); strings.Contains(body, `worker="a"`) || !strings.Contains(body, `worker="b"`) {
		t.Errorf("after it has left:\n%s", body)
	}
	if n := value(t, r, "kvasir_workers"); n != 1 {
		t.Errorf("%v workers, and want 1: this machine is none", n)
	}
}

func TestLabelsAreBounded(t *testing.T) {
	t.Parallel()
	var list []metrics.Worker
	for i := range 2000 {
		w := metrics.Worker{ID: fmt.Sprint("w", i)}
		for l := range 6 {
			w.Layers = append(w.Layers, metrics.Layer{Layer: l})
		}
		list = append(list, w)
	}
	r := metrics.New(metrics.Build{})
	r.Serving(serving(&list, nil))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if n := len(f.GetMetric()); n > 4096 {
			t.Errorf("%s has %d series", f.GetName(), n)
		}
		if want := 2000.0 - 1024 + 1024*6 - 4096; f.GetName() == "kvasir_workers_left_off" && f.GetMetric()[0].GetGauge().GetValue() != want {
			t.Errorf("%v, want %v left off", f, want)
		}
	}
}

func TestOneFailingSourceIsAnErrorOfTheCollection(t *testing.T) {
	t.Parallel()
	var list []metrics.Worker
	r := metrics.New(metrics.Build{})
	r.Serving(serving(&list, func() (metrics.Batches, error) { return metrics.Batches{}, errors.New("no disk") }))
	if status, body := text(t, r); status != http.StatusInternalServerError || !strings.Contains(body, "no disk") {
		t.Errorf("status %d: %s", status, body)
	}
}

func TestRelaysCountersBecomeLabels(t *testing.T) {
	t.Parallel()
	r := metrics.New(metrics.Build{})
	r.Relay("hub", func() map[string]uint64 {
		return map[string]uint64{"accepted": 5, "refused_rate": 2, "cut_idle": 1, "left_gone": 3, "bytes_to_workers": 99}
	}, func() map[string]int { return map[string]int{"sessions": 4} })
	for _, c := range []struct {
		name, label string
		want        float64
	}{
		{"kvasir_relay_events_total", "event=accepted", 5},
		{"kvasir_relay_refused_total", "reason=rate", 2},
		{"kvasir_relay_ended_total", "reason=idle", 1},
		{"kvasir_relay_ended_total", "reason=left_gone", 3},
		{"kvasir_relay_bytes_total", "direction=to_workers", 99},
		{"kvasir_relay_open", "what=sessions", 4},
	} {
		if got := value(t, r, c.name, "role=hub", c.label); got != c.want {
			t.Errorf("%s %s is %v, want %v", c.name, c.label, got, c.want)
		}
	}
}

func TestMetricsAreOnlyRead(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	metrics.New(metrics.Build{}).Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/metrics", nil))
	if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST gets status %d", w.Code)
	}
}
