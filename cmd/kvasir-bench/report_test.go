package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPrintedResultsBecomePagesAndPlots goes the way from a run to a page.
func TestPrintedResultsBecomePagesAndPlots(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	o := kvasirBench(t, append([]string{"dispatch", "--json", "--plot", filepath.Join(dir, "now")}, small...)...)
	if o.status != statusDone {
		t.Fatalf("%+v", o)
	}
	old := write("old.json", o.stdout)
	if _, err := os.Stat(filepath.Join(dir, "now", "dispatch-throughput.svg")); err != nil {
		t.Error(err)
	}
	page := write("PAGE.md", "# Figures\n<!-- figures: dispatch -->\nold\n<!-- /figures -->\nby hand\n")
	r := kvasirBench(t, "report", old, "--into", page, "--plot", filepath.Join(dir, "plots"))
	text, err := os.ReadFile(page)
	if err != nil || r.status != statusDone || !strings.Contains(string(text), "](plots/dispatch-throughput.svg)") ||
		!strings.Contains(string(text), "by hand") || strings.Contains(string(text), "\nold\n") {
		t.Errorf("%+v, %v:\n%s", r, err, text)
	}
	if c := kvasirBench(t, "compare", old, old); c.status != statusDone || !strings.Contains(c.stdout, "+0.0 %") {
		t.Errorf("%+v", c)
	} else {
		wantNarrow(t, c.stdout)
	}
	other := write("other.json", strings.Replace(o.stdout, `"cpu": "`, `"cpu": "other `, 1))
	none := write("none.json", "{}")
	for want, args := range map[string][]string{
		"results of different machines: the processor of": {"compare", old, other},
		"it names no machine or scenario":                 {"report", none},
		"report needs files of results":                   {"report"},
		"compare needs two files":                         {"compare", old},
		"there is no <!-- figures: dispatch -->":          {"report", old, "--into", none},
		"--batch is not for compare":                      {"compare", old, old, "--batch=3"},
	} {
		o := kvasirBench(t, args...)
		if o.status == statusDone || strings.Count(o.stderr, "\n") != 1 || !strings.Contains(o.stderr, want) {
			t.Errorf("%q: %+v, want %q", args, o, want)
		}
	}
}

func TestGoFormatHasALineARound(t *testing.T) {
	t.Parallel()
	o := kvasirBench(t, "expert", "--format=go", "--quick", "--experts=4", "--topk=2", "--hidden=256", "--ffn=256", "--batch=2", "--repeat=3")
	if o.status != statusDone || !strings.HasPrefix(o.stdout, "goos: ") || strings.Count(o.stdout, "BenchmarkExpert/batch=2-") != 3 {
		t.Errorf("%+v", o)
	}
}
