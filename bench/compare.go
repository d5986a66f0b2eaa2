package bench

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Errors of reading results; test with errors.Is.
var (
	// ErrMachines: results of machines that are not alike say nothing about each other.
	ErrMachines = errors.New("bench: results of different machines")
	// ErrResults: a file is not what --json prints.
	ErrResults = errors.New("bench: no results")
)

// resultsMost bounds a file of results.
const resultsMost = 64 << 20

// Stored is results as --json has printed them.
type Stored struct {
	Name     string // of the file
	Machine  Machine
	Settings map[string]any
	Results  []map[string]any // of the gate its lines, of a swarm one
	Data     []byte           // all of it
}

// ReadStored reads one object of --json.
func ReadStored(name string, r io.Reader) (*Stored, error) {
	data, err := io.ReadAll(io.LimitReader(r, resultsMost+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(data) > resultsMost {
		return nil, fmt.Errorf("%s: %w: more than %d bytes", name, ErrResults, resultsMost)
	}
	s := &Stored{Name: name, Data: data}
	others := struct {
		Lines  []map[string]any
		Result map[string]any
	}{}
	if err := errors.Join(json.Unmarshal(data, s), json.Unmarshal(data, &others)); err != nil {
		return nil, fmt.Errorf("%s: %w: %w; give what kvasir-bench --json has printed", name, ErrResults, err)
	}
	if s.Results = append(s.Results, others.Lines...); others.Result != nil {
		s.Results = append(s.Results, others.Result)
	}
	if s.Machine.CPU == "" || s.Scenario() == "" {
		return nil, fmt.Errorf("%s: %w: it names no machine or scenario; give what kvasir-bench --json has printed", name, ErrResults)
	}
	return s, nil
}

// Scenario is the name of what was measured.
func (s *Stored) Scenario() string { return s.text("scenario") }

// text is a setting in words; empty: it has none.
func (s *Stored) text(name string) string {
	if v, ok := s.Settings[name]; ok {
		return fmt.Sprint(v)
	}
	return ""
}

// Same returns an error, wrapping ErrMachines, that names the first thing in which the machines differ. Two
// builds, or the limits that two runs have measured, are no difference.
func Same(a, b *Stored) error {
	for _, x := range []struct{ what, a, b string }{
		{"processor", a.Machine.CPU, b.Machine.CPU},
		{"cores", fmt.Sprint(a.Machine.Cores), fmt.Sprint(b.Machine.Cores)},
		{"features", strings.Join(a.Machine.Features, " "), strings.Join(b.Machine.Features, " ")},
		{"kernels", a.text("kernel"), b.text("kernel")},
		{"threads", a.text("threads"), b.text("threads")},
	} {
		if x.a != x.b && x.a != "" && x.b != "" {
			return fmt.Errorf("%w: the %s of %s: %s, and of %s: %s; measure both on one machine", ErrMachines, x.what, a.Name, x.a, b.Name, x.b)
		}
	}
	return nil
}

// keys are what makes two results ones of the same thing.
var keys = []string{
	"scenario", "kind", "path", "way", "quant", "kernel", "picks", "figure", "what", "batch", "rtt_ms", "layers_remote", "streams",
	"pipelined", "workers", "name",
}

// figures that are compared, the first that a result has.
var compared = []string{"tokens_per_s", "http_tokens_per_s", "gb_per_s", "x_vs_batch_1", "got"}

// alike are settings that have to be the same, where both have them.
var alike = []string{
	"scenario", "experts", "topk", "hidden", "ffn", "quant", "model", "layers", "layers_remote", "worker", "up_bps", "down_bps", "jitter_ms",
	"stall", "workers", "bytes", "token_ms", "sessions", "batch", "up_bits", "down_bits", "memory_gb", "spread", "churn_per_hour", "backbone_ms",
}

// Difference is one figure in two runs.
type Difference struct {
	What     string  `json:"what"`
	Figure   string  `json:"figure"`
	Old      float64 `json:"old"`
	New      float64 `json:"new"`
	Change   float64 `json:"change_pct"`
	Separate *bool   `json:"separate,omitempty"` // their intervals do not touch; absent: there are none
}

// Compare sets the results of two runs beside each other. Those of different machines, or of different work,
// are refused.
func Compare(a, b *Stored) ([]Difference, error) {
	if err := Same(a, b); err != nil {
		return nil, err
	}
	for _, name := range alike {
		if x, y := a.text(name), b.text(name); x != y {
			return nil, fmt.Errorf("%w: %s is %q in %s and %q in %s; compare like with like", ErrResults, name, x, a.Name, y, b.Name)
		}
	}
	var list []Difference
	for _, x := range a.Results {
		i := slices.IndexFunc(b.Results, func(y map[string]any) bool { return keyOf(x) == keyOf(y) })
		if i < 0 {
			continue
		}
		y := b.Results[i]
		for _, figure := range compared {
			was, ok1 := x[figure].(float64)
			is, ok2 := y[figure].(float64)
			if !ok1 || !ok2 || was == 0 {
				continue
			}
			d := Difference{What: keyOf(x), Figure: figure, Old: was, New: is, Change: round(100 * (is/was - 1))}
			if low1, low2 := number(x, "ms_low"), number(y, "ms_low"); low1 > 0 && low2 > 0 {
				d.Separate = new(low1 > number(y, "ms_high") || low2 > number(x, "ms_high"))
			}
			list = append(list, d)
			break
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: %s and %s have measured nothing in common", ErrResults, a.Name, b.Name)
	}
	return list, nil
}

func number(m map[string]any, name string) float64 {
	v, _ := m[name].(float64)
	return v
}

// keyOf names what was measured.
func keyOf(m map[string]any) string {
	var parts []string
	for _, k := range keys {
		v, ok := m[k]
		switch {
		case !ok || k == "scenario" || v == false || k == "what" && m["part"] != nil: // a figure of relay has a name
		case v == true:
			parts = append(parts, k)
		case k == "batch" || k == "streams" || k == "workers" || k == "rtt_ms" || k == "layers_remote":
			parts = append(parts, fmt.Sprintf("%s %v", k, v))
		default:
			parts = append(parts, fmt.Sprint(v))
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "all")
}

// differenceColumns of the table of differences. With two spaces between them they fit Columns.
var differenceColumns = []column[Difference]{
	{"what", -44, func(d *Difference) string { return d.What }},
	{"", -12, func(d *Difference) string { return d.Figure }},
	{"old", 8, func(d *Difference) string { return digits(d.Old) }},
	{"new", 8, func(d *Difference) string { return digits(d.New) }},
	{"change", 8, func(d *Difference) string { return fmt.Sprintf("%+.1f %%", d.Change) }},
	{"sure", 4, func(d *Difference) string {
		switch {
		case d.Separate == nil:
			return "-"
		case *d.Separate:
			return "yes"
		}
		return "no"
	}},
}

// NewDifferenceTable returns a table of differences that prints to w.
func NewDifferenceTable(w io.Writer) *Table[Difference] {
	return &Table[Difference]{w, differenceColumns}
}
