package pages

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvasir/bench"
)

const machine = `"machine":{"cpu":"x","cores":2,"features":["avx2"],"go":"go1.26.0","commit":"c0ffee","int8_peak_gops":700,"read_gbps":30}`

// dispatched is a run of two batches over three paths.
const dispatched = `{` + machine + `,"settings":{"scenario":"dispatch","kernel":"avx2","threads":2,"worker":"cpu","rtt_ms":13},"results":[
{"scenario":"dispatch","batch":1,"tokens_per_s":500,"ms_per_dispatch":2,"x_vs_batch_1":1,"pairs":5,"pairs_dropped":1},
{"scenario":"dispatch","batch":1,"rtt_ms":0,"tokens_per_s":333,"ms_per_dispatch":3,"identical":true},
{"scenario":"dispatch","batch":1,"rtt_ms":13,"tokens_per_s":62,"ms_per_dispatch":16,"rtt_overhead_pct":433,"identical":true},
{"scenario":"dispatch","batch":1,"rtt_ms":80,"tokens_per_s":12,"ms_per_dispatch":83,"rtt_overhead_pct":2666,"identical":true},
{"scenario":"dispatch","batch":512,"tokens_per_s":1706,"ms_per_dispatch":300,"ms_low":290,"ms_high":310.5,"x_vs_batch_1":3.4},
{"scenario":"dispatch","batch":512,"rtt_ms":0,"tokens_per_s":1600,"ms_per_dispatch":320,"identical":true},
{"scenario":"dispatch","batch":512,"rtt_ms":13,"tokens_per_s":1550,"ms_per_dispatch":330,"rtt_overhead_pct":3.1,"identical":true},
{"scenario":"dispatch","batch":512,"rtt_ms":80,"tokens_per_s":1250,"ms_per_dispatch":400,"rtt_overhead_pct":25,"identical":true},
{"scenario":"dispatch","batch":512,"rtt_ms":13,"pipelined":true,"flights":3,"tokens_per_s":1700,"ms_per_dispatch":301,"rtt_overhead_pct":-0.4,"roofline_share":0.99,"bound":"the experts","identical":true}]}`

func load(t *testing.T, text string) *bench.Stored {
	t.Helper()
	s, err := bench.ReadStored("figures.json", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPageOfDispatchHasTableAndPlots(t *testing.T) {
	p, err := Make(load(t, dispatched), "docs/benchmarks")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Measured with `kvasir-bench dispatch` on x, 2 cores, avx2 kernels, 2 threads, go1.26.0, commit c0ffee; at best 700 GOP/s of int8 and 30.0 GB/s from memory.",
		"1 of 5 rounds were dropped",
		"| 512 | local | 300 (290 to 310) | 1,706 | 3.40 |  |  |  |  |  |  |",
		"| 512 | 13 ms, 3 under way | 301 | 1,700 |  | -0.4 % |  |  | 99 % | the experts | yes |",
		"![Rows a second through one layer](docs/benchmarks/dispatch-throughput.svg)",
		"![What a round trip costs](docs/benchmarks/dispatch-overhead.svg)",
	} {
		if !strings.Contains(p.Text, want) {
			t.Errorf("%q is not in\n%s", want, p.Text)
		}
	}
	dir := filepath.Join(t.TempDir(), "plots")
	if err := Save(dir, p.Plots); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dispatch-throughput", "dispatch-waterfall", "dispatch-overhead"} {
		if data, err := os.ReadFile(filepath.Join(dir, name+".svg")); err != nil || !strings.Contains(string(data), "</svg>") {
			t.Errorf("%s: %v, %d bytes", name, err, len(data))
		}
	}
}

func TestPageOfKernelsHasARoofline(t *testing.T) {
	p, err := Make(load(t, `{`+machine+`,"settings":{"scenario":"kernels","kernel":"avx2","threads":2},"results":[
{"scenario":"kernels","batch":1,"quant":"Q4_K","kernel":"avx2","picks":"uniform","tokens_per_s":582,"ms_per_dispatch":1.72,"gops":88,"experts_touched":8,"expert_bytes":5300000,"pairs":10,"pairs_dropped":5},
{"scenario":"kernels","batch":512,"quant":"Q4_K","kernel":"avx2","picks":"uniform","tokens_per_s":1862,"ms_per_dispatch":275,"gops":281,"experts_touched":256,"expert_bytes":5300000,"int8_peak_share":0.36,"pairs":5}]}`), "p")
	if err != nil || len(p.Plots) != 1 || p.Plots[0].File() != "kernels-roofline.svg" || !strings.Contains(p.Text, "| Q4_K | 512 | 275 | 1,862 | 281 | 36 % |  | 5 of 5 |") {
		t.Errorf("%v: %+v", err, p)
	}
}

func TestPageOfAModelHasItsThroughput(t *testing.T) {
	p, err := Make(load(t, `{`+machine+`,"settings":{"scenario":"model"},"results":[
{"kind":"decode","batch":1,"tokens_per_s":129,"ms_per_step":7.75},{"kind":"decode","batch":8,"tokens_per_s":300,"ms_per_step":26},
{"kind":"prefill","batch":512,"tokens_per_s":900,"ms_per_step":570}]}`), "p")
	if err != nil || len(p.Plots) != 1 || p.Plots[0].File() != "model-throughput.svg" || !strings.Contains(p.Text, "](p/model-throughput.svg)") {
		t.Fatalf("%v: %+v", err, p)
	}
	if err := Save(t.TempDir(), p.Plots); err != nil {
		t.Error(err)
	}
}

func TestOtherScenariosHavePages(t *testing.T) {
	for want, text := range map[string]string{
		"| decode | 1 | 7.75 | 129 |":    `{` + machine + `,"settings":{"scenario":"model"},"results":[{"kind":"decode","batch":1,"tokens_per_s":129,"ms_per_step":7.75}]}`,
		"| frames | package ws | 1.39 |": `{` + machine + `,"settings":{"scenario":"wire"},"results":[{"path":"frames","way":"package ws","gb_per_s":1.39}]}`,
		"| 64 | 500 | 490 | 98 % | 12.5 | 5 of 6 | yes |": `{` + machine + `,"settings":{"scenario":"serve","model":"m"},"results":[
{"streams":64,"direct_tokens_per_s":500,"http_tokens_per_s":490,"ratio":0.98,"door_us_per_token":12.5,"pairs":6,"pairs_dropped":1,"identical":true}]}`,
		"| idle | heap and stacks | 53.5 KiB | at most 64 | met |": `{` + machine + `,"settings":{"scenario":"relay","sessions":500},"results":[
{"part":"idle","figure":"kib_per_session_end","what":"heap and stacks","unit":"KiB","got":53.5,"want":64,"at_most":true,"verdict":"met"}]}`,
		"| 2 | 1,900 | 1,890 | 0.53 | 0.31 | 64 |": `{` + machine + `,"settings":{"scenario":"audit","every":512},"results":[
{"off_rows_per_s":1800,"on_rows_per_s":1790,"cost_pct":0.56,"judge_pct":0.3,"checked":64},
{"off_rows_per_s":1900,"on_rows_per_s":1890,"cost_pct":0.53,"judge_pct":0.31,"checked":64}],"bars":[{"of":"cost_pct","want":1,"got":0.545,"verdict":"met"}]}`,
		"| frame: bytes | 16008 B | 16008 | met |": `{` + machine + `,"settings":{"scenario":"gate","kernel":"avx2"},"lines":[
{"name":"frame_bytes","kind":"counter","text":"frame: bytes","unit":"B","got":16008,"bound":16008,"verdict":"met"}]}`,
		"123.0 tokens/s over all sequences": `{` + machine + `,"settings":{"scenario":"swarm","workers":100,"simulate_s":60},"plan":{},"result":{"tokens_per_s":123}}`,
		"| b | one layer | 13 ms | 250 | 4.00 | 5.5 % | 252 |  | 1.2 % |": `{` + machine + `,"settings":{"scenario":"reference"},"results":[
{"figure":"b","what":"one layer","rtt_ms":13,"ms_per_token":250,"tokens_per_s":4,"costs_pct":5.5,"arithmetic_ms":252,"published":"1.2 %"}]}`,
		"| batch 512 at 13 ms, pipelined | stub:gpu, 1Gbit/s | `roofline_share` | at least 0.8 | 0.9 | met |": `{` + machine + `,"settings":{"scenario":"bars"},
"runs":[` + dispatched + `],"bars":[{"rtt_ms":13,"batch":512,"pipelined":true,"worker":"stub:gpu","up_bps":1000000000,"of":"roofline_share","want":0.8,"got":0.9,"verdict":"met"}]}`,
	} {
		p, err := Make(load(t, text), "p")
		if err != nil || !strings.Contains(p.Text, want) {
			t.Errorf("%v: %q is not in %+v", err, want, p)
		}
	}
	if _, err := Make(load(t, `{`+machine+`,"settings":{"scenario":"none"},"results":[]}`), "p"); !errors.Is(err, bench.ErrResults) {
		t.Errorf("a scenario without a page: %v", err)
	}
}

// Two sizes of swarm are one block, and nothing else is touched.
func TestPagesOfOneScenarioBecomeOne(t *testing.T) {
	list := Merge([]*Page{{Scenario: "swarm", Text: "a\n"}, {Scenario: "wire", Text: "w\n"}, {Scenario: "swarm", Text: "b\n", Plots: make([]Plot, 1)}})
	if len(list) != 2 || list[0].Text != "a\n\nb\n" || len(list[0].Plots) != 1 || list[1].Text != "w\n" {
		t.Errorf("%+v", list)
	}
}

// Every scenario that prints results has a place in the page of this repository.
func TestEveryScenarioHasItsMarks(t *testing.T) {
	text, err := os.ReadFile("../../BENCHMARKS.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range bench.Scenarios() {
		if _, err := Update(string(text), []*Page{{Scenario: s.Name}}); err != nil {
			t.Error(err)
		}
	}
}

func TestOnlyWhatIsBetweenMarksChanges(t *testing.T) {
	const text = "# A\n<!-- figures: dispatch -->\nold\n<!-- /figures -->\nby hand\n<!-- figures: wire -->\nkept\n<!-- /figures -->\n"
	got, err := Update(text, []*Page{{Scenario: "dispatch", Text: "\nnew\n\n"}})
	if want := strings.Replace(text, "old", "new", 1); err != nil || got != want {
		t.Errorf("%v: %q, want %q", err, got, want)
	}
	for _, bad := range []string{"", "<!-- figures: dispatch -->\nold", "<!-- figures: dispatch -->\n<!-- figures: wire --><!-- /figures -->"} {
		if _, err := Update(bad, []*Page{{Scenario: "dispatch"}}); !errors.Is(err, ErrMarks) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
