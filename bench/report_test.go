package bench

import (
	"encoding/json"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"kvasir/kernels/cpu"
	"kvasir/kernels/variant"
)

// made returns a result with times in milliseconds, one a round, ascending.
func made(batch int, k kind, times ...int) Result {
	r := Result{Scenario: DispatchName, Batch: batch, Pipelined: new(false)}
	for _, ms := range times {
		r.times = append(r.times, time.Duration(ms)*time.Millisecond)
	}
	m := median(r.times)
	r.Ms, r.TokensPerS = milliseconds(m), round(float64(batch)/m.Seconds())
	if k != local {
		r.Workers, r.RTT, r.Identical = 1, new(0.0), new(true)
		r.BytesOut, r.BytesBack = 1241, 2793.5
	}
	if k == far {
		r.RTT = new(13.0)
	}
	return r
}

// madeReport puts results of three ways together, the round trip's cost computed.
func madeReport(results ...Result) *Report {
	r := &Report{Settings: Settings{RTT: 13, Got: &Pings{Median: 13.1, P95: 13.4, Count: 900}}, Results: results}
	for i := range r.Results {
		x := &r.Results[i]
		if one := r.find(1, x.kind()); one != nil {
			x.XVsBatch1 = round(x.TokensPerS / one.TokensPerS)
		}
		if x.kind() == far {
			zero := r.find(x.Batch, near)
			x.RTTOverhead = new(round(100 * (x.Ms/zero.Ms - 1)))
		}
	}
	return r
}

// TestJSONNamesAreThoseOfTheDesign holds every name, and that what was not measured is absent and not 0.
func TestJSONNamesAreThoseOfTheDesign(t *testing.T) {
	r := madeReport(made(1, local, 5), made(1, near, 8), made(1, far, 20))
	r.Machine = Machine{CPU: "x", Cores: 2, Features: []string{"avx2"}, Go: "go1.26.0", Commit: "c0ffee", Int8Peak: 1817, Read: 59}
	r.Results[0].Allocs = new(0.0)
	r.Settings = Settings{
		Scenario: DispatchName, Experts: 256, TopK: 8, Hidden: 3072, FFN: 1024, Quant: "Q4_K", Seed: 1, Weights: 9,
		Kernel: "portable", Threads: 2, Workers: 1, Worker: "cpu", RTT: 13, Got: &Pings{13.1, 13.4, 900},
		Jitter: 1, Up: 1e6, Down: 2e6, Stall: "1s/2s", Paths: []PathSettings{{RTT: 13, Idle: &Pings{13, 13, 8}, UpGot: 3, DownGot: 4}},
		Budget: 110, Batches: []int{1}, Rounds: []int{3}, LeftOut: []int{2},
	}
	got, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"machine":{"cpu":"x","cores":2,"features":["avx2"],"go":"go1.26.0","commit":"c0ffee","int8_peak_gops":1817,"read_gbps":59},` +
		`"settings":{"scenario":"dispatch","experts":256,"topk":8,"hidden":3072,"ffn":1024,"quant":"Q4_K","seed":1,` +
		`"weight_bytes":9,"kernel":"portable","threads":2,"workers":1,"worker":"cpu","rtt_ms":13,` +
		`"rtt_got":{"median_ms":13.1,"p95_ms":13.4,"count":900},"jitter_ms":1,"up_bps":1000000,"down_bps":2000000,"stall":"1s/2s",` +
		`"paths":[{"rtt_ms":13,"idle":{"median_ms":13,"p95_ms":13,"count":8},"up_got_bps":3,"down_got_bps":4}],"budget_s":110,"batches":[1],"rounds":[3],"left_out":[2]},` +
		`"results":[` +
		`{"scenario":"dispatch","batch":1,"pipelined":false,"tokens_per_s":200,"ms_per_dispatch":5,"x_vs_batch_1":1,"allocs_per_row":0},` +
		`{"scenario":"dispatch","batch":1,"workers":1,"rtt_ms":0,"pipelined":false,"tokens_per_s":125,"ms_per_dispatch":8,` +
		`"x_vs_batch_1":1,"bytes_out_per_row":1241,"bytes_back_per_row":2793.5,"identical":true},` +
		`{"scenario":"dispatch","batch":1,"workers":1,"rtt_ms":13,"pipelined":false,"tokens_per_s":50,"ms_per_dispatch":20,` +
		`"x_vs_batch_1":1,"rtt_overhead_pct":150,"bytes_out_per_row":1241,"bytes_back_per_row":2793.5,"identical":true}]}`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestMachineIsDescribed(t *testing.T) {
	m := ReadMachine()
	if m.CPU == "" || m.Cores < 1 || m.Features == nil || m.Go != runtime.Version() {
		t.Errorf("%+v", m)
	}
	if b, err := cpu.Default(); err != nil || (m.Int8Peak > 0) != (b.Variant() != variant.Portable) || m.Int8Peak != ReadMachine().Int8Peak {
		t.Errorf("%v: measured at the start: %+v, and then %+v; want the same, with a peak but for portable kernels", err, m, ReadMachine())
	}
	f := func(want string, settings ...debug.BuildSetting) {
		t.Helper()
		if got := commit(settings); got != want {
			t.Errorf("commit %q, want %q", got, want)
		}
	}
	revision := debug.BuildSetting{Key: "vcs.revision", Value: "c0ffee"}
	f("")
	f("c0ffee", revision, debug.BuildSetting{Key: "vcs.modified", Value: "false"})
	f("c0ffee+", debug.BuildSetting{Key: "vcs.modified", Value: "true"}, revision)
	f("", debug.BuildSetting{Key: "vcs.modified", Value: "true"})
}

func TestTableIsAlignedAndNarrow(t *testing.T) {
	var b strings.Builder
	table := NewTable(&b)
	r := madeReport(made(512, local, 6412), made(512, near, 6500), made(512, far, 6513))
	piped := r.Results[2]
	piped.Pipelined, piped.Flights, piped.Roofline, piped.Ms, piped.TokensPerS = new(true), 3, 0.9912, 6420, 79.75
	wrong := piped
	wrong.Batch, wrong.Ms, wrong.TokensPerS, wrong.XVsBatch1 = 4096, 1e7, 1e8, 123456
	wrong.BytesOut, wrong.BytesBack, wrong.RTTOverhead = 4e6, 2e6, new(12345.7)
	wrong.RTT, wrong.Identical, wrong.Flights, wrong.Roofline = new(9999.0), new(false), 64, 0.001
	for _, err := range []error{
		table.Head(), table.Row(r.Results[0]), table.Row(r.Results[1]), table.Row(r.Results[2]), table.Row(piped), table.Row(wrong),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := `
batch         path  ms/dispatch   tokens/s  x batch 1  RTT costs  B/row out     back  roofline  same
  512        local         6412      79.85          -          -          -        -         -     -
  512         0 ms         6500      78.77          -          -       1241     2794         -   yes
  512        13 ms         6513      78.61          -      0.2 %       1241     2794         -   yes
  512     13 ms x3         6420      79.75          -      0.2 %       1241     2794      99 %   yes
 4096  9999 ms x64     10000000  100000000     123456  12345.7 %    4000000  2000000     0.1 %    NO
`
	if got := "\n" + b.String(); got != want {
		t.Errorf("got%swant%s", got, want)
	}
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(line) - 1; n > Columns {
			t.Errorf("%d columns: %q", n, line)
		}
	}
}

func TestDigits(t *testing.T) {
	f := func(v float64, want string) {
		t.Helper()
		if got := digits(v); got != want {
			t.Errorf("digits(%v) = %q, want %q", v, got, want)
		}
	}
	f(0.0012, "0.001")
	f(9.9994, "9.999")
	f(9.9996, "10.00")
	f(99.996, "100.0")
	f(999.96, "1000")
	f(123456.7, "123457")
}

func TestWrapKeepsNumbersWithTheirUnits(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if got := Wrap(text); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	word := strings.Repeat("x", 96)
	f("short", "short")
	f(word+" 12 ms more", word+"\n12 ms more")
	f(word+" ab ms more", word+" ab\nms more")
	f(strings.Repeat("y", 150), strings.Repeat("y", 100)+"\n"+strings.Repeat("y", 50))
}

func TestWordsFollowTheFigures(t *testing.T) {
	for _, tt := range []struct {
		name   string
		report *Report
		want   [3]string
	}{
		{"computing", madeReport(
			made(1, local, 60, 61, 62), made(1, near, 65, 66, 67), made(1, far, 79, 80, 81),
			made(8, local, 100, 101, 102), made(8, near, 105, 106, 107), made(8, far, 119, 120, 121),
			made(64, local, 780, 781, 782), made(64, near, 785, 790, 791), made(64, far, 804, 805, 806)), [3]string{
			"Computing is the bound. At batch 64 the experts compute for 781.0 of the 805.0 ms of a dispatch (97 %), the path at 0 ms adds 1.1 %, the round trip 1.9 %.",
			"No batch measured is large enough: at 13 ms batch 64 gives 79.50 tokens/s, 1.19 x those of batch 8; try a larger --batch.",
			"A round trip of 13 ms costs 21 % at batch 1 and 1.9 % at batch 64; the emulated path delivered 13.1 ms (median of 900 pings, 95 % below 13.4 ms).",
		}},
		{"round trip, and a rate that stands", madeReport(
			made(1, local, 1, 1), made(1, near, 2, 2), made(1, far, 15, 15),
			made(2, local, 1, 1), made(2, near, 2, 2), made(2, far, 16, 16),
			made(4, local, 2, 2), made(4, near, 3, 3), made(4, far, 33, 33)), [3]string{
			"The round trip is the bound. At batch 4 the experts compute for 2.000 of the 33.00 ms of a dispatch (6.1 %), the path at 0 ms adds 3.0 %, the round trip 91 %.",
			"Batch 2 is enough: at 13 ms it gives 125.0 tokens/s, the most that was measured.",
			"A round trip of 13 ms costs 650 % at batch 1 and 1000 % at batch 4; the emulated path",
		}},
		{"noise", madeReport(
			made(1, local, 50, 60, 90), made(1, near, 55, 70, 95), made(1, far, 60, 68, 99),
			made(2, local, 100, 110, 200), made(2, near, 100, 105, 160), made(2, far, 100, 130, 140)), [3]string{
			"Computing is the bound. At batch 2 the experts compute for 110.0 of the 130.0 ms of a dispatch (85 %), the path at 0 ms adds less than this run can tell, the round trip less than this run can tell.",
			"Batch 1 is enough: at 13 ms it gives 14.71 tokens/s, 96 % of the best, which is 15.38 at batch 2.",
			"A round trip of 13 ms costs less than this run can tell at batch 1, where times of the same work differ by up to 57 % and less",
		}},
		{"one batch, one round", madeReport(made(4, local, 2), made(4, near, 9), made(4, far, 12)), [3]string{
			"The path itself is the bound: framing, both TLS layers, relaying. At batch 4 the experts compute for 2.000 of the 12.00 ms of a dispatch (17 %), the path at 0 ms adds 58 %, the round trip 25 %, as far as one round tells.",
			"One batch size was measured: ",
			"A round trip of 13 ms costs 33 % at batch 4 (one round); ",
		}},
		{"one round of noise", madeReport(made(4, local, 20), made(4, near, 30), made(4, far, 15)), [3]string{
			"Computing is the bound. At batch 4 the experts compute for all of the 15.00 ms of a dispatch, ",
			"One batch size was measured: ",
			"A round trip of 13 ms costs less than one round can tell at batch 4; ",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			words := tt.report.Words()
			if len(words) != len(tt.want) {
				t.Fatalf("%d lines: %q", len(words), words)
			}
			for i, w := range words {
				if !strings.HasPrefix(w, tt.want[i]) {
					t.Errorf("line %d is\n%s\nwant\n%s", i+1, w, tt.want[i])
				}
			}
		})
	}
}

func TestWordsWithoutResultsAreNone(t *testing.T) {
	if r := (&Report{}); r.Words() != nil || r.Remarks() != nil || r.Different() != nil {
		t.Errorf("%q %q", r.Words(), r.Remarks())
	}
}

func TestLateEmulatorIsSaid(t *testing.T) {
	r := madeReport(made(1, local, 1), made(1, near, 2), made(1, far, 15))
	for median, late := range map[float64]bool{13.1: false, 13.5: false, 13.6: true, 12.4: true, 18: true} {
		r.Settings.Got.Median = median
		if got := strings.Contains(r.Words()[2], "not what was asked for"); got != late {
			t.Errorf("%v ms delivered: said %v, want %v", median, got, late)
		}
	}
	r.Settings.Got = nil
	if got := r.Words()[2]; got != "A round trip of 13 ms costs 650 % at batch 1 (one round)." {
		t.Errorf("without pings: %q", got)
	}
}

func TestRemarksTellOfRoundsAndOfWhatIsMissing(t *testing.T) {
	f := func(s Settings, want string) {
		t.Helper()
		if got := strings.Join((&Report{Settings: s}).Remarks(), "|"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	f(Settings{RTT: 13, Rounds: []int{15, 3, 2}}, "Medians of 2 to 15 rounds a batch; local, 0 ms and 13 ms took turns.")
	f(Settings{Rounds: []int{3, 3}}, "Medians of 3 rounds a batch; local and 0 ms took turns.")
	f(Settings{RTT: 0.5, Rounds: []int{1}, LeftOut: []int{128, 256}, Budget: 110},
		"Medians of 1 round a batch; local, 0 ms and 0.5 ms took turns.|"+
			"Left out: batch 128, 256, for which 1m50s is too short on this machine (--budget).")
	r := &Report{Settings: Settings{RTT: 13, Rounds: []int{3}}, Machine: Machine{Int8Peak: 950}}
	for drift, said := range map[float64]bool{0: false, 0.05: false, -0.049: false, -0.1: true, 0.06: true} {
		r.drift = drift
		if text := strings.Join(r.Remarks(), "|"); strings.Contains(text, "best repeated") != said {
			t.Errorf("a drift of %v: %q", drift, text)
		}
	}
	r.drift = -0.1
	if text := r.Remarks()[1]; !strings.Contains(text, "from 1000 to 900.0 GOP/s") {
		t.Errorf("said %q", text)
	}
}
