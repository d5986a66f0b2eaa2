package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"kvasir/kernels/variant"
)

// Figures that a bar of a path may be set for. Their names are those of the JSON, where it has them.
const (
	ofTime     = "x_rtt_and_kernels" // time of a dispatch over round trip and experts
	ofRoofline = "roofline_share"
	ofOverhead = "rtt_overhead_pct"
	ofBatch1   = "x_vs_batch_1"
)

// Bars of paths. A dispatch of one remote layer takes little more than its round trip and its experts; with
// several under way nothing is lost but what the slowest part asks for.
const (
	timeMost     = 1.15
	rooflineBar  = 0.8
	overheadMost = 2.0
	serialLeast  = 60.0 // on the anchor, of batch 512 against a single row
	pipedLeast   = 77.0
)

// PathBar is a figure beside its bar.
type PathBar struct {
	RTT       float64 `json:"rtt_ms"`
	Batch     int     `json:"batch"`
	Pipelined bool    `json:"pipelined"`
	Worker    string  `json:"worker"`
	Up        int64   `json:"up_bps,omitempty"`
	Down      int64   `json:"down_bps,omitempty"`
	Of        string  `json:"of"`
	Want      float64 `json:"want"`
	AtMost    bool    `json:"at_most,omitempty"`
	Got       float64 `json:"got"`
	Verdict   string  `json:"verdict"`
}

// judgeDispatch compares the results with the bars that are set for such a run: the layer of DefaultDispatch,
// one worker, a path without jitter and stalls.
func judgeDispatch(r *Report) []PathBar {
	s, d := &r.Settings, DefaultDispatch()
	if s.Scenario != DispatchName || s.Workers != 1 || s.Jitter != 0 || s.Stall != "" || s.Quant != d.Quant.String() ||
		s.Experts != d.Experts || s.TopK != d.TopK || s.Hidden != d.Hidden || s.FFN != d.FFN {
		return nil
	}
	var list []PathBar
	for i := range r.Results {
		x := &r.Results[i]
		if x.kind() != far {
			continue
		}
		if s.Worker == workerCPU {
			list = r.barsOfKernels(list, x)
		} else if x.Batch == d.Batch && x.piped() {
			list = append(list, r.bar(x, ofRoofline, rooflineBar, x.Roofline, false))
			if *x.RTT == 13 && x.RTTOverhead != nil && s.Up == 0 && s.Down == 0 {
				list = append(list, r.bar(x, ofOverhead, overheadMost, *x.RTTOverhead, true))
			}
		}
	}
	return list
}

// barsOfKernels are those of workers that compute, at 13 ms, without a limit of the line.
func (r *Report) barsOfKernels(list []PathBar, x *Result) []PathBar {
	s, d := &r.Settings, DefaultDispatch()
	if *x.RTT != 13 || s.Up != 0 || s.Down != 0 || x.Batch != 1 && x.Batch != d.Batch {
		return list
	}
	if l := r.find(x.Batch, local); l != nil && !x.piped() {
		list = append(list, r.bar(x, ofTime, timeMost, x.Ms/(*x.RTT+l.Ms), true))
	}
	if x.Batch == 1 || x.XVsBatch1 == 0 {
		return list
	}
	// How much a large batch gains follows from the kernels: it is set for one machine.
	want := serialLeast
	if x.piped() {
		want = pipedLeast
	}
	b := r.bar(x, ofBatch1, want, x.XVsBatch1, false)
	if !r.Machine.isAnchor(s.Threads) && b.Verdict != noisy && b.Verdict != few {
		b.Verdict = reported
	}
	list = append(list, b)
	if x.piped() && x.RTTOverhead != nil {
		b := r.bar(x, ofOverhead, overheadMost, *x.RTTOverhead, true)
		b.Verdict = reported // workers take the processors that relay and backbone would have
		list = append(list, b)
	}
	return list
}

// isAnchor reports whether bars are set for this machine.
func (m *Machine) isAnchor(threads int) bool {
	return strings.Contains(m.CPU, anchor.cpu) && threads == anchor.threads && slices.Contains(m.Features, variant.AVX512VNNI.String()) &&
		m.Int8Peak >= anchor.least && m.Int8Peak <= anchor.most
}

// bar judges one figure.
func (r *Report) bar(x *Result, of string, want, got float64, atMost bool) PathBar {
	s := &r.Settings
	b := PathBar{
		RTT: *x.RTT, Batch: x.Batch, Pipelined: x.piped(), Worker: s.Worker, Up: s.Up, Down: s.Down,
		Of: of, Want: want, AtMost: atMost, Got: math.Round(got*1000) / 1000,
	}
	switch {
	case x.Pairs < pairsLeast:
		b.Verdict = few
	case x.noisy:
		b.Verdict = noisy
	case atMost && b.Got <= want, !atMost && b.Got >= want:
		b.Verdict = met
	default:
		b.Verdict = missed
	}
	return b
}

// name says what the bar is set for.
func (b *PathBar) name() string {
	name := fmt.Sprintf("batch %d at %s", b.Batch, pathName(b.RTT))
	if b.Pipelined {
		name += ", pipelined"
	}
	return name
}

// line says what the workers and their lines are.
func (b *PathBar) line() string {
	if b.Up == 0 && b.Down == 0 {
		return b.Worker + ", no limit"
	}
	return fmt.Sprintf("%s, %vbit/s", b.Worker, Rate(max(b.Up, b.Down)))
}

// quantity writes a figure with its unit.
func (b *PathBar) quantity(f float64) string {
	switch b.Of {
	case ofTime:
		return fmt.Sprintf("%.2f x RTT + experts", f)
	case ofRoofline:
		return fmt.Sprintf("%.0f %% of the roofline", 100*f)
	case ofOverhead:
		return fmt.Sprintf("%.1f %% lost to the RTT", f)
	}
	return fmt.Sprintf("%.0f x batch 1", f)
}

// pathBarsFormat is a line of the table of bars, at most Columns wide.
const pathBarsFormat = "%-30s %-19s %-24s %-9s %s"

// pathVerdicts are the bars as lines of a table.
func pathVerdicts(bars []PathBar) []string {
	if len(bars) == 0 {
		return nil
	}
	lines := []string{fmt.Sprintf(pathBarsFormat, "bar", "workers, line", "wanted", "measured", "verdict")}
	for i := range bars {
		b := &bars[i]
		side := ">= "
		if b.AtMost {
			side = "<= "
		}
		got, _, _ := strings.Cut(b.quantity(b.Got), " of")
		got, _, _ = strings.Cut(got, " lost")
		if b.Of == ofTime || b.Of == ofBatch1 {
			got, _, _ = strings.Cut(got, " x ")
			got += " x"
		}
		lines = append(lines, fmt.Sprintf(pathBarsFormat, b.name(), b.line(), side+b.quantity(b.Want), got, b.Verdict))
	}
	return lines
}

// missedBars are those that were missed, in words.
func missedBars(bars []PathBar) []string {
	var list []string
	for i := range bars {
		if b := &bars[i]; b.Verdict == missed {
			list = append(list, fmt.Sprintf("%s (%s): %s, bar %s", b.name(), b.line(), b.quantity(b.Got), b.quantity(b.Want)))
		}
	}
	return list
}

// Missed returns the bars that were missed, in words.
func (r *Report) Missed() []string { return missedBars(r.Bars) }
