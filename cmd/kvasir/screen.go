package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// maxColumns is how wide a table may be.
const maxColumns = 100

// screen is standard output or standard error. It remembers the first error of a write; after one
// it writes nothing more. It is safe for concurrent use: the log may come from any goroutine.
type screen struct {
	terminal bool // a person reads it
	colour   bool // styles are wanted

	mu     sync.Mutex
	w      io.Writer // under mu
	err    error     // under mu
	status string    // the line that stays at the bottom of a terminal; under mu
}

func newScreen(f *os.File, getenv func(string) string) *screen {
	s := &screen{w: f, terminal: term.IsTerminal(int(f.Fd()))}
	s.colour = s.terminal && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb" && enableStyles(f)
	return s
}

// Write implements io.Writer.
func (s *screen) Write(p []byte) (int, error) {
	size := len(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	if s.status != "" {
		p = []byte(eraseLine + string(p) + s.status)
	}
	n, err := s.w.Write(p)
	s.err = err
	return min(n, size), err
}

// eraseLine goes to the beginning of the line and wipes it.
const eraseLine = "\r\x1b[K"

// pin keeps a line at the bottom of a terminal, below whatever else is written; "" takes it away.
func (s *screen) pin(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && s.terminal && line != s.status {
		s.status = line
		_, s.err = io.WriteString(s.w, eraseLine+line)
	}
}

// failed returns the first error of a write.
func (s *screen) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// printf writes formatted text. Its error is kept for app.finish.
func (s *screen) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(s, format, args...)
}

// printJSON writes v as one indented object.
func (s *screen) printJSON(v any) error {
	e := json.NewEncoder(s)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// A style is a sequence of SGR parameters.
type style string

const (
	plain  style = ""
	bold   style = "1"
	faint  style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

// styled returns text in a style, or as it is where styles are not wanted.
func (s *screen) styled(st style, text string) string {
	if !s.colour || st == plain || text == "" {
		return text
	}
	return "\x1b[" + string(st) + "m" + text + "\x1b[0m"
}

// clean shows the control characters of text that comes out of a file or a model: printed as they
// are they could drive the terminal. New lines and tabs stay.
func clean(text string) string {
	harmless := func(r rune) bool { return r == '\n' || r == '\t' || !unicode.IsControl(r) }
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !harmless(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text { // an invalid byte becomes U+FFFD
		if harmless(r) {
			b.WriteRune(r)
		} else {
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return b.String()
}

// table collects rows and prints them in columns, at most maxColumns wide.
type table struct {
	head  []string // may be nil
	right []bool   // columns of numbers, aligned to the right
	rows  [][]string
	style func(row, column int) style // may be nil
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// print writes the table. The last column takes what the others leave and is wrapped into it.
func (t *table) print(s *screen) {
	widths := t.widths()
	if t.head != nil {
		t.printRow(s, t.head, widths, func(int) style { return faint })
	}
	for i, row := range t.rows {
		t.printRow(s, row, widths, func(column int) style {
			if t.style == nil {
				return plain
			}
			return t.style(i, column)
		})
	}
}

// columnGap separates two columns.
const columnGap = 2

func (t *table) widths() []int {
	var widths []int
	measure := func(row []string) {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	measure(t.head)
	for _, row := range t.rows {
		measure(row)
	}
	if len(widths) == 0 {
		return nil
	}
	// The widest column gives way first, down to a width at which words still fit.
	const least = 12
	for {
		total, widest := columnGap*(len(widths)-1), 0
		for i, w := range widths {
			total += w
			if w >= widths[widest] {
				widest = i
			}
		}
		over := total - maxColumns
		if over <= 0 || widths[widest] <= least {
			return widths
		}
		widths[widest] -= min(over, max(1, widths[widest]/4), widths[widest]-least)
	}
}

func (t *table) printRow(s *screen, row []string, widths []int, st func(column int) style) {
	cells := make([][]string, len(row))
	height := 0
	for i, cell := range row {
		cells[i] = wrap(clean(cell), widths[i])
		height = max(height, len(cells[i]))
	}
	for line := range height {
		var b strings.Builder
		pad := 0 // spaces owed, so that no line ends in spaces
		for i := range row {
			text := ""
			if line < len(cells[i]) {
				text = cells[i][line]
			}
			room := widths[i] - utf8.RuneCountInString(text)
			if i < len(t.right) && t.right[i] {
				pad += room
				room = 0
			}
			if text != "" {
				b.WriteString(strings.Repeat(" ", pad))
				b.WriteString(s.styled(st(i), text))
				pad = 0
			}
			pad += room + columnGap
		}
		s.printf("%s\n", b.String())
	}
}

// wrap cuts text into lines of at most width characters, at spaces where it can, else behind the
// separators of a path, else anywhere.
func wrap(text string, width int) []string {
	var lines []string
	rest := []rune(strings.ReplaceAll(text, "\n", " "))
	for len(rest) > width {
		cut, next := width, width
		for i := width; i > 0; i-- {
			if rest[i] == ' ' {
				cut, next = i, i+1
				break
			}
		}
		if next == width {
			for i := width; i > width/2; i-- {
				if rest[i-1] == '/' || rest[i-1] == '\\' {
					cut, next = i, i
					break
				}
			}
		}
		lines = append(lines, strings.TrimRight(string(rest[:cut]), " "))
		rest = rest[next:]
	}
	return append(lines, strings.TrimRight(string(rest), " "))
}

// decimal writes a count with spaces between thousands: 11 800 000.
func decimal(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

// size writes a number of bytes in three digits, in powers of 1000 as files are sold.
func size(n uint64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n), 0
	for v >= 999.5 && unit < 5 {
		v, unit = v/1000, unit+1
	}
	digits := 0
	switch {
	case v < 9.995:
		digits = 2
	case v < 99.95:
		digits = 1
	}
	return fmt.Sprintf("%.*f %cB", digits, v, " kMGTP"[unit])
}

// plural writes "1 token" and "2 tokens".
func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return strconv.Itoa(n) + " " + word + "s"
}
