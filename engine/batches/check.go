package batches

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"kvasir/engine/serve"
)

// place is where a line of the input stands.
type place struct {
	line   int // from 1
	id     string
	start  int64
	length int
}

// mark is the byte order mark, with which some editors begin a file.
var mark = []byte("\ufeff")

// checkLines reads an input file and returns where its lines are, or what is wrong with it: everything up
// to maxErrors.
func checkLines(r io.Reader, endpoint string, a Answerer) (list []place, bad []LineError, err error) {
	c := lineChecker{endpoint: endpoint, a: a, seen: map[string]int{}}
	in := bufio.NewReaderSize(r, MaxLine+2)
	at := int64(0)
	for n := 1; len(c.bad) < maxErrors; n++ {
		text, err := in.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			c.refuse(n, "line_too_long", "", "more than %d bytes", MaxLine)
			return nil, c.bad, nil // what follows cannot be told apart
		case err != nil && !errors.Is(err, io.EOF):
			return nil, nil, err
		}
		start := at
		at += int64(len(text))
		if n == 1 && bytes.HasPrefix(text, mark) {
			text, start = text[len(mark):], start+int64(len(mark))
		}
		if body := bytes.TrimRight(text, "\r\n"); len(bytes.TrimSpace(body)) > 0 {
			c.line(n, start, body)
		}
		if err != nil {
			break
		}
	}
	switch {
	case len(c.bad) > 0:
	case len(c.list) == 0:
		c.refuse(0, "empty_file", "", "the file has no lines")
	case len(c.list) > MaxLines:
		c.refuse(0, "too_many_lines", "", "%d lines, want %d at most", len(c.list), MaxLines)
	}
	return c.list, c.bad, nil
}

type lineChecker struct {
	endpoint string
	a        Answerer
	seen     map[string]int // the line of each custom_id
	list     []place
	bad      []LineError
}

func (c *lineChecker) refuse(line int, code, param, format string, args ...any) {
	c.bad = append(c.bad, LineError{line, code, param, fmt.Sprintf(format, args...)})
}

// line checks line n.
func (c *lineChecker) line(n int, start int64, text []byte) {
	l, err := parseLine(text)
	switch {
	case err != nil:
		c.refuse(n, "invalid_json_line", "", "%v", err)
		return
	case l.ID == "" || utf8.RuneCountInString(l.ID) > MaxID || strings.ContainsAny(l.ID, "\x00\ufffd"):
		// PostgreSQL keeps no NUL, and who sends half a character would not know the other again.
		c.refuse(n, "invalid_custom_id", "custom_id", "custom_id: want 1 to %d characters, none of them NUL, U+FFFD or half of one", MaxID)
	case c.seen[l.ID] > 0:
		c.refuse(n, "duplicate_custom_id", "custom_id", "custom_id %.100q is that of line %d", l.ID, c.seen[l.ID])
	case l.Method != http.MethodPost:
		c.refuse(n, "invalid_method", "method", "method %.20q, want POST", l.Method)
	case l.URL != c.endpoint:
		c.refuse(n, "invalid_url", "url", "url %.100q, and the batch is for %s", l.URL, c.endpoint)
	default:
		if p := c.a.Check(l.URL, l.Body); p != nil {
			c.refuse(n, "invalid_request", p.Param, "%s", p.Message)
		}
	}
	c.seen[l.ID] = n
	if len(c.list) <= MaxLines {
		c.list = append(c.list, place{n, l.ID, start, len(text)})
	}
}

// parseLine reads a line. The error says where it is not JSON.
func parseLine(text []byte) (l line, err error) {
	if !utf8.Valid(text) {
		return l, errors.New("the line is not valid UTF-8")
	}
	err = json.Unmarshal(text, &l)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return l, fmt.Errorf("the line is not JSON: at byte %d, %w", syntax.Offset, err)
	case err != nil:
		return l, errors.New("the line is not an object with custom_id, method, url and body")
	}
	return l, nil
}

// stamp makes what tells answers apart a function of the line, so that a job that is run again, from the
// beginning or from where it was killed, gives the same bytes.
func stamp(b *Batch, l *line) serve.Stamp {
	return serve.NewStamp(b.stamp, []byte(l.ID), l.Body)
}
