package bench

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// ModelReport is what Model has measured, and on what. As JSON it is what docs/bench-json.md tells.
type ModelReport struct {
	Machine  Machine       `json:"machine"`
	Settings ModelSettings `json:"settings"`
	Results  []ModelResult `json:"results"`
	Bars     []ModelBar    `json:"bars,omitempty"`
}

// ModelSettings are what was run, defaults filled in, and what the model took.
type ModelSettings struct {
	Scenario string  `json:"scenario"`
	Model    string  `json:"model"`
	Arch     string  `json:"arch"`
	Layers   int     `json:"layers"`
	Hidden   int     `json:"hidden"`
	Experts  int     `json:"experts"`
	TopK     int     `json:"topk"`
	FFN      int     `json:"ffn"`
	Vocab    int     `json:"vocab"`
	Quant    string  `json:"quant"` // of the experts
	Prompt   int     `json:"prompt"`
	Tokens   int     `json:"tokens"`
	Prefill  int     `json:"prefill,omitempty"`
	Seed     uint64  `json:"seed"`
	Kernel   string  `json:"kernel"`
	Threads  int     `json:"threads"`
	Budget   float64 `json:"budget_s,omitempty"`
	Pairs    int     `json:"repeat,omitempty"` // pairs of every point; absent: as many as it takes

	File        int64    `json:"file_bytes"`
	Load        float64  `json:"load_s"`                    // with the file in the page cache, if it was
	Resident    float64  `json:"resident_mb,omitempty"`     // of the process, 10^6 bytes, when the model was loaded
	Held        float64  `json:"held_mb,omitempty"`         // of that, what came with the model
	ResidentEnd float64  `json:"resident_end_mb,omitempty"` // of the process, at the end
	LeftOut     []string `json:"left_out,omitempty"`        // points without room
}

// ModelResult is one row of the table: one point.
type ModelResult struct {
	Scenario   string  `json:"scenario"`
	Kind       string  `json:"kind"`  // decode, prefill
	Batch      int     `json:"batch"` // sequences that decode together, tokens of the prompt
	TokensPerS float64 `json:"tokens_per_s"`
	Ms         float64 `json:"ms_per_step"` // one token of each sequence, or the prompt
	XVsBatch1  float64 `json:"x_vs_batch_1,omitempty"`
	Gops       float64 `json:"gops"`         // 10^9 operations on weights a second; a product is two of them
	Bytes      float64 `json:"weights_read"` // bytes a step, mean
	PeakShare  float64 `json:"int8_peak_share,omitempty"`
	ReadShare  float64 `json:"read_share,omitempty"`
	Roofline   float64 `json:"roofline_share,omitempty"` // of what both limits together allow
	Pairs      int     `json:"pairs"`
	Dropped    int     `json:"pairs_dropped"` // of them, because the machine changed meanwhile
	Identical  *bool   `json:"identical"`     // the same prompt had the same tokens, whoever was beside it
}

// result makes figures of the pairs of a point: medians of those that are kept, or, where too few are, of
// all, and no shares.
func (r *modelRun) result(p *modelPoint, pairs []pair) ModelResult {
	kept := keep(pairs, p.kind == decoding && p.rows <= memoryRows)
	x := ModelResult{
		Scenario: ModelName, Kind: p.kind, Batch: p.rows, Pairs: len(pairs), Dropped: len(pairs) - len(kept),
	}
	if x.noisy() {
		kept = pairs
	}
	k := &r.rig.cost
	var seconds, gops, peak, read, roof, bytes []float64
	for i := range kept {
		run, l := &kept[i].run, kept[i].limits()
		n, wanted := float64(run.dispatches)/float64(p.rows), run.dispatches
		if p.kind == reading {
			wanted /= p.rows
		}
		s, b := run.took.Seconds()/n, k.bytes(run.counted)/n
		products := k.products(run.dispatches, wanted, run.counted) / n
		seconds, bytes, gops = append(seconds, s), append(bytes, b), append(gops, giga(2*products/s))
		least := 0.0 // seconds that the limits ask for
		if l.peak > 0 {
			least = products / l.peak
			peak = append(peak, least/s)
		}
		if l.read > 0 {
			least = max(least, b/l.read)
			read = append(read, b/l.read/s)
		}
		if l.peak > 0 && l.read > 0 {
			roof = append(roof, least/s)
		}
	}
	s := middle(seconds)
	x.Ms, x.TokensPerS = round(1000*s), round(float64(p.rows)/s)
	x.Gops, x.Bytes = round(middle(gops)), round(middle(bytes))
	if !x.noisy() {
		x.PeakShare, x.ReadShare, x.Roofline = round(middle(peak)), round(middle(read)), round(middle(roof))
	}
	if one := r.report.at(decoding, 1); p.kind == decoding && one != nil {
		x.XVsBatch1 = round(x.TokensPerS / one.TokensPerS)
	}
	return x
}

// at returns the result of a point; nil: not measured.
func (r *ModelReport) at(kind string, rows int) *ModelResult {
	for i := range r.Results {
		if x := &r.Results[i]; x.Kind == kind && x.Batch == rows {
			return x
		}
	}
	return nil
}

// noisy reports whether too few pairs are left to tell shares.
func (x *ModelResult) noisy() bool { return x.Pairs-x.Dropped < min(pairsKept, x.Pairs) }

// modelColumns of the table of Model. With two spaces between them they fit Columns.
var modelColumns = []column[ModelResult]{
	{"", -7, func(r *ModelResult) string { return r.Kind }},
	{"rows", 4, func(r *ModelResult) string { return strconv.Itoa(r.Batch) }},
	{"ms/step", 8, func(r *ModelResult) string { return digits(r.Ms) }},
	{"tokens/s", 8, func(r *ModelResult) string { return digits(r.TokensPerS) }},
	{"x 1 row", 7, func(r *ModelResult) string { return filled(r.XVsBatch1) }},
	{"of int8 peak", 12, func(r *ModelResult) string { return r.share(r.PeakShare) }},
	{"of read rate", 12, func(r *ModelResult) string { return r.share(r.ReadShare) }},
	{"pairs", 7, func(r *ModelResult) string { return fmt.Sprintf("%d of %d", r.Pairs-r.Dropped, r.Pairs) }},
	{"identical", 9, func(r *ModelResult) string { return yes(r.Identical) }},
}

// NewModelTable returns a table of the results of Model that prints to w.
func NewModelTable(w io.Writer) *Table[ModelResult] { return &Table[ModelResult]{w, modelColumns} }

// share writes a share of a limit.
func (x *ModelResult) share(v float64) string { return shareOf(v, x.noisy()) }

// Empty reports whether nothing was measured.
func (r *ModelReport) Empty() bool { return r == nil || len(r.Results) == 0 }

// Mistaken says where the same prompts had different tokens; empty: nowhere.
func (r *ModelReport) Mistaken() string {
	if bad := r.Different(); len(bad) > 0 {
		return fmt.Sprintf("the same prompts had different tokens at %s; run kvasir doctor", strings.Join(bad, "; "))
	}
	return ""
}

// Different returns the points at which a prompt did not always have the same tokens.
func (r *ModelReport) Different() []string {
	var list []string
	for i := range r.Results {
		if x := &r.Results[i]; x.Identical != nil && !*x.Identical {
			list = append(list, modelPointName(x.Kind, x.Batch))
		}
	}
	return list
}

// Remarks says what has to be known beside the table.
func (r *ModelReport) Remarks() []string {
	if r.Empty() {
		return nil
	}
	m, s := &r.Machine, &r.Settings
	var lines []string
	if m.Int8Peak > 0 && m.Read > 0 {
		lines = append(lines, fmt.Sprintf("This machine at best: %s GOP/s of int8 with %s, and memory read at %s GB/s.",
			digits(m.Int8Peak), s.Kernel, digits(m.Read)))
	}
	pairs, dropped := 0, 0
	for i := range r.Results {
		pairs += r.Results[i].Pairs
		dropped += r.Results[i].Dropped
	}
	lines = append(lines, fmt.Sprintf("Medians of pairs: a point, and the limits before and after it. %d of %d pairs were dropped; they are where the limits before and after differ by more than 5 %%. Products of weights alone are counted.",
		dropped, pairs))
	for _, point := range s.LeftOut {
		lines = append(lines, fmt.Sprintf("Left out: %s, for which this machine or the model's context has no room.", point))
	}
	return lines
}

// Words says what the figures mean.
func (r *ModelReport) Words() []string {
	if r.Empty() {
		return nil
	}
	s := &r.Settings
	text := fmt.Sprintf("Loading %.2f GB took %s s", giga(float64(s.File)), digits(s.Load))
	if s.Held > 0 {
		text += fmt.Sprintf("; %.0f MB became resident, %.2f x the file, and %.0f MB were at the end",
			s.Held, s.Held*1e6/float64(s.File), s.ResidentEnd)
	}
	return append([]string{text + "."}, r.verdicts()...)
}
