package bench

import (
	"fmt"
	"io"
	"strings"
)

// RelayReport is what Relay has measured, and on what. As JSON it is what docs/bench-json.md tells.
type RelayReport struct {
	Machine  Machine       `json:"machine"`
	Settings RelaySettings `json:"settings"`
	Results  []RelayResult `json:"results"`
	Wrong    int           `json:"wrong_answers,omitempty"` // of idle sessions that were asked
}

// RelaySettings are what was run, defaults filled in.
type RelaySettings struct {
	Scenario string  `json:"scenario"`
	Sessions int     `json:"sessions"`
	Idle     float64 `json:"idle_s"`
	Trips    int     `json:"trips"`
	Up       int64   `json:"up_bps"` // of the path beside whose full streams control was measured
	RTT      float64 `json:"rtt_ms"`
	Deaths   int     `json:"sessions_a_death"`
}

// RelayResult is one figure, beside its bar where there is one.
type RelayResult struct {
	Scenario string   `json:"scenario"`
	Part     string   `json:"part"`
	Figure   string   `json:"figure"`
	Text     string   `json:"what"`
	Unit     string   `json:"unit,omitempty"`
	Got      float64  `json:"got"`
	Of       int      `json:"of,omitempty"` // sessions, workers or round trips
	Want     *float64 `json:"want,omitempty"`
	Most     bool     `json:"at_most,omitempty"`
	Verdict  string   `json:"verdict,omitempty"`

	few bool // too few to judge
}

// judge compares a figure with its bar.
func (x *RelayResult) judge() {
	switch {
	case x.Want == nil:
	case x.few:
		x.Verdict = few
	case x.Most && x.Got <= *x.Want, !x.Most && x.Got >= *x.Want:
		x.Verdict = met
	default:
		x.Verdict = missed
	}
}

// bar writes what is wanted.
func (x *RelayResult) bar() string {
	switch {
	case x.Want == nil:
		return "-"
	case x.Most:
		return fmt.Sprintf("<= %g", *x.Want)
	}
	return fmt.Sprintf(">= %g", *x.Want)
}

// relayColumns of the table of Relay. With two spaces between them they fit Columns.
var relayColumns = []column[RelayResult]{
	{"part", -11, func(r *RelayResult) string { return r.Part }},
	{"", -54, func(r *RelayResult) string { return r.Text }},
	{"measured", 8, func(r *RelayResult) string {
		if r.Unit == "" && r.Got == float64(int(r.Got)) {
			return fmt.Sprint(int(r.Got))
		}
		return digits(r.Got)
	}},
	{"", -6, func(r *RelayResult) string { return r.Unit }},
	{"bar", 6, (*RelayResult).bar},
	{"met", -3, func(r *RelayResult) string {
		switch r.Verdict {
		case missed:
			return "NO"
		case met:
			return "yes"
		}
		return "-"
	}},
}

// NewRelayTable returns a table of the results of Relay that prints to w.
func NewRelayTable(w io.Writer) *Table[RelayResult] { return &Table[RelayResult]{w, relayColumns} }

// Empty reports whether nothing was measured.
func (r *RelayReport) Empty() bool { return r == nil || len(r.Results) == 0 }

// Mistaken says how many sessions gave other bits than this machine; empty: none.
func (r *RelayReport) Mistaken() string {
	if r.Wrong > 0 {
		return fmt.Sprintf("%d sessions answered with other bits than they should; run kvasir doctor", r.Wrong)
	}
	return ""
}

// find returns a figure by its name; nil: it was not measured.
func (r *RelayReport) find(figure string) *RelayResult {
	for i := range r.Results {
		if r.Results[i].Figure == figure {
			return &r.Results[i]
		}
	}
	return nil
}

// Remarks says what has to be known beside the table.
func (r *RelayReport) Remarks() []string {
	if r.Empty() {
		return nil
	}
	return []string{fmt.Sprintf("A session has four ends, worker, gateway, hub and backbone, and all are in this process and share its cores: a machine that is one of them does a part of this. Workers dial from up to %d addresses of loopback. Death is measured with %d sessions; the silent death of a hop, which takes 45 s to notice, is tested by make soak.",
		relayAddresses, r.Settings.Deaths)}
}

// Words say what sessions cost, what a restart is, and what control takes.
func (r *RelayReport) Words() []string {
	var lines []string
	if rate, cpu := r.find("handshakes_per_s"), r.find("cpu_ms_per_handshake"); rate != nil && cpu != nil {
		lines = append(lines, fmt.Sprintf("%s sessions begin a second here, at %s ms of processor time each: at 80 slots a second a hub's restart takes %s cores of a machine like this for all ends together.",
			digits(rate.Got), digits(cpu.Got), digits(80*cpu.Got/1e3)))
	}
	if kib := r.find("kib_per_session_end"); kib != nil {
		lines = append(lines, fmt.Sprintf("An idle session holds %s KiB at each of its ends: 10,000 of them %s GB at a gateway.", digits(kib.Got), digits(kib.Got*10_000*1024/1e9)))
	}
	if back, most := r.find("back_s"), r.find("accepted_within_1s"); back != nil && most != nil {
		lines = append(lines, fmt.Sprintf("After a restart of the hub all %d are back within %s s, never more than %.0f of them within a second.", back.Of, digits(back.Got), most.Got))
	}
	if trip, line := r.find("trip_p99_ms"), r.find("uplink_mbit_s"); trip != nil && line != nil {
		lines = append(lines, fmt.Sprintf("Beside answers of %s Mbit/s a control message and its answer take %s ms at most, 99 times of 100; the path itself takes %v ms.",
			digits(line.Got), digits(trip.Got), r.Settings.RTT))
	}
	if bad := r.Missed(); len(bad) > 0 {
		lines = append(lines, "Missed: "+strings.Join(bad, "; ")+".")
	}
	return lines
}

// Missed returns the bars that were missed, in words.
func (r *RelayReport) Missed() []string {
	var list []string
	for i := range r.Results {
		if x := &r.Results[i]; x.Verdict == missed {
			list = append(list, strings.TrimSpace(fmt.Sprintf("%s: %s %s", x.Text, digits(x.Got), x.Unit))+", bar "+x.bar())
		}
	}
	return list
}
