package bench

import (
	"fmt"
	"slices"
	"strings"

	"kvasir/kernels/quant"
	"kvasir/kernels/variant"
)

// Figures that a bar may be set for. Their names are those of the JSON.
const (
	ofTokens  = "tokens_per_s"
	ofPeak    = "int8_peak_share"
	ofRead    = "read_share"
	ofUniform = "x_vs_uniform"
)

// bar is what a figure has to come to, on the layer of DefaultKernels.
type bar struct {
	format quant.Format
	picks  string
	rows   int
	of     string
	want   float64
	kernel variant.Variant // 0: the active one
}

// judged is the variant whose figures are judged. The others' are reported.
const judged = variant.AVX512VNNI

// bars. Those in tokens a second and in shares of the peak are for the anchor, on which others were measured:
// how much of its peak a processor can reach depends on the rest of it. The others are for every processor
// with the judged variant.
var bars = []bar{
	{quant.Q4K, picksUniform, 1, ofTokens, 1200, 0},
	{quant.Q4K, picksUniform, 1, ofRead, 0.85, 0},
	{quant.Q4K, picksUniform, 8, ofTokens, 1300, 0},
	{quant.Q4K, picksUniform, 8, ofRead, 0.85, 0},
	{quant.Q4K, picksUniform, 64, ofTokens, 2700, 0},
	{quant.Q4K, picksUniform, 64, ofRead, 0.85, 0},
	{quant.Q4K, picksUniform, 128, ofTokens, 4200, 0},
	{quant.Q4K, picksUniform, 512, ofTokens, 6600, 0},
	{quant.Q4K, picksUniform, 512, ofPeak, 0.55, 0},
	{quant.Q4K, picksHot, 512, ofUniform, 1, 0}, // less the spread of uniform picks
	{quant.Q5K, picksUniform, 512, ofPeak, 0.45, 0},
	{quant.Q6K, picksUniform, 512, ofPeak, 0.42, 0},
	{quant.Q4K, picksDense, 64, ofPeak, 0.49, 0},
	{quant.Q8_0, picksDense, 64, ofPeak, 0.42, 0},
	{quant.Q4K, picksUniform, 512, ofPeak, 0.24, variant.AVX2},
}

// anchor is the machine that the bars in tokens a second are set for: two cores of a Zen 5, with two
// threads. Its processor has no other name than its predecessors, but none of them comes near its peak.
var anchor = struct {
	cpu         string
	threads     int
	least, most float64 // int8 peak, GOP/s
}{"AMD EPYC", 2, 1600, 2200}

// Verdicts on a figure.
const (
	met      = "met"
	missed   = "missed"
	reported = "reported"      // the bar is set for other machines, or for other work
	noisy    = "noisy machine" // too few pairs were kept
	few      = "too few pairs" // were measured
	unknown  = "not measured"  // there is no limit to compare with
)

// BarResult is a figure beside its bar.
type BarResult struct {
	Quant   string  `json:"quant"`
	Kernel  string  `json:"kernel"`
	Picks   string  `json:"picks"`
	Batch   int     `json:"batch"`
	Of      string  `json:"of"` // the name of the figure among those of a result
	Want    float64 `json:"want"`
	Got     float64 `json:"got,omitempty"`
	Verdict string  `json:"verdict"`

	layer string
}

// judge compares the results with the bars. There are none for another layer than the usual one.
func (r *kernelsRun) judge() []BarResult {
	if !r.k.usual() {
		return nil
	}
	return judge(&r.report, r.variant)
}

func judge(r *KernelsReport, active variant.Variant) []BarResult {
	var list []BarResult
	m := &r.Machine
	onAnchor := strings.Contains(m.CPU, anchor.cpu) && r.Settings.Threads == anchor.threads &&
		m.Int8Peak >= anchor.least && m.Int8Peak <= anchor.most
	for i := range bars {
		b := &bars[i]
		x := r.at(b, active)
		if x == nil {
			continue
		}
		v := BarResult{
			Quant: x.Quant, Kernel: x.Kernel, Picks: x.Picks, Batch: x.Batch, Of: b.of, Want: b.want,
			Got: x.figure(b.of), layer: x.layer,
		}
		if b.of == ofUniform {
			v.Want = round(b.want - min(x.spread, peakDrift))
		}
		switch {
		case active != judged || !onAnchor && (b.of == ofTokens || b.of == ofPeak):
			v.Verdict = reported
		case v.Got == 0 && x.Pairs >= pairsLeast && !x.noisy():
			v.Verdict = unknown
		default:
			v.Verdict = pairsVerdict(x.Pairs, x.noisy(), v.Got, v.Want)
		}
		list = append(list, v)
	}
	return list
}

// pairsVerdict is that on a figure of so many pairs, of which too few were kept where the machine was noisy.
func pairsVerdict(pairs int, tooNoisy bool, got, want float64) string {
	switch {
	case pairs < pairsLeast:
		return few
	case tooNoisy:
		return noisy
	case got >= want:
		return met
	}
	return missed
}

// at returns the result that a bar is for; nil: not measured. On a processor whose best is the variant of a
// bar, that variant's own bar does not exist: it is a share of a better one's peak.
func (r *KernelsReport) at(b *bar, active variant.Variant) *KernelsResult {
	kernel := b.kernel
	if kernel == 0 {
		kernel = active
	} else if kernel == active {
		return nil
	}
	for i := range r.Results {
		x := &r.Results[i]
		if x.Quant == b.format.String() && x.Kernel == kernel.String() && x.Picks == b.picks && x.Batch == b.rows {
			return x
		}
	}
	return nil
}

// figure returns one by its name; 0: not measured.
func (x *KernelsResult) figure(of string) float64 {
	switch of {
	case ofTokens:
		return x.TokensPerS
	case ofPeak:
		return x.PeakShare
	case ofRead:
		return x.ReadShare
	case ofUniform:
		return x.XVsUniform
	}
	panic("BUG: no figure " + of)
}

// name says what the bar is set for.
func (v *BarResult) name() string { return pointName(v.layer, v.Batch) }

// quantity writes a figure with its unit.
func (v *BarResult) quantity(f float64) string {
	switch v.Of {
	case ofTokens:
		return digits(f) + " tokens/s"
	case ofPeak:
		return fmt.Sprintf("%.1f %% of the int8 peak", 100*f)
	case ofRead:
		return fmt.Sprintf("%.1f %% of what memory allows", 100*f)
	}
	return fmt.Sprintf("%.2f x uniform picks", f)
}

// Missed returns the bars that were missed, in words.
func (r *KernelsReport) Missed() []string {
	var list []string
	for i := range r.Bars {
		if v := &r.Bars[i]; v.Verdict == missed {
			list = append(list, fmt.Sprintf("%s: %s, bar %s", v.name(), v.quantity(v.Got), v.quantity(v.Want)))
		}
	}
	return list
}

// barsFormat is a line of the table of bars, at most Columns wide.
const barsFormat = "%-26s%-30s%-30s%s"

// verdicts are the bars as lines of a table.
func (r *KernelsReport) verdicts() []string {
	if len(r.Bars) == 0 {
		return []string{"Bars are set for the layer of Qwen3.5-122B-A10B in full, not for this one."}
	}
	var lines []string
	switch {
	case r.Settings.Kernel != judged.String():
		lines = append(lines, fmt.Sprintf("Bars are set for %s kernels. What this machine does with %s is reported beside them, not judged:",
			judged, r.Settings.Kernel))
	case slices.ContainsFunc(r.Bars, func(v BarResult) bool { return v.Verdict == reported }):
		lines = append(lines, "Bars in tokens/s and in shares of the peak are set for two cores of a Zen 5. This is another machine, or a busy one: they are reported, not judged.")
	}
	lines = append(lines, fmt.Sprintf(barsFormat, "bar", "wanted, at least", "measured", "verdict"))
	for i := range r.Bars {
		v := &r.Bars[i]
		got := "-"
		if v.Got > 0 {
			got = v.quantity(v.Got)
		}
		lines = append(lines, fmt.Sprintf(barsFormat, v.name(), v.quantity(v.Want), got, v.Verdict))
	}
	return lines
}
