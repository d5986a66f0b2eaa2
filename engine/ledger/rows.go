package ledger

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// into is a table that a transaction gathers rows for, and the columns of them. A statement costs as much as ten
// rows of it, so rows are inserted many at once: at the end, or before anything is read.
type into struct {
	table   string
	columns string
}

// What rows are gathered for. They are inserted in this order, so that what a row refers to is there.
const (
	hubReports = iota
	hubStatements
	walletAccounts
	walletReports
	walletTransfers
	walletStatements
	intos
)

var gathered = [intos]into{
	hubReports:      {"reports", "id, session, sequence, worker, picks, bytes, signed, mark"},
	hubStatements:   {"statements", "id, session, sequence, signed, mark"},
	walletAccounts:  {"accounts", "id, kind, owner, balance"},
	walletReports:   {"reports", "verdict, said_by, id, hub, backbone, session, sequence, worker, at, picks, bytes, nkvr, funded, signed, hash"},
	walletTransfers: {"transfers", "report, kind, debited, credited, nkvr"},
	walletStatements: {
		"statements", "id, hub, worker, backbone, session, sequence, hash, opinion, answered, signed",
	},
}

const (
	// rowsMax is how many rows of a table are gathered at most.
	rowsMax = 2048
	// atOnce is how many rows a statement inserts at most. It is a power of two, as every number of rows of a
	// statement is: so there are few statements.
	atOnce = 128
)

// put has a row inserted, some time before anything else is read or written, and before the end.
func (t *tx) put(ctx context.Context, where int, values ...any) error {
	t.wrote = true
	t.rows[where] = append(t.rows[where], values...)
	if len(t.rows[where]) < rowsMax*len(values) {
		return nil
	}
	return t.flush(ctx)
}

// changes are numbers that rows of a table get, by the rows' ids: a statement for many, as a JSON object.
type changes map[int64]int64

func (c changes) json() string {
	text := make([]byte, 0, 32*len(c))
	for id, to := range c {
		text = append(text, ",\""...)
		text = strconv.AppendInt(text, id, 10)
		text = append(text, "\":"...)
		text = strconv.AppendInt(text, to, 10)
	}
	return "{" + string(text[1:]) + "}"
}

// A number in a JSON object, and its name, in words that both databases know.
const (
	jsonValue = "CAST(CAST(j.value AS TEXT) AS BIGINT)"
	jsonName  = "CAST(j.key AS BIGINT)"
)

// flush inserts what was gathered, and makes the changes.
func (t *tx) flush(ctx context.Context) error {
	for where := range t.rows {
		values := t.rows[where]
		if len(values) == 0 {
			continue
		}
		t.rows[where] = values[:0]
		for width, n := strings.Count(gathered[where].columns, ",")+1, atOnce; len(values) > 0; {
			for n*width > len(values) {
				n /= 2
			}
			if err := t.send(ctx, t.f.inserts(where, n), values[:n*width]); err != nil {
				return err
			}
			values = values[n*width:]
		}
	}
	t.flushed++
	return t.book.flush(ctx, t)
}

// inserts returns the statement that inserts a number of rows.
func (f *file) inserts(where, rows int) string {
	key := [2]int{where, rows}
	if query := f.w.texts[key]; query != "" {
		return query
	}
	to := gathered[where]
	var query strings.Builder
	fmt.Fprintf(&query, "INSERT INTO %s (%s) VALUES ", to.table, to.columns)
	for row, width, n := 0, strings.Count(to.columns, ",")+1, 1; row < rows; row++ {
		for column := range width {
			switch {
			case column > 0:
				query.WriteString(", ")
			case row > 0:
				query.WriteString("), (")
			default:
				query.WriteString("(")
			}
			if f.lock == nil {
				query.WriteString("?") // SQLite takes $1 for a name, which it looks up
			} else {
				fmt.Fprintf(&query, "$%d", n)
			}
			n++
		}
	}
	query.WriteByte(')')
	f.w.texts[key] = query.String()
	return f.w.texts[key]
}

// forget drops what was gathered, and what is known of the database: it may be otherwise now.
func (t *tx) forget() {
	for where := range t.rows {
		t.rows[where] = t.rows[where][:0]
	}
	t.flushed++
	t.chains, t.next, t.book = nil, 0, nil
}
