package bench

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// barReport is of a run that bars are set for.
func barReport(worker string, results ...Result) *Report {
	r := madeReport(results...)
	d := DefaultDispatch()
	r.Settings = Settings{
		Scenario: DispatchName, Experts: d.Experts, TopK: d.TopK, Hidden: d.Hidden, FFN: d.FFN, Quant: "Q4_K",
		Workers: 1, Worker: worker, RTT: 13, Threads: 2,
	}
	for i := range r.Results {
		r.Results[i].Pairs = 5
	}
	return r
}

func TestBarsOfPathsAreJudged(t *testing.T) {
	piped := made(512, far, 100)
	piped.Pipelined, piped.Flights = new(true), 3
	r := barReport(workerCPU, made(1, local, 1), made(1, near, 2), made(1, far, 16), made(512, local, 100),
		made(512, near, 101), made(512, far, 114), piped)
	f := func(want ...string) {
		t.Helper()
		var got []string
		for _, b := range judgeDispatch(r) {
			got = append(got, b.Of+" "+b.Verdict)
		}
		if strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("judged %q, want %q", got, want)
		}
	}
	// 16 of 14 ms is 1.143; 512 rows of 114 ms over one of 16 is 72 x.
	f("x_rtt_and_kernels met", "x_rtt_and_kernels met", "x_vs_batch_1 reported", "x_vs_batch_1 reported", "rtt_overhead_pct reported")
	r.Machine = Machine{CPU: "AMD EPYC", Features: []string{"avx512vnni"}, Int8Peak: 1817}
	r.Results[2].Ms, r.Results[6].XVsBatch1 = 17, 76
	f("x_rtt_and_kernels missed", "x_rtt_and_kernels met", "x_vs_batch_1 met", "x_vs_batch_1 missed", "rtt_overhead_pct reported")
	r.Bars = judgeDispatch(r)
	if bad := r.Missed(); len(bad) != 2 || !strings.Contains(bad[0], "batch 1 at 13 ms (cpu, no limit): 1.21 x RTT + experts, bar 1.15") {
		t.Errorf("missed %q", bad)
	}
	for _, line := range pathVerdicts(r.Bars) {
		if n := utf8.RuneCountInString(line); n > Columns {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	r.Results[2].noisy, r.Results[5].Pairs = true, 4
	f("x_rtt_and_kernels noisy machine", "x_rtt_and_kernels too few pairs", "x_vs_batch_1 too few pairs", "x_vs_batch_1 missed", "rtt_overhead_pct reported")
	for name, spoil := range map[string]func(*Settings){
		"another layer": func(s *Settings) { s.FFN = 512 },
		"jitter":        func(s *Settings) { s.Jitter = 1 },
		"two workers":   func(s *Settings) { s.Workers = 2 },
		"a line's rate": func(s *Settings) { s.Up = 1e8 },
	} {
		s := r.Settings
		spoil(&r.Settings)
		f()
		if t.Failed() {
			t.Fatal(name)
		}
		r.Settings = s
	}
}

func TestBarsOfStubsAreSharesOfTheRoofline(t *testing.T) {
	piped := made(512, far, 100)
	piped.Pipelined, piped.Flights, piped.Roofline = new(true), 3, 0.81
	r := barReport(GPU.String(), made(512, near, 90), piped)
	r.Results[1].RTTOverhead = new(2.1)
	got := judgeDispatch(r)
	if len(got) != 2 || got[0].Of != ofRoofline || got[0].Verdict != met || got[1].Of != ofOverhead || got[1].Verdict != missed {
		t.Errorf("judged %+v", got)
	}
	r.Settings.Up = 1e9 // what the round trip costs is judged without a limit of the line
	if got := judgeDispatch(r); len(got) != 1 || got[0].Of != ofRoofline {
		t.Errorf("judged %+v", got)
	}
}
