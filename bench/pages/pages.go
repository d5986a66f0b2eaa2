// Package pages makes of results, as kvasir-bench --json prints them, what people read: the figures in
// BENCHMARKS.md, between marks, and plots as SVG.
//
//	<!-- figures: dispatch -->
//	replaced, when results of dispatch are given
//	<!-- /figures -->
//
// What stands outside of the marks is written by hand and stays as it is. So does what stands between marks
// of scenarios of which there are no results.
package pages

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"kvasir/bench"
)

// ErrMarks: a page whose marks do not match.
var ErrMarks = errors.New("pages: marks of figures do not match")

const (
	markPrefix = "<!-- figures: "
	markSuffix = " -->"
	markEnd    = "<!-- /figures -->"
)

// Page is what results of one scenario make of themselves.
type Page struct {
	Scenario string
	Text     string // Markdown, with links to the plots
	Plots    []Plot
}

// Make makes the page of results. Plots lie in the folder plots, as seen from the text.
func Make(s *bench.Stored, plots string) (*Page, error) {
	p := &Page{Scenario: s.Scenario()}
	var err error
	switch p.Scenario {
	case bench.DispatchName, bench.ExpertName, bench.DecodeName:
		err = p.paths(s)
	case bench.BarsName:
		err = p.bars(s)
	case bench.ReferenceName:
		err = p.reference(s)
	case bench.KernelsName:
		err = p.kernels(s)
	case bench.ModelName:
		err = p.model(s)
	case bench.WireName:
		err = p.wire(s)
	case bench.ServeName:
		err = p.serve(s)
	case bench.RelayName:
		err = p.relay(s)
	case bench.AuditName:
		err = p.audit(s)
	case bench.SwarmName:
		err = p.swarm(s)
	case bench.GateName:
		err = p.gate(s)
	default:
		err = fmt.Errorf("%w: scenario %q has no page", bench.ErrResults, p.Scenario)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	for i := range p.Plots {
		x := &p.Plots[i]
		p.Text += fmt.Sprintf("\n![%s](%s/%s)\n", x.Title, plots, x.File())
	}
	return p, nil
}

// Update puts pages between the marks of a text.
func Update(text string, pages []*Page) (string, error) {
	for _, p := range pages {
		begin := markPrefix + p.Scenario + markSuffix
		head, rest, ok := strings.Cut(text, begin)
		if !ok {
			return "", fmt.Errorf("%w: there is no %s", ErrMarks, begin)
		}
		old, tail, ok := strings.Cut(rest, markEnd)
		if !ok || strings.Contains(old, markPrefix) {
			return "", fmt.Errorf("%w: %s has no %s", ErrMarks, begin, markEnd)
		}
		text = head + begin + "\n" + strings.Trim(p.Text, "\n") + "\n" + markEnd + tail
	}
	return text, nil
}

// read fills a report with what was stored.
func read(s *bench.Stored, into any) error {
	if err := json.Unmarshal(s.Data, into); err != nil {
		return fmt.Errorf("%w: %w", bench.ErrResults, err)
	}
	return nil
}

// measuredOn says what machine and build figures belong to.
func measuredOn(m *bench.Machine, command, kernel string, threads int) string {
	text := fmt.Sprintf("Measured with `%s` on %s, %d cores", command, m.CPU, m.Cores)
	if kernel != "" {
		text += fmt.Sprintf(", %s kernels", kernel)
	}
	if threads > 0 {
		text += fmt.Sprintf(", %d threads", threads)
	}
	text += ", " + m.Go
	if m.Commit != "" {
		text += ", commit " + strings.TrimSuffix(m.Commit[:min(12, len(m.Commit))], "+")
	}
	if m.Int8Peak > 0 {
		text += fmt.Sprintf("; at best %.0f GOP/s of int8", m.Int8Peak)
	}
	if m.Read > 0 {
		text += fmt.Sprintf(" and %.1f GB/s from memory", m.Read)
	}
	return text + "."
}

// table writes a Markdown table.
type table struct{ b strings.Builder }

func (t *table) row(cells ...string) {
	t.b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

func (t *table) head(cells ...string) {
	t.row(cells...)
	t.b.WriteString(strings.Repeat("|---", len(cells)) + "|\n")
}

// digits writes a number with three digits that count.
func digits(v float64) string {
	switch {
	case v == 0:
		return ""
	case v >= 1000:
		return thousands(int64(v + 0.5))
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func thousands(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// share writes a part as percent; empty: not measured.
func share(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*v)
}

// percent writes a figure that may be 0.
func percent(v *float64) string {
	switch {
	case v == nil:
		return ""
	case *v < 10 && *v > -10:
		return fmt.Sprintf("%.1f %%", *v)
	}
	return fmt.Sprintf("%.0f %%", *v)
}

// yes writes whether answers were the same.
func yes(same *bool) string {
	switch {
	case same == nil:
		return ""
	case *same:
		return "yes"
	}
	return "NO"
}
