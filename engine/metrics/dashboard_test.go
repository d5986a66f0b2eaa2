package metrics_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"kvasir/engine/metrics"
)

// dashboard is what is looked at of docs/grafana.json.
type dashboard struct {
	Panels []struct {
		ID      int
		Title   string
		Targets []struct{ Expr string }
	}
	Templating struct {
		List []struct{ Definition string }
	}
}

// names are those of metrics in an expression.
var names = regexp.MustCompile(`(?:vllm:|kvasir_)[a-zA-Z0-9_:]+`)

func TestDashboardUsesOnlyMetricsThatExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	list := []metrics.Worker{{ID: "a", MinRTT: 1, Breaker: "closed", Faults: map[string]int64{"late": 0}, Layers: []metrics.Layer{{}}}}
	r := metrics.New(metrics.Build{})
	r.Requests("tiny")
	r.Serving(serving(&list, func() (metrics.Batches, error) { return metrics.Batches{}, nil }))
	r.Relay("hub", func() map[string]uint64 {
		return map[string]uint64{"accepted": 0, "refused_x": 0, "cut_x": 0, "bytes_in": 0}
	}, func() map[string]int { return map[string]int{"sessions": 0} })
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, f := range families {
		there[f.GetName()] = true
		if f.GetType() == dto.MetricType_HISTOGRAM {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				there[f.GetName()+part] = true
			}
		}
	}
	used := map[string]bool{}
	check := func(where, expr string) {
		found := names.FindAllString(expr, -1)
		if len(found) == 0 {
			t.Errorf("%s: no metric in %q", where, expr)
		}
		for _, name := range found {
			used[name] = true
			if !there[name] {
				t.Errorf("%s: there is no metric %s", where, name)
			}
		}
	}
	seen := map[int]string{}
	for _, p := range d.Panels {
		if other, twice := seen[p.ID]; twice {
			t.Errorf("panels %q and %q have the same id", other, p.Title)
		}
		seen[p.ID] = p.Title
		for _, target := range p.Targets {
			check(p.Title, target.Expr)
		}
	}
	for _, v := range d.Templating.List {
		if strings.HasPrefix(v.Definition, "label_values(") {
			check("a variable", v.Definition)
		}
	}
	if len(used) < 25 {
		t.Errorf("the dashboard shows %d metrics only", len(used))
	}
}
