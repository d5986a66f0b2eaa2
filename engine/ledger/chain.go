package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"kvasir/wire/seal"
)

// chain is a session of a hub as a transaction knows it: between whom it is, and how far its reports and
// statements have come. It is read once a transaction, those of all jobs of a group at once, and kept up to date
// with what the transaction gathers.
type chain struct {
	worker, backbone seal.PublicKey
	head
	stated int64 // sequence of the newest statement; 0: none
}

// head is the newest report of a session, or of its reports up to some sequence.
type head struct {
	sequence int64 // 0: none
	signed   []byte
}

// chains is a query for sessions, whose ids are names in a JSON object: both databases read one like this.
const chains = `SELECT s.id, s.worker, s.backbone, coalesce(r.sequence, 0), r.signed,
	(SELECT coalesce(max(sequence), 0) FROM statements WHERE session = s.id)
	FROM json_each($1) j JOIN sessions s ON s.id = j.key
	LEFT JOIN reports r ON r.session = s.id AND r.sequence = (SELECT max(sequence) FROM reports WHERE session = s.id)`

// fetch reads the sessions that jobs are about. One that is damaged is left to its job.
func (t *tx) fetch(ctx context.Context, jobs []*job) error {
	ids := make([]string, 0, len(jobs))
	for _, j := range jobs {
		if j.about != nil {
			ids = append(ids, j.about.String())
		}
	}
	if len(ids) < 2 {
		return nil
	}
	return t.learn(ctx, ids, true)
}

// chain returns a session.
func (t *tx) chain(ctx context.Context, id SessionID) (*chain, error) {
	if c := t.chains[id]; c != nil {
		return c, nil
	}
	if err := t.learn(ctx, []string{id.String()}, false); err != nil {
		return nil, err
	}
	if c := t.chains[id]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("%w: %s", ErrNoSession, id)
}

// learn reads sessions into t.chains.
func (t *tx) learn(ctx context.Context, ids []string, skip bool) (err error) {
	if t.chains == nil {
		t.chains = make(map[SessionID]*chain, len(ids))
	}
	rows, err := t.QueryContext(ctx, chains, `{"`+strings.Join(ids, `":0,"`)+`":0}`)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var c chain
		var name string
		err := rows.Scan(&name, keyColumn{&c.worker}, keyColumn{&c.backbone}, &c.sequence, &c.signed, &c.stated)
		id, wrong := ParseSessionID(name)
		switch {
		case err == nil && wrong == nil:
			t.chains[id] = &c
		case !skip:
			return errors.Join(err, wrong)
		}
	}
	return rows.Err()
}

// entry returns the id of the next entry of the hub's feed.
func (t *tx) entry(ctx context.Context) (id int64, err error) {
	if t.next == 0 {
		if err := t.QueryRowContext(ctx, "SELECT "+nextEntry).Scan(&t.next); err != nil {
			return 0, err
		}
	}
	t.next++
	return t.next - 1, nil
}

// nextEntry is the id of the next entry of the feed.
const nextEntry = "(SELECT max(id) + 1 FROM (SELECT 0 AS id UNION ALL SELECT max(id) FROM reports UNION ALL SELECT max(id) FROM statements) e)"

// place finds the place of a report in its session's chain, of which newest is the newest report, and which
// query selects. It returns true when the report is there already, and an error when it does not fit.
func place(ctx context.Context, t *tx, newest head, r *Report, signed []byte, query string, args ...any) (stored bool, err error) {
	at := newest
	if r.Sequence < at.sequence {
		at = head{}
		query += fmt.Sprintf(" AND sequence <= $%d ORDER BY sequence DESC LIMIT 1", len(args)+1)
		err = t.QueryRowContext(ctx, query, append(args, r.Sequence)...).Scan(&at.sequence, &at.signed)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return false, err
		}
	}
	if at.sequence > 0 {
		if _, err := Parse(at.signed); err != nil { // not wrapped: it is not about the report that came
			return false, fmt.Errorf("%w: report %d of session %s: %s", ErrDamaged, at.sequence, r.Session, err.Error())
		}
	}
	if at.sequence < r.Sequence {
		return false, r.follows(at.sequence, at.signed)
	}
	if HashOf(at.signed) != HashOf(signed) { // the signature may be another one
		return false, fmt.Errorf("%w: there is another report %d of session %s", ErrFork, r.Sequence, r.Session)
	}
	return true, nil
}
