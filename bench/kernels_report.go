package bench

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// KernelsReport is what Kernels has measured, and on what. As JSON it is what docs/bench-json.md tells.
type KernelsReport struct {
	Machine  Machine         `json:"machine"`
	Settings KernelsSettings `json:"settings"`
	Results  []KernelsResult `json:"results"`
	Bars     []BarResult     `json:"bars,omitempty"`
}

// KernelsSettings are what was run, defaults filled in.
type KernelsSettings struct {
	Scenario string  `json:"scenario"`
	Experts  int     `json:"experts"`
	TopK     int     `json:"topk"`
	Hidden   int     `json:"hidden"`
	FFN      int     `json:"ffn"`
	Seed     uint64  `json:"seed"`
	Kernel   string  `json:"kernel"`
	Threads  int     `json:"threads"`
	Budget   float64 `json:"budget_s,omitempty"`
	Pairs    int     `json:"repeat,omitempty"` // pairs of every point; absent: as many as it takes
}

// KernelsResult is one row of the table: one point.
type KernelsResult struct {
	Scenario   string  `json:"scenario"`
	Batch      int     `json:"batch"`
	Quant      string  `json:"quant"`
	Kernel     string  `json:"kernel"`
	Picks      string  `json:"picks"` // uniform, hot, one expert
	TokensPerS float64 `json:"tokens_per_s"`
	Ms         float64 `json:"ms_per_dispatch"`
	XVsBatch1  float64 `json:"x_vs_batch_1,omitempty"`
	XVsUniform float64 `json:"x_vs_uniform,omitempty"`
	Gops       float64 `json:"gops"`            // 10^9 operations a second; a product is two of them
	Touched    float64 `json:"experts_touched"` // by a dispatch, mean
	Weights    int     `json:"expert_bytes"`    // of weights, as they are read
	PeakShare  float64 `json:"int8_peak_share,omitempty"`
	ReadShare  float64 `json:"read_share,omitempty"`
	Allocs     float64 `json:"allocs_per_row"`
	Pairs      int     `json:"pairs"`
	Dropped    int     `json:"pairs_dropped"` // of them, because the machine changed meanwhile
	Identical  *bool   `json:"identical"`

	layer  string  // in the table
	spread float64 // of uniform picks, where hot ones are compared with them
}

// result makes figures of the pairs of a point: medians of those that are kept, or, where too few are, of
// all, and no shares.
func (r *kernelsRun) result(p *point, pairs []pair) KernelsResult {
	s := r.subject
	topK := r.k.TopK
	if s.dense {
		topK = 1
	}
	products := float64(p.rows) * float64(topK) * 3 * float64(r.k.Hidden) * float64(r.k.FFN)
	kept := keep(pairs, p.reads() && s.read)
	x := KernelsResult{
		Scenario: KernelsName, Batch: p.rows, Quant: p.format.String(), Kernel: p.kernel.String(), Picks: p.picks,
		Weights: s.expert, Pairs: len(pairs), Dropped: len(pairs) - len(kept), layer: p.layer(r.variant),
	}
	if x.noisy() {
		kept = pairs
	}
	var f figures
	for i := range kept {
		f.add(&kept[i], products, s.expert)
	}
	seconds := middle(f.seconds)
	x.Ms, x.TokensPerS = round(1000*seconds), round(float64(p.rows)/seconds)
	x.Gops = round(giga(2 * products / seconds))
	x.Touched = round(f.touched / float64(len(kept)))
	x.Allocs = round(float64(f.allocs) / float64(p.rows))
	if !x.noisy() {
		x.PeakShare, x.ReadShare = round(middle(f.peak)), round(middle(f.read))
		x.XVsUniform, x.spread = round(middle(f.against)), spreadOf(f.uniform)
	}
	if one := r.report.batch1(&x); one != nil {
		x.XVsBatch1 = round(x.TokensPerS / one.TokensPerS)
	}
	return x
}

// figures are those of single pairs.
type figures struct {
	seconds []float64 // a dispatch
	peak    []float64 // share
	read    []float64
	against []float64 // rate over that of uniform picks
	uniform []float64 // rate of uniform picks, in what the peak makes at the same time
	touched float64   // sum
	allocs  uint64    // of a dispatch, the fewest: other goroutines may allocate meanwhile
}

func (f *figures) add(p *pair, products float64, expert int) {
	n, l := float64(p.run.dispatches), p.limits()
	seconds := p.run.took.Seconds() / n
	f.seconds = append(f.seconds, seconds)
	f.touched += float64(p.run.touched) / n
	if l.peak > 0 {
		f.peak = append(f.peak, products/seconds/l.peak)
	}
	if l.read > 0 {
		f.read = append(f.read, float64(p.run.touched*expert)/p.run.took.Seconds()/l.read)
	}
	if p.run.against > 0 {
		f.against = append(f.against, float64(p.run.against)/float64(p.run.took))
		f.uniform = append(f.uniform, n/p.run.against.Seconds()/max(l.peak, 1))
	}
	if len(f.seconds) == 1 || p.run.allocs < f.allocs {
		f.allocs = p.run.allocs
	}
}

// spreadOf is how much figures differ, as a part of their median.
func spreadOf(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	return (slices.Max(list) - slices.Min(list)) / middle(list)
}

// batch1 returns the result of a single row of the same layer; nil when there is none. A single row is its
// own.
func (r *KernelsReport) batch1(x *KernelsResult) *KernelsResult {
	if x.Picks != picksUniform {
		return nil
	}
	if x.Batch == 1 {
		return x
	}
	for i := range r.Results {
		if y := &r.Results[i]; y.Batch == 1 && y.layer == x.layer && y.Picks == x.Picks {
			return y
		}
	}
	return nil
}

// noisy reports whether too few pairs are left to tell shares.
func (x *KernelsResult) noisy() bool { return x.Pairs-x.Dropped < min(pairsKept, x.Pairs) }

// name is the point in words.
func (x *KernelsResult) name() string { return pointName(x.layer, x.Batch) }

// kernelsColumns of the table of Kernels. With two spaces between them they fit Columns.
var kernelsColumns = []column[KernelsResult]{
	{"layer", -13, func(r *KernelsResult) string { return r.layer }},
	{"rows", 4, func(r *KernelsResult) string { return strconv.Itoa(r.Batch) }},
	{"ms/dispatch", 11, func(r *KernelsResult) string { return digits(r.Ms) }},
	{"tokens/s", 8, func(r *KernelsResult) string { return digits(r.TokensPerS) }},
	{"GOP/s", 6, func(r *KernelsResult) string { return digits(r.Gops) }},
	{"of int8 peak", 12, func(r *KernelsResult) string { return r.share(r.PeakShare) }},
	{"of read rate", 12, func(r *KernelsResult) string { return r.share(r.ReadShare) }},
	{"pairs", 8, func(r *KernelsResult) string { return fmt.Sprintf("%d of %d", r.Pairs-r.Dropped, r.Pairs) }},
	{"identical", 9, func(r *KernelsResult) string { return yes(r.Identical) }},
}

// NewKernelsTable returns a table of the results of Kernels that prints to w.
func NewKernelsTable(w io.Writer) *Table[KernelsResult] {
	return &Table[KernelsResult]{w, kernelsColumns}
}

// share writes a share of a limit.
func (x *KernelsResult) share(v float64) string { return shareOf(v, x.noisy()) }

// shareOf writes a share of a limit; 0: there is none.
func shareOf(v float64, noisy bool) string {
	switch {
	case noisy:
		return "noisy"
	case v == 0:
		return "-"
	}
	return percent(100 * v)
}

// Empty reports whether nothing was measured.
func (r *KernelsReport) Empty() bool { return r == nil || len(r.Results) == 0 }

// Mistaken says where the same rows had different answers; empty: nowhere.
func (r *KernelsReport) Mistaken() string {
	if bad := r.Different(); len(bad) > 0 {
		return fmt.Sprintf("the same rows had different answers at %s; run kvasir doctor", strings.Join(bad, "; "))
	}
	return ""
}

// Different returns the points whose answers were not always the same.
func (r *KernelsReport) Different() []string {
	var list []string
	for i := range r.Results {
		if x := &r.Results[i]; x.Identical != nil && !*x.Identical {
			list = append(list, x.name())
		}
	}
	return list
}

// Remarks says what has to be known beside the table.
func (r *KernelsReport) Remarks() []string {
	if r.Empty() {
		return nil
	}
	m := &r.Machine
	lines := []string{fmt.Sprintf("The %s kernels have no loop that tells the peak: there are no shares.", r.Settings.Kernel)}
	if m.Int8Peak > 0 {
		text := fmt.Sprintf("This machine at best: %s GOP/s of int8 with %s", digits(m.Int8Peak), r.Settings.Kernel)
		if m.Read > 0 {
			text += fmt.Sprintf(", and memory read at %s GB/s", digits(m.Read))
		}
		if !slices.ContainsFunc(r.Results, func(x KernelsResult) bool { return x.ReadShare > 0 }) {
			text += ". The layer is too small to tell a share of that: caches hold part of it"
		}
		lines = []string{text + "."}
	}
	pairs, dropped := 0, 0
	for i := range r.Results {
		pairs += r.Results[i].Pairs
		dropped += r.Results[i].Dropped
	}
	text := fmt.Sprintf("Medians of pairs: a point, and the limits before and after it. %d of %d pairs were dropped", dropped, pairs)
	if dropped > 0 {
		text += ", because the limits before and after differed by more than 5 %"
	}
	return append(lines, text+".")
}

// Words says what the figures mean.
func (r *KernelsReport) Words() []string {
	if r.Empty() {
		return nil
	}
	lines := []string{r.batching()}
	unclear := 0
	for i := range r.Results {
		if r.Results[i].noisy() {
			unclear++
		}
	}
	if unclear > 0 {
		lines = append(lines, fmt.Sprintf("Noisy machine: at %d of %d points too few pairs are left to tell shares. Close what keeps this machine busy, and run it again.",
			unclear, len(r.Results)))
	}
	return append(lines, r.verdicts()...)
}

// batching says what batches gain over single rows, and what is allocated.
func (r *KernelsReport) batching() string {
	last, most := 0.0, 0.0
	for i := range r.Results {
		most = max(most, r.Results[i].Allocs)
		last = max(last, r.Results[i].XVsBatch1)
	}
	text := "Nothing is allocated."
	if most > 0 {
		text = fmt.Sprintf("Up to %s allocations a row.", digits(most))
	}
	if last > 1 {
		text = fmt.Sprintf("Batches give up to %.1f x the tokens/s of single rows. ", last) + text
	}
	return text
}
