package bench

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Columns is the widest that a line of the table and of the words is.
const Columns = 100

// Table prints results as they come, in columns of fixed width.
type Table struct {
	w io.Writer
}

// column is one column of the table: its head, its width, and the cell of a result.
type column struct {
	head  string
	width int
	cell  func(*Result) string
}

// columns of the table. With two spaces between them they fit Columns.
var columns = []column{
	{"batch", 5, func(r *Result) string { return strconv.Itoa(r.Batch) }},
	{"path", 9, func(r *Result) string {
		if r.RTT == nil {
			return "local"
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
	{"out B/row", 9, func(r *Result) string { return filled(r.BytesOut) }},
	{"back B/row", 10, func(r *Result) string { return filled(r.BytesBack) }},
	{"identical", 9, func(r *Result) string {
		switch {
		case r.Identical == nil:
			return "-"
		case *r.Identical:
			return "yes"
		}
		return "NO"
	}},
}

// NewTable returns a table that prints to w.
func NewTable(w io.Writer) *Table { return &Table{w: w} }

// Head prints the names of the columns.
func (t *Table) Head() error {
	return t.line(func(c *column) string { return c.head })
}

// Row prints one result.
func (t *Table) Row(r Result) error {
	return t.line(func(c *column) string { return c.cell(&r) })
}

// line prints one cell of each column, aligned to the right.
func (t *Table) line(cell func(*column) string) error {
	var b strings.Builder
	for i := range columns {
		if i > 0 {
			b.WriteString("  ")
		}
		text := cell(&columns[i])
		b.WriteString(strings.Repeat(" ", max(0, columns[i].width-utf8.RuneCountInString(text))))
		b.WriteString(text)
	}
	_, err := fmt.Fprintln(t.w, b.String())
	return err
}

// pathName names a path by its round trip: 13 ms.
func pathName(ms float64) string { return strconv.FormatFloat(ms, 'f', -1, 64) + " ms" }

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
