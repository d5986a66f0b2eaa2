package bench

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strconv"
)

// Figures that a bar of Wire may be set for, beside those of bars.go.
const (
	ofBaseline = "x_vs"
	ofCPU      = "cpu_s_per_gb_end"
	ofAllocs   = "allocs_per_chunk"
)

// WireReport is what Wire has measured, and on what. As JSON it is what docs/bench-json.md tells.
type WireReport struct {
	Machine  Machine       `json:"machine"`
	Settings WireSettings  `json:"settings"`
	Results  []WireResult  `json:"results"`
	Bars     []WireVerdict `json:"bars,omitempty"`
}

// WireSettings are what was run, defaults filled in.
type WireSettings struct {
	Scenario string  `json:"scenario"`
	Bytes    int64   `json:"bytes"`
	Chunk    int     `json:"chunk"`
	Budget   float64 `json:"budget_s,omitempty"`
	Rounds   int     `json:"repeat,omitempty"`
}

// WireResult is one way of one point.
type WireResult struct {
	Scenario string  `json:"scenario"`
	Path     string  `json:"path"`
	Way      string  `json:"way"`
	GBps     float64 `json:"gb_per_s"`
	XVs      float64 `json:"x_vs,omitempty"`             // ours over this one, median of the rounds; absent for ours
	CPU      float64 `json:"cpu_s_per_gb_end,omitempty"` // of both ends and what is between, halved
	Allocs   float64 `json:"allocs_per_chunk"`
	Rounds   int     `json:"rounds"`
}

// WireVerdict is a figure beside its bar.
type WireVerdict struct {
	Path    string  `json:"path"`
	Of      string  `json:"of"`
	Against string  `json:"against,omitempty"`
	Want    float64 `json:"want"`
	AtMost  bool    `json:"at_most,omitempty"`
	Got     float64 `json:"got"`
	Verdict string  `json:"verdict"`
}

// wireResults makes figures of rounds: medians.
func wireResults(p *wirePoint, bytes int64, rounds [][]flowed) []WireResult {
	list := make([]WireResult, len(p.ways))
	chunk := int64(cmp.Or(p.chunk, chunkBytes))
	chunks := float64((bytes + chunk - 1) / chunk)
	for i := range p.ways {
		var rate, factor, cpu, allocs []float64
		for n, f := range rounds[i] {
			rate = append(rate, giga(float64(bytes)/f.took.Seconds()))
			factor = append(factor, float64(f.took)/float64(rounds[0][n].took))
			cpu = append(cpu, f.cpu.Seconds()/2/giga(float64(bytes)))
			allocs = append(allocs, float64(f.allocs)/chunks)
		}
		list[i] = WireResult{
			Scenario: WireName, Path: p.name, Way: p.ways[i].name, GBps: round(middle(rate)),
			CPU: round(middle(cpu)), Allocs: round(middle(allocs)), Rounds: len(rounds[i]),
		}
		if i > 0 {
			list[i].XVs = round(middle(factor))
		}
	}
	return list
}

// judgeWire compares the results of a point with its bars, which are set for the usual number of bytes.
func judgeWire(p *wirePoint, results []WireResult, usual bool) []WireVerdict {
	var list []WireVerdict
	for _, b := range p.bars {
		v := WireVerdict{Path: p.name, Of: b.of, Want: b.want, AtMost: b.atMost}
		x := &results[b.against]
		switch b.of {
		case ofBaseline:
			v.Got, v.Against = x.XVs, x.Way
		case ofCPU:
			v.Got = x.CPU
		case ofAllocs:
			v.Got = math.Round(x.Allocs*100) / 100 // what starts a round counts too
		}
		switch {
		case x.Rounds < wireRoundsLeast:
			v.Verdict = few
		case !usual && b.of != ofAllocs:
			v.Verdict = reported
		case b.of == ofCPU && v.Got == 0:
			v.Verdict = unknown
		case b.atMost && v.Got <= b.want, !b.atMost && v.Got >= b.want:
			v.Verdict = met
		default:
			v.Verdict = missed
		}
		list = append(list, v)
	}
	return list
}

// wireColumns of the table of Wire. With two spaces between them they fit Columns.
var wireColumns = []column[WireResult]{
	{"path", -15, func(r *WireResult) string { return r.Path }},
	{"way", -20, func(r *WireResult) string { return r.Way }},
	{"GB/s", 6, func(r *WireResult) string { return digits(r.GBps) }},
	{"ours/this", 9, func(r *WireResult) string { return filled(r.XVs) }},
	{"CPU s/GB, end", 13, func(r *WireResult) string { return filled(r.CPU) }},
	{"allocs/chunk", 12, func(r *WireResult) string { return strconv.FormatFloat(r.Allocs, 'f', 2, 64) }},
	{"rounds", 6, func(r *WireResult) string { return strconv.Itoa(r.Rounds) }},
}

// NewWireTable returns a table of the results of Wire that prints to t.w.
func NewWireTable(w io.Writer) *Table[WireResult] { return &Table[WireResult]{w, wireColumns} }

// Empty reports whether nothing was measured.
func (r *WireReport) Empty() bool { return r == nil || len(r.Results) == 0 }

// Remarks says what holds for the figures.
func (r *WireReport) Remarks() []string {
	return []string{"Medians of rounds in which the ways took turns. CPU is that of the whole process, halved: one end and half of what is between."}
}

// quantity writes a figure with its unit.
func (v *WireVerdict) quantity(f float64) string {
	switch v.Of {
	case ofCPU:
		return digits(f) + " CPU s a GB and end"
	case ofAllocs:
		return fmt.Sprintf("%.2f allocations a chunk", f)
	}
	return fmt.Sprintf("%.2f x %s", f, v.Against)
}

// wireBarsFormat is a line of the table of bars, at most Columns wide.
const wireBarsFormat = "%-16s%-36s%-30s%s"

// Words are the bars as lines of a table.
func (r *WireReport) Words() []string {
	lines := []string{fmt.Sprintf(wireBarsFormat, "bar", "wanted", "measured", "verdict")}
	for i := range r.Bars {
		v := &r.Bars[i]
		side := "at least "
		if v.AtMost {
			side = "at most "
		}
		lines = append(lines, fmt.Sprintf(wireBarsFormat, v.Path, side+v.quantity(v.Want), v.quantity(v.Got), v.Verdict))
	}
	return lines
}

// Missed returns the bars that were missed, in words.
func (r *WireReport) Missed() []string {
	var list []string
	for i := range r.Bars {
		if v := &r.Bars[i]; v.Verdict == missed {
			list = append(list, fmt.Sprintf("%s: %s, bar %s", v.Path, v.quantity(v.Got), v.quantity(v.Want)))
		}
	}
	return list
}
