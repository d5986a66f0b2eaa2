package bench

import (
	"fmt"
	"slices"
	"strconv"
)

// GateReport is what Gate has found. As JSON it is what docs/bench-json.md tells.
type GateReport struct {
	Machine  Machine      `json:"machine"`
	Settings GateSettings `json:"settings"`
	Adds     float64      `json:"adds_a_cycle,omitempty"` // of the core at best
	Lines    []GateLine   `json:"lines"`
}

// GateSettings are what was run.
type GateSettings struct {
	Scenario  string `json:"scenario"`
	Kernel    string `json:"kernel"`
	Threads   int    `json:"threads"`
	Rounds    int    `json:"repeat"`
	Baselines string `json:"baselines,omitempty"` // the kernels whose ratios are judged; absent: there are none for these
}

// Kinds of lines.
const (
	gateCounted = "counter" // the bound is the most
	gateTimed   = "ratio"   // the bound is the least
)

// Verdicts on lines, beside those of bars.
const (
	grew  = "grew"  // more than the baseline: a failure
	fewer = "fewer" // less than the baseline: better, and --update would hold it
	bare  = "no baseline"
)

// GateLine is one thing that the gate knows.
type GateLine struct {
	Name    string   `json:"name"` // in baselines
	Kind    string   `json:"kind"`
	Text    string   `json:"text"`
	Unit    string   `json:"unit,omitempty"`
	Got     float64  `json:"got"`
	Low     float64  `json:"low,omitempty"` // quartiles of a ratio
	High    float64  `json:"high,omitempty"`
	Pairs   int      `json:"pairs,omitempty"`         // that were kept
	Dropped int      `json:"pairs_dropped,omitempty"` // because the machine changed meanwhile
	Tries   int      `json:"tries,omitempty"`         // until the verdict stood
	Bound   *float64 `json:"bound,omitempty"`
	Verdict string   `json:"verdict"`

	room  float64 // of a ratio's bound
	bound float64 // of a counter: what Update writes
}

// judgeCounter compares a count with its baseline.
func (b *baselines) judgeCounter(c gateCounter, got float64) GateLine {
	x := GateLine{Name: c.name, Kind: gateCounted, Text: c.text, Unit: c.unit, Got: got, Verdict: met}
	most, ok := b.counters.Most[c.name]
	if !ok {
		x.Verdict = bare
		return x
	}
	x.Bound = &most
	switch {
	case got > most:
		x.Verdict = grew
	case got < most:
		x.Verdict = fewer
	}
	return x
}

// spreadMost is how far the quartiles of a ratio may lie apart, as a part of the median, where it is still
// judged.
const spreadMost = 0.5

// judgeRatio compares the pairs of a ratio with its bound.
func (b *baselines) judgeRatio(r *gateRatio, kept []float64, tried int) GateLine {
	x := GateLine{
		Name: r.name, Kind: gateTimed, Text: r.text, Unit: r.unit, Pairs: len(kept), Dropped: tried - len(kept),
		Verdict: met, room: r.room,
	}
	if bound, ok := b.ratios.Ratios[r.name]; ok {
		x.Bound = &bound.Least
	}
	switch {
	case tried == 0:
		x.Verdict = unknown
		return x
	case len(kept) < gatePairsLeast:
		x.Verdict = noisy
		return x
	}
	list := slices.Sorted(slices.Values(kept))
	n := len(list)
	x.Got, x.Low, x.High = round(middle(list)), round(list[n/4]), round(list[n-1-n/4])
	switch {
	case x.Bound == nil:
		x.Verdict = bare
	case x.Got >= *x.Bound:
	case x.High-x.Low > spreadMost*x.Got:
		x.Verdict = noisy
	default:
		x.Verdict = missed
	}
	return x
}

// Empty reports whether nothing was measured.
func (r *GateReport) Empty() bool { return r == nil || len(r.Lines) == 0 }

// find returns a line by its name; nil: there is none.
func (r *GateReport) find(name string) *GateLine {
	for i := range r.Lines {
		if r.Lines[i].Name == name {
			return &r.Lines[i]
		}
	}
	return nil
}

// Failed returns what is worse than its baseline, in words.
func (r *GateReport) Failed() []string {
	var list []string
	for i := range r.Lines {
		switch x := &r.Lines[i]; x.Verdict {
		case grew:
			list = append(list, fmt.Sprintf("%s grew to %s from %s", x.Text, x.quantity(x.Got), x.quantity(*x.Bound)))
		case missed:
			list = append(list, fmt.Sprintf("%s is %s, bound %s", x.Text, x.quantity(x.Got), x.quantity(*x.Bound)))
		}
	}
	return list
}

// Sentence says what was measured, the bound, and the verdict.
func (x *GateLine) Sentence() string {
	verdict := x.Verdict
	if verdict == met {
		verdict = "ok"
	}
	if x.Kind == gateCounted {
		if x.Bound == nil || x.Got == *x.Bound {
			return fmt.Sprintf("%s: %s, %s", x.Text, x.quantity(x.Got), verdict)
		}
		return fmt.Sprintf("%s: %s, baseline %s, %s", x.Text, x.quantity(x.Got), x.quantity(*x.Bound), verdict)
	}
	if x.Verdict == unknown {
		return fmt.Sprintf("%s: %s", x.Text, x.Verdict)
	}
	if x.Pairs < gatePairsLeast {
		return fmt.Sprintf("%s: %s, %d of %d pairs were steady; not judged", x.Text, verdict, x.Pairs, x.Pairs+x.Dropped)
	}
	text := fmt.Sprintf("%s: %s (%s to %s)", x.Text, x.quantity(x.Got), x.number(x.Low), x.number(x.High))
	if x.Bound != nil {
		text += ", at least " + x.quantity(*x.Bound)
	}
	return text + ", " + verdict
}

func (x *GateLine) number(v float64) string {
	if x.Kind == gateTimed {
		if v >= 10 {
			return strconv.FormatFloat(v, 'f', 1, 64)
		}
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// quantity writes a figure with its unit.
func (x *GateLine) quantity(v float64) string {
	if x.Unit == "" {
		return x.number(v)
	}
	return x.number(v) + " " + x.Unit
}

// Remarks say what was not judged.
func (r *GateReport) Remarks() []string {
	var list []string
	if r.Settings.Baselines == "" && r.counts(gateTimed) > 0 {
		list = append(list, fmt.Sprintf("There are no baselines of ratios for %s kernels: times are reported, not judged. kvasir-bench gate --update --why TEXT makes some.",
			r.Settings.Kernel))
	}
	n := 0
	for i := range r.Lines {
		if r.Lines[i].Verdict == noisy {
			n++
		}
	}
	if n > 0 {
		list = append(list, fmt.Sprintf("The machine is noisy: %d of %d ratios are not judged. Counters are, always.", n, r.counts(gateTimed)))
	}
	return list
}

func (r *GateReport) counts(kind string) int {
	n := 0
	for i := range r.Lines {
		if r.Lines[i].Kind == kind {
			n++
		}
	}
	return n
}

// Words are the verdict on all that was judged.
func (r *GateReport) Words() []string {
	judgedOf := func(kind string) int {
		n := 0
		for i := range r.Lines {
			switch x := &r.Lines[i]; x.Verdict {
			case met, grew, fewer, missed:
				if x.Kind == kind {
					n++
				}
			}
		}
		return n
	}
	verdict := "none is worse than its baseline"
	if n := len(r.Failed()); n > 0 {
		verdict = fmt.Sprintf("%d worse than their baselines", n)
	}
	ratios := fmt.Sprintf("%d of %d ratios", judgedOf(gateTimed), r.counts(gateTimed))
	if n := r.counts(gateCounted); n > 0 {
		ratios = fmt.Sprintf("%d of %d counters and %s", judgedOf(gateCounted), n, ratios)
	}
	return []string{ratios + " are judged: " + verdict + "."}
}
