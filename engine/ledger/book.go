package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"kvasir/wire/seal"
)

// book is what a transaction knows of a wallet's database. All that a page of a feed needs is read by a few
// queries before its first entry, and kept up to date with what is gathered; what is not there is read when it is
// asked for. So most entries need no statement of their own.
type book struct {
	ids      [intos]int64 // of the next row; 0: not known
	accounts map[account]*holding
	works    map[work]*progress
	limits   map[seal.PublicKey]NKVR // below 0: none
	rates    []Price                 // the newest first

	balances changes // of accounts
	settled  changes // reports, by which they are
}

// holding is an account as it is.
type holding struct {
	id      int64 // 0: there is none yet
	balance NKVR
}

// work is what a backbone has signed of a session.
type work struct {
	backbone seal.PublicKey
	session  SessionID
}

// name is the work as a name in a JSON object, of which SQL takes the pieces.
func (w work) name() string { return w.session.String() + w.backbone.String() }

// progress is how far a work has come.
type progress struct {
	head
	stated  int64 // the highest sequence of a report that there is a statement on; 0: none
	early   bool  // there are reports that came before others
	upTo    int64 // reports that are pending up to this sequence are the following
	pending []waiting
}

// waiting is a report that is pending.
type waiting struct {
	row
	sequence int64
	owner    string // text of the worker
	signed   []byte
	rate     NKVR

	flushed uint64 // of the transaction, where the row is still gathered
	slot    int    // of its verdict there
}

// know returns the book, which is empty at first.
func (t *tx) know() *book {
	if t.book == nil {
		t.book = &book{
			accounts: map[account]*holding{}, works: map[work]*progress{}, limits: map[seal.PublicKey]NKVR{},
			balances: changes{}, settled: changes{},
		}
	}
	return t.book
}

// flush makes the changes.
func (b *book) flush(ctx context.Context, t *tx) error {
	if b == nil {
		return nil
	}
	for _, c := range []struct {
		of    changes
		query string
	}{
		{b.balances, "UPDATE accounts SET balance = " + jsonValue + " FROM json_each($1) j WHERE accounts.id = " + jsonName},
		{b.settled, "UPDATE reports SET verdict = 'settled', said_by = " + jsonValue + " FROM json_each($1) j WHERE reports.id = " + jsonName},
	} {
		if len(c.of) == 0 {
			continue
		}
		text := c.of.json()
		clear(c.of)
		if err := t.send(ctx, c.query, []any{text}); err != nil {
			return err
		}
	}
	return nil
}

// id returns the id of the next row of a table.
func (t *tx) id(ctx context.Context, where int) (int64, error) {
	next := &t.know().ids[where]
	if *next == 0 {
		err := t.QueryRowContext(ctx, "SELECT coalesce(max(id), 0) + 1 FROM "+gathered[where].table).Scan(next)
		if err != nil {
			return 0, err
		}
	}
	*next++
	return *next - 1, nil
}

// names returns names in a JSON object, with a number each.
func names(of map[string]int64) string {
	var text strings.Builder
	for name, n := range of {
		fmt.Fprintf(&text, `,"%s":%d`, name, n)
	}
	return "{" + strings.TrimPrefix(text.String(), ",") + "}"
}

// read reads what a page of entries needs.
func (t *tx) read(ctx context.Context, page []verified) error {
	works, owners := map[work]int64{}, map[seal.PublicKey]bool{}
	for i := range page {
		v := &page[i]
		switch {
		case v.err != nil:
		case v.statement.Sequence > 0:
			w := work{v.statement.Backbone, v.statement.Session}
			works[w] = max(works[w], 0)
		default:
			w := work{v.report.Backbone, v.report.Session}
			works[w] = max(works[w], v.report.Holds)
			owners[v.report.Backbone], owners[v.report.Worker] = true, true
		}
	}
	if len(works) == 0 {
		return nil
	}
	if err := t.progress(ctx, works); err != nil {
		return err
	}
	return t.holdings(ctx, owners)
}

// A work in a JSON object, and queries for many of them. SQLite takes a CROSS JOIN in the order in which it stands:
// names first, and rows by an index.
const (
	ofWork     = "backbone = substr(j.key, 33) AND session = substr(j.key, 1, 32)"
	worksSoFar = `SELECT j.key, coalesce(r.sequence, 0), r.signed,
		(SELECT coalesce(max(sequence), 0) FROM statements WHERE ` + ofWork + `),
		(SELECT count(*) FROM (SELECT 1 FROM early WHERE ` + ofWork + ` LIMIT 1) e)
		FROM json_each($1) j LEFT JOIN reports r ON r.backbone = substr(j.key, 33) AND r.session = substr(j.key, 1, 32) AND
			r.sequence = (SELECT max(sequence) FROM reports WHERE ` + ofWork + `)`
	worksPending = `SELECT j.key, reports.id, worker, nkvr, funded, sequence, ` + says + ` FROM json_each($1) j CROSS JOIN reports
		WHERE ` + ofWork + ` AND sequence > CAST(j.value ->> 0 AS BIGINT) AND sequence <= CAST(j.value ->> 1 AS BIGINT)
			AND verdict = 'pending' ORDER BY reports.id`
)

// progress reads works, and of each what is pending up to a sequence.
func (t *tx) progress(ctx context.Context, works map[work]int64) error {
	b, by, of := t.know(), make(map[string]*progress, len(works)), make(map[string]int64, len(works))
	for w, upTo := range works {
		p := &progress{upTo: upTo}
		by[w.name()], of[w.name()] = p, upTo
		b.works[w] = p
	}
	err := t.every(ctx, func(rows *sql.Rows) error {
		var name string
		var p progress
		if err := rows.Scan(&name, &p.sequence, &p.signed, &p.stated, &p.early); err != nil {
			return err
		}
		by[name].head, by[name].stated, by[name].early = p.head, p.stated, p.early
		return nil
	}, worksSoFar, names(of))
	if err != nil {
		return err
	}
	all := ranges(by)
	if all == "" {
		return nil
	}
	return t.every(ctx, func(rows *sql.Rows) error {
		var name string
		var n waiting
		if err := rows.Scan(&name, &n.id, &n.owner, &n.nkvr, &n.funded, &n.sequence, &n.signed, &n.rate); err != nil {
			return err
		}
		by[name].pending = append(by[name].pending, n)
		return nil
	}, worksPending, all)
}

// ranges are works in a JSON object, each with the sequences after which, and up to which, what is pending is asked
// for; "" where nothing is. Up to where the newest report of a work says that all hold, nothing is pending.
func ranges(works map[string]*progress) string {
	var text strings.Builder
	for name, p := range works {
		after := int64(0)
		if r, err := Parse(p.signed); err == nil { // else it is damaged, which place tells
			after = r.Holds
		}
		if after < min(p.upTo, p.sequence) {
			fmt.Fprintf(&text, `,"%s":[%d,%d]`, name, after, p.upTo)
		}
	}
	if text.Len() == 0 {
		return ""
	}
	return "{" + text.String()[1:] + "}"
}

// every runs a query and calls row for each of its rows, of which there is one of every name at least.
func (t *tx) every(ctx context.Context, row func(*sql.Rows) error, query string, args ...any) (err error) {
	rows, err := t.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// work returns how far a work has come, with what is pending up to a sequence.
func (t *tx) work(ctx context.Context, w work, upTo int64) (*progress, error) {
	if p := t.know().works[w]; p != nil && upTo <= p.upTo {
		return p, nil
	}
	err := t.progress(ctx, map[work]int64{w: upTo})
	return t.know().works[w], err
}

// holdings reads all accounts of owners.
func (t *tx) holdings(ctx context.Context, owners map[seal.PublicKey]bool) error {
	b, by, of := t.know(), map[[2]string]*holding{}, map[string]int64{}
	for owner := range owners {
		of[owner.String()] = 0
		for _, kind := range []string{"backbone", "pending", "settled"} {
			h := &holding{}
			by[[2]string{kind, owner.String()}] = h
			b.accounts[account{kind, owner}] = h
		}
	}
	return t.every(ctx, func(rows *sql.Rows) error {
		var kind, owner string
		var h holding
		if err := rows.Scan(&kind, &owner, &h.id, &h.balance); err != nil {
			return err
		}
		*by[[2]string{kind, owner}] = h
		return nil
	}, `SELECT a.kind, a.owner, a.id, a.balance FROM json_each($1) j CROSS JOIN accounts a
		WHERE a.kind IN ('backbone', 'pending', 'settled') AND a.owner = j.key`, names(of))
}

// holding returns an account.
func (t *tx) holding(ctx context.Context, a account) (*holding, error) {
	if h := t.know().accounts[a]; h != nil {
		return h, nil
	}
	err := t.holdings(ctx, map[seal.PublicKey]bool{a.owner: true})
	return t.know().accounts[a], err
}

// limit returns what a backbone may owe; below 0: nobody has set a limit.
func (t *tx) limit(ctx context.Context, backbone seal.PublicKey) (limit NKVR, err error) {
	if limit, ok := t.know().limits[backbone]; ok {
		return limit, nil
	}
	err = t.QueryRowContext(ctx, "SELECT nkvr FROM limits WHERE backbone = $1", backbone.String()).Scan(&limit)
	if errors.Is(err, sql.ErrNoRows) {
		limit, err = -1, nil
	}
	if err == nil {
		t.know().limits[backbone] = limit
	}
	return limit, err
}

// rateAt is what a byte of a report of that time earns.
func (t *tx) rateAt(ctx context.Context, at time.Time) (n NKVR, err error) {
	b := t.know()
	if b.rates == nil {
		err := t.every(ctx, func(rows *sql.Rows) error {
			var since int64
			var p Price
			err := rows.Scan(&since, &p.Rate)
			p.Since = time.UnixMilli(since)
			b.rates = append(b.rates, p)
			return err
		}, "SELECT since, nkvr FROM rates ORDER BY since DESC")
		if err != nil {
			return 0, err
		}
	}
	for _, p := range b.rates {
		if !p.Since.After(at) {
			return p.Rate, nil
		}
	}
	return 0, sql.ErrNoRows // as it was asked
}
