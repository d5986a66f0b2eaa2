package bench

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Columns is the widest that a line of the table and of the words is.
const Columns = 100

// Table prints results as they come, in columns of fixed width.
type Table[R any] struct {
	w       io.Writer
	columns []column[R]
}

// column is one column of a table: its head, its width, and the cell of a result.
type column[R any] struct {
	head  string
	width int // negative: aligned to the left
	cell  func(*R) string
}

// columns of the table of Dispatch. With two spaces between them they fit Columns.
var columns = []column[Result]{
	{"batch", 5, func(r *Result) string { return strconv.Itoa(r.Batch) }},
	{"path", 11, func(r *Result) string {
		switch {
		case r.RTT == nil:
			return "local"
		case r.piped():
			return wayName(*r.RTT, r.Flights)
		}
		return pathName(*r.RTT)
	}},
	{"ms/dispatch", 11, func(r *Result) string { return digits(r.Ms) }},
	{"tokens/s", 9, func(r *Result) string { return digits(r.TokensPerS) }},
	{"x batch 1", 9, func(r *Result) string { return filled(r.XVsBatch1) }},
	{"RTT costs", 9, func(r *Result) string {
		if r.RTTOverhead == nil {
			return "-"
		}
		return fmt.Sprintf("%.1f %%", *r.RTTOverhead)
	}},
	{"B/row out", 9, func(r *Result) string { return filled(r.BytesOut) }},
	{"back", 7, func(r *Result) string { return filled(r.BytesBack) }},
	{"roofline", 8, func(r *Result) string {
		if r.Roofline == 0 {
			return "-"
		}
		return percent(100 * r.Roofline)
	}},
	{"same", 4, func(r *Result) string { return yes(r.Identical) }},
}

// NewTable returns a table of the results of Dispatch that prints to w.
func NewTable(w io.Writer) *Table[Result] { return &Table[Result]{w, columns} }

// NewStepTable returns a table of the results of Decode that prints to w.
func NewStepTable(w io.Writer) *Table[Result] {
	c := slices.Clone(columns)
	c[2].head = "ms/step"
	return &Table[Result]{w, c}
}

// Head prints the names of the columns.
func (t *Table[R]) Head() error {
	return t.line(func(c *column[R]) string { return c.head })
}

// Row prints one result.
func (t *Table[R]) Row(r R) error {
	return t.line(func(c *column[R]) string { return c.cell(&r) })
}

// line prints one cell of each column.
func (t *Table[R]) line(cell func(*column[R]) string) error {
	var b strings.Builder
	for i := range t.columns {
		if i > 0 {
			b.WriteString("  ")
		}
		text, width := cell(&t.columns[i]), t.columns[i].width
		if width < 0 && i == len(t.columns)-1 {
			width = 0 // nothing follows
		}
		fill := strings.Repeat(" ", max(0, max(width, -width)-utf8.RuneCountInString(text)))
		if width < 0 {
			text, fill = fill, text
		}
		b.WriteString(fill)
		b.WriteString(text)
	}
	_, err := fmt.Fprintln(t.w, b.String())
	return err
}

// yes writes whether answers were the same; a failure in capitals.
func yes(identical *bool) string {
	switch {
	case identical == nil:
		return "-"
	case *identical:
		return "yes"
	}
	return "NO"
}

// pathName names a path by its round trip: 13 ms.
func pathName(ms float64) string { return strconv.FormatFloat(ms, 'f', -1, 64) + " ms" }

// wayName names a path with several dispatches under way: 13 ms x3.
func wayName(ms float64, flights int) string { return fmt.Sprintf("%s x%d", pathName(ms), flights) }

// digits writes a number in at least three digits, with at most three behind the point.
func digits(v float64) string {
	switch {
	case v < 9.9995:
		return strconv.FormatFloat(v, 'f', 3, 64)
	case v < 99.995:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v < 999.95:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// filled writes a number, or a dash where it is 0, which is not measured.
func filled(v float64) string {
	if v == 0 {
		return "-"
	}
	return digits(v)
}

// Wrap cuts text into lines of at most Columns characters, at spaces where it can. A number stays with its
// unit.
func Wrap(text string) string {
	var b strings.Builder
	rest := []rune(text)
	for len(rest) > Columns {
		cut := Columns
		for cut > 0 && (rest[cut] != ' ' || unicode.IsDigit(rest[cut-1])) {
			cut--
		}
		if cut == 0 {
			cut = Columns
		}
		b.WriteString(string(rest[:cut]))
		b.WriteByte('\n')
		rest = []rune(strings.TrimLeft(string(rest[cut:]), " "))
	}
	b.WriteString(string(rest))
	return b.String()
}
