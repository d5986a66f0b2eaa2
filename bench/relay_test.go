package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// tinyRelay is the whole scenario, as short as it can be.
func tinyRelay() Relay {
	return Relay{Sessions: 6, Idle: time.Millisecond, Trips: 2, Deaths: 1}
}

func TestRelayMeasuresEveryPart(t *testing.T) {
	if testing.Short() {
		t.Skip("with the race detector its handshakes take long; the parts of the path are raced in wire/relay")
	}
	var begun bool
	rows := 0
	r, err := tinyRelay().Run(t.Context(), Observer[RelayReport, RelayResult]{
		Begin: func(r *RelayReport) { begun = r.Empty() },
		Row:   func(RelayResult) { rows++ },
	})
	if err != nil || !begun || rows != len(r.Results) {
		t.Fatalf("%v, begun %v, %d rows of %d", err, begun, rows, len(r.Results))
	}
	counts := map[string]float64{ // what no machine changes
		"goroutines_worker": 3, "goroutines_backbone": 3, "lost": 0, "sent_away_without_slot": 0,
	}
	for figure, want := range counts {
		if x := r.find(figure); x == nil || x.Got != want {
			t.Errorf("%s: %+v, want %v", figure, x, want)
		}
	}
	for _, figure := range []string{"handshakes_per_s", "kib_per_session_end", "back_s", "accepted_within_1s", "trip_p50_ms", "trip_p99_ms", "uplink_mbit_s"} {
		if x := r.find(figure); x == nil || x.Got <= 0 {
			t.Errorf("%s: %+v, want something", figure, x)
		}
	}
	deaths := 0
	for _, x := range r.Results {
		if x.Part == "death" {
			deaths++
		}
	}
	if x := r.find("trip_p99_ms"); deaths != 6 || x.Verdict != few || r.Mistaken() != "" {
		t.Errorf("%d deaths, want 6; %+v of too few round trips; %q", deaths, x, r.Mistaken())
	}
}

func TestRelayStopsWithItsContext(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	r, err := DefaultRelay().Run(ctx, Observer[RelayReport, RelayResult]{Progress: func(_ float64, doing string) {
		if strings.Contains(doing, "come") {
			stop()
		}
	}})
	if !errors.Is(err, context.Canceled) || !r.Empty() {
		t.Errorf("%v with %d results, want Canceled and none", err, len(r.Results))
	}
}

func TestRelayRefusesSettings(t *testing.T) {
	for _, n := range []int{0, -1, relaySessionsMost + 1} {
		x := DefaultRelay()
		x.Sessions = n
		if err := x.Check(); !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), "--sessions") {
			t.Errorf("%d sessions: %v, want ErrSettings that names the flag", n, err)
		}
	}
}

func TestRelayJudgesWhatHasABar(t *testing.T) {
	f := func(want string, x RelayResult) {
		t.Helper()
		if x.judge(); x.Verdict != want {
			t.Errorf("%+v, want %q", x, want)
		}
	}
	f("", RelayResult{Got: 1})
	f(met, RelayResult{Got: 64, Want: new(64.0), Most: true})
	f(missed, RelayResult{Got: 64.001, Want: new(64.0), Most: true})
	f(missed, RelayResult{Got: 1, Want: new(2.0)})
	f(few, RelayResult{Got: 640, Want: new(64.0), Most: true, few: true})
}

// Everything that the words can say fits the columns, and a bar that is missed is said.
func TestRelayTableAndWordsFit(t *testing.T) {
	r := &RelayReport{Settings: RelaySettings{Sessions: relaySessionsMost, RTT: 30}}
	run := &relayRun{x: Relay{Sessions: relaySessionsMost}, report: *r}
	run.come(time.Minute, time.Minute)
	for _, x := range []RelayResult{
		{Part: "idle", Figure: "kib_per_session_end", Got: 123456, Want: new(64.0), Most: true},
		{Part: "hub restart", Figure: "back_s", Got: 1234.5, Of: relaySessionsMost}, {Figure: "accepted_within_1s", Got: 95},
		{Part: "control", Figure: "trip_p99_ms", Got: 99999, Text: "a control round trip beside 3 answers of 3.597 MB, median"}, {Figure: "uplink_mbit_s", Got: 20},
	} {
		run.add(x)
	}
	var b strings.Builder
	table := NewRelayTable(&b)
	if err := table.Head(); err != nil {
		t.Fatal(err)
	}
	for _, x := range run.report.Results {
		if err := table.Row(x); err != nil {
			t.Fatal(err)
		}
	}
	words := append(run.report.Remarks(), run.report.Words()...)
	if len(words) != 6 || !strings.HasPrefix(words[5], "Missed: ") {
		t.Errorf("words %q", words)
	}
	for _, line := range words {
		b.WriteString(Wrap(line) + "\n")
	}
	for line := range strings.Lines(b.String()) {
		if n := len([]rune(line)) - 1; n > Columns {
			t.Errorf("a line of %d columns: %q", n, line)
		}
	}
	if bad := run.report.Missed(); len(bad) != 1 || !strings.Contains(bad[0], "bar <= 64") {
		t.Errorf("missed %q", bad)
	}
}

func TestCrowdIsTheMostWithinASecond(t *testing.T) {
	start := time.Unix(0, 0)
	f := func(want int, ms ...int) {
		t.Helper()
		var at []time.Time
		for _, n := range ms {
			at = append(at, start.Add(time.Duration(n)*time.Millisecond))
		}
		if got := crowd(at, time.Second); got != want {
			t.Errorf("%v: %d, want %d", ms, got, want)
		}
	}
	f(0)
	f(1, 0, 1000, 2000)
	f(2, 0, 999, 1999)
	f(3, 0, 500, 999, 1400, 3000)
}

func TestSlotsAreCountedOverTheirSpan(t *testing.T) {
	start := time.Unix(0, 0)
	var away []sentAway
	for i := range 400 { // 80 a second, told in whole seconds
		away = append(away, sentAway{start, start.Add(time.Duration(1+i/80) * time.Second)})
	}
	if v, ok := slotsASecond(away); !ok || v != 80 {
		t.Errorf("%v, %v, want 80", v, ok)
	}
	if _, ok := slotsASecond(away[:100]); ok {
		t.Error("two seconds are judged")
	}
	if _, ok := slotsASecond(nil); ok {
		t.Error("nothing is judged")
	}
}

func TestGoroutinesAreToldApartByTheirEnd(t *testing.T) {
	const profile = `goroutine profile: total 7
3 @ 0x1 0x2
# labels: {"` + endLabel + `":"hub"}
#	0x1	a

2 @ 0x3
#	0x3	b

1 @ 0x4
# labels: {"` + endLabel + `":"worker", "x":"y"}

1 @ 0x5
# labels: {"` + endLabel + `":"hub"}
`
	by, err := labels(strings.NewReader(profile))
	if err != nil || fmt.Sprint(by) != "map[hub:4 worker:1]" {
		t.Errorf("%v, %v", by, err)
	}
}
