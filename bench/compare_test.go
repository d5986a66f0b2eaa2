package bench

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/perf/benchfmt"
)

const storedText = `{"machine":{"cpu":"x","cores":2,"features":["avx2"],"go":"go1.26.0","commit":"a"},"settings":{"scenario":"dispatch","kernel":"avx2","threads":2,"ffn":1024},` +
	`"results":[{"scenario":"dispatch","batch":1,"tokens_per_s":100,"ms_low":9,"ms_high":11},{"scenario":"dispatch","batch":1,"rtt_ms":13,"pipelined":true,"tokens_per_s":50,"ms_low":19,"ms_high":21}]}`

func storedAs(t *testing.T, name, text string) *Stored {
	t.Helper()
	s, err := ReadStored(name, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestResultsOfOtherMachinesAreRefused(t *testing.T) {
	old := storedAs(t, "old.json", storedText)
	for _, change := range [][2]string{{`"cpu":"x"`, `"cpu":"y"`}, {`"cores":2`, `"cores":4`}, {"avx2\"]", "avx2\",\"avx512\"]"}, {`"kernel":"avx2"`, `"kernel":"portable"`}, {`"threads":2`, `"threads":1`}} {
		other := storedAs(t, "new.json", strings.Replace(storedText, change[0], change[1], 1))
		if _, err := Compare(old, other); !errors.Is(err, ErrMachines) || !strings.Contains(err.Error(), "old.json") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", change[1], err)
		}
	}
	other := storedAs(t, "new.json", strings.Replace(storedText, `"ffn":1024`, `"ffn":512`, 1))
	if _, err := Compare(old, other); !errors.Is(err, ErrResults) || !strings.Contains(err.Error(), "ffn is") {
		t.Errorf("another layer: %v", err)
	}
}

func TestDifferencesAreSureWhereIntervalsAreApart(t *testing.T) {
	text := strings.NewReplacer(`"commit":"a"`, `"commit":"b"`, `:100,"ms_low":9,"ms_high":11`, `:98,"ms_low":10,"ms_high":12`,
		`:50,"ms_low":19,"ms_high":21`, `:75,"ms_low":13,"ms_high":14`).Replace(storedText)
	list, err := Compare(storedAs(t, "old.json", storedText), storedAs(t, "new.json", text))
	if err != nil || len(list) != 2 {
		t.Fatalf("%v: %+v", err, list)
	}
	if a, b := list[0], list[1]; a.Change != -2 || *a.Separate || b.Change != 50 || !*b.Separate || b.What != "batch 1, rtt_ms 13, pipelined" {
		t.Errorf("%+v", list)
	}
	var b strings.Builder
	table := NewDifferenceTable(&b)
	if err := errors.Join(table.Head(), table.Row(list[1])); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(line) - 1; n > Columns {
			t.Errorf("%d columns: %q", n, line)
		}
	}
}

// Not every scenario prints results with batches.
func TestOtherScenariosAreCompared(t *testing.T) {
	for what, text := range map[string]string{
		"streams 8":        `"results":[{"scenario":"x","streams":8,"direct_tokens_per_s":9,"http_tokens_per_s":@}]`,
		"handshakes_per_s": `"results":[{"scenario":"x","part":"handshakes","figure":"handshakes_per_s","what":"sessions that begin","got":@}]`,
		"frame_bytes":      `"lines":[{"name":"frame_bytes","got":@}]`,
		"all":              `"result":{"tokens_per_s":@}`,
	} {
		of := func(v string) *Stored {
			return storedAs(t, v+".json", `{"machine":{"cpu":"x"},"settings":{"scenario":"x"},`+strings.Replace(text, "@", v, 1)+"}")
		}
		list, err := Compare(of("100"), of("150"))
		if err != nil || len(list) != 1 || list[0].What != what || list[0].Change != 50 {
			t.Errorf("%s: %v, %+v", what, err, list)
		}
	}
	small := storedAs(t, "a.json", `{"machine":{"cpu":"x"},"settings":{"scenario":"swarm","churn_per_hour":0},"result":{"tokens_per_s":1}}`)
	other := storedAs(t, "b.json", `{"machine":{"cpu":"x"},"settings":{"scenario":"swarm","churn_per_hour":1},"result":{"tokens_per_s":1}}`)
	if _, err := Compare(small, other); !errors.Is(err, ErrResults) || !strings.Contains(err.Error(), "churn_per_hour is") {
		t.Errorf("another swarm: %v", err)
	}
}

func TestFilesThatAreNoResultsAreRefused(t *testing.T) {
	for _, text := range []string{"", "[]", "{}", `{"machine":{"cpu":"x"}}`, `{"machine":{"cpu":"x"},"settings":{"scenario":"dispatch"},"results":3}`} {
		if _, err := ReadStored("x.json", strings.NewReader(text)); !errors.Is(err, ErrResults) || !strings.HasPrefix(err.Error(), "x.json: ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestOddResultsAreComparedWithoutHarm(t *testing.T) {
	s := storedAs(t, "x.json", `{"machine":{"cpu":"x"},"settings":{"scenario":3},"results":[null,{"batch":[],"tokens_per_s":"many"},{"tokens_per_s":0}]}`)
	if list, err := Compare(s, s); !errors.Is(err, ErrResults) {
		t.Errorf("%v: %+v", err, list)
	}
}

// TestGoFormatIsReadByBenchstat reads with the package that benchstat reads with.
func TestGoFormatIsReadByBenchstat(t *testing.T) {
	r := madeReport(made(1, local, 5, 6, 7), made(1, near, 8), made(1, far, 20, 22))
	r.Settings.Up, r.Settings.Worker = 1e9, GPU.String()
	var b bytes.Buffer
	m := Machine{CPU: "AMD EPYC", Cores: 2, Commit: "c0ffee"}
	if err := WriteGo(&b, &m, r.GoLines()); err != nil {
		t.Fatal(err)
	}
	in := benchfmt.NewReader(&b, "test")
	names := map[string]int{}
	for in.Scan() {
		switch x := in.Result().(type) {
		case *benchfmt.Result:
			names[string(x.Name)]++
			if v, ok := x.Value("tokens/s"); !ok || v <= 0 || x.GetConfig("cpu") != "AMD EPYC" || x.GetConfig("commit") != "c0ffee" {
				t.Errorf("%+v", x)
			}
			if v, _ := x.Value("sec/op"); v < 0.0049 || v > 0.0221 {
				t.Errorf("%v s", v)
			}
		case *benchfmt.SyntaxError:
			t.Error(x)
		}
	}
	if l := (&RelayReport{Results: []RelayResult{{Unit: "/s"}, {Unit: "ms"}, {}}}).GoLines(); l[0].Metrics[0].Unit != "count/s" ||
		l[1].Metrics[0].Unit != "ms" || l[2].Metrics[0].Unit != "count" {
		t.Errorf("units %+v", l)
	}
	want := map[string]int{
		"Dispatch/batch=1/worker=stub:gpu/up=1G/down=0-2": 3, "Dispatch/batch=1/rtt=0ms/worker=stub:gpu/up=1G/down=0-2": 1,
		"Dispatch/batch=1/rtt=13ms/worker=stub:gpu/up=1G/down=0-2": 2,
	}
	for name, n := range want {
		if names[name] != n {
			t.Errorf("%s is there %d times, want %d; all are %v", name, names[name], n, names)
		}
	}
	for _, l := range [][]Line{
		(&WireReport{Results: []WireResult{{Scenario: WireName, Path: "small frames", Way: "bare TCP", GBps: 1}}}).GoLines(),
		(&KernelsReport{Results: []KernelsResult{{Scenario: KernelsName, Ms: 1, Quant: "Q4_K", Picks: picksDense}}}).GoLines(),
		(&ModelReport{Results: []ModelResult{{Scenario: ModelName, Kind: reading, Ms: 1}}}).GoLines(),
		(&ReferenceReport{Results: []ReferenceResult{{Scenario: ReferenceName, Figure: "a", XVsBatch1: 3}}}).GoLines(),
		(&BarsReport{Runs: []*Report{r}}).GoLines(),
		(&ServeReport{Results: []ServeResult{{Scenario: ServeName, Streams: 8, Direct: 2, HTTP: 1}}}).GoLines(),
		(&ServeReport{Load: &ServeLoad{Goodput: 3}}).GoLines(),
		(&RelayReport{Results: []RelayResult{{Scenario: RelayName, Part: "hub restart", Figure: "sent_away"}, {Figure: "handshakes_per_s", Got: 1, Unit: "/s"}}}).GoLines(),
		(&GateReport{Lines: []GateLine{{Name: "frame_bytes", Kind: gateCounted, Unit: "B"}, {Name: "x", Kind: gateTimed, Got: 1}}}).GoLines(),
		(&AuditReport{Results: []AuditResult{{Off: 1, On: 1}}}).GoLines(),
		(&SwarmReport{Result: SwarmResult{Tokens: 1}, Real: &SwarmReal{Tokens: 2}}).GoLines(),
	} {
		b.Reset()
		if err := WriteGo(&b, &m, l); err != nil {
			t.Fatal(err)
		}
		in := benchfmt.NewReader(&b, "test")
		n := 0
		for in.Scan() {
			if x, ok := in.Result().(*benchfmt.SyntaxError); ok {
				t.Errorf("%v of %+v", x, l)
			}
			n++
		}
		if n == 0 {
			t.Errorf("nothing is read of %+v", l)
		}
	}
}
