package ledger

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
)

// State enters what a worker says of a report that is here. The same may come again; it returns true for
// what is new here.
func (h *Hub) State(ctx context.Context, signed []byte) (s Statement, fresh bool, err error) {
	if s, err = VerifyStatement(signed); err == nil {
		err = h.file.updateOf(ctx, &s.Session, func(t *tx) (err error) {
			fresh, err = s.enter(ctx, t, signed)
			return err
		})
	}
	if err != nil {
		h.refused.add(err)
		return Statement{}, false, err
	}
	return s, fresh, nil
}

// enter enters the statement; fresh says that it is new.
func (s *Statement) enter(ctx context.Context, t *tx, signed []byte) (fresh bool, err error) {
	at, err := t.chain(ctx, s.Session)
	if err != nil {
		return false, err
	}
	if at.worker != s.Worker || at.backbone != s.Backbone {
		return false, fmt.Errorf("%w: statement on report %d of session %s names other keys", ErrWrongSession, s.Sequence, s.Session)
	}
	session := s.Session.String()
	has := 1
	if s.Sequence != at.sequence {
		err = t.QueryRowContext(ctx, "SELECT count(*) FROM reports WHERE session = $1 AND sequence = $2", session, s.Sequence).Scan(&has)
	}
	if err == nil && has == 0 {
		err = fmt.Errorf("%w: %d of session %s", ErrNoReport, s.Sequence, s.Session)
	}
	if err != nil {
		return false, err
	}
	if s.Sequence <= at.stated {
		stored, err := samePlace(ctx, t, s, "SELECT signed FROM statements WHERE session = $1 AND sequence = $2", session, s.Sequence)
		if stored || err != nil {
			return false, err
		}
	}
	id, err := t.entry(ctx)
	if err != nil {
		return false, err
	}
	at.stated = max(at.stated, s.Sequence)
	return true, t.put(ctx, hubStatements, id, session, s.Sequence, signed, newMark())
}

// samePlace reports whether there is a statement in the place of s already, which a query finds. Another one
// there is ErrFork, unless it says the same of the same report.
func samePlace(ctx context.Context, t *tx, s *Statement, query string, args ...any) (stored bool, err error) {
	var signed []byte
	err = t.QueryRowContext(ctx, query, args...).Scan(&signed)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	o, err := parseStatement(signed)
	if err != nil {
		return false, fmt.Errorf("%w: statement on report %d of session %s: %s", ErrDamaged, s.Sequence, s.Session, err.Error())
	}
	if o.Report != s.Report || o.Opinion != s.Opinion {
		return false, fmt.Errorf("%w: the worker has said something else of report %d of session %s", ErrFork, s.Sequence, s.Session)
	}
	return true, nil
}

// newMark returns what an entry is known by again.
func newMark() []byte {
	var mark Hash
	_, _ = rand.Read(mark[:]) // never returns an error
	return mark[:]
}

// entries is all that a hub has, as a feed.
const entries = `(SELECT r.id, s.grant_text AS grant_text, r.signed AS report, NULL AS statement, r.mark
	FROM reports r JOIN sessions s ON s.id = r.session
	UNION ALL SELECT id, '', NULL, signed, mark FROM statements) e`

// After is Feed's.
func (h *Hub) After(ctx context.Context, at Mark, limit int) (page Page, err error) {
	limit = max(1, min(limit, PageMax))
	page.Entries = []Entry{}
	err = h.file.db.QueryRowContext(ctx, "SELECT "+nextEntry+" - 1").Scan(&page.Last)
	if err != nil {
		return Page{}, h.file.explain(err)
	}
	// What has come since is for the next page, so that Last is true of this one.
	err = h.file.each(ctx, func(scan func(...any) error) error {
		var e Entry
		if err := scan(&e.ID, &e.Grant, &e.Report, &e.Statement, &e.Mark); err != nil {
			return err
		}
		if e.ID == at.ID {
			seen := e.mark()
			page.Seen = seen[:]
			return nil
		}
		page.Entries = append(page.Entries, e)
		return nil
	}, "SELECT id, grant_text, report, statement, mark FROM "+entries+" WHERE id >= $1 AND id <= $2 ORDER BY id LIMIT $3",
		at.ID, page.Last, limit+1)
	if err != nil {
		return Page{}, err
	}
	page.Entries = page.Entries[:min(len(page.Entries), limit)]
	if page.Seen != nil && Hash(page.Seen) == at.Hash {
		err = h.read(ctx, at.ID)
	}
	return page, err
}

// read enters that a wallet has all up to an entry.
func (h *Hub) read(ctx context.Context, id int64) error {
	var at int64
	err := h.file.db.QueryRowContext(ctx, "SELECT coalesce(max(entry), 0) FROM readers").Scan(&at)
	if err != nil || at >= id {
		return h.file.explain(err)
	}
	return h.file.update(ctx, func(t *tx) error {
		return t.exec(ctx, `INSERT INTO readers (reader, entry) VALUES ('wallet', $1)
			ON CONFLICT (reader) DO UPDATE SET entry = excluded.entry WHERE readers.entry < excluded.entry`, id)
	})
}

// Acknowledged returns up to which sequence of a session all reports from a given one on, and the statements on
// them, are in a wallet; 0: not even that one. Those before it may be missing here.
func (h *Hub) Acknowledged(ctx context.Context, id SessionID, from int64) (reports, statements int64, err error) {
	reports, statements, err = acknowledged(ctx, h.file.db.QueryContext, id, from)
	return reports, statements, h.file.explain(err)
}

func acknowledged(ctx context.Context, query func(context.Context, string, ...any) (*sql.Rows, error), id SessionID, from int64) (
	reports, statements int64, err error,
) {
	const read = "WHERE session = $1 AND sequence >= $2 AND id <= (SELECT coalesce(max(entry), 0) FROM readers)"
	rows, err := query(ctx, "SELECT 0, sequence FROM reports "+read+" UNION ALL SELECT 1, sequence FROM statements "+read+
		" ORDER BY 1, 2", id.String(), from)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	upTo, next := [2]int64{}, [2]int64{from, from}
	for rows.Next() {
		var what, sequence int64
		if err := rows.Scan(&what, &sequence); err != nil {
			return 0, 0, err
		}
		if sequence == next[what] {
			upTo[what] = sequence
			next[what]++
		}
	}
	return upTo[0], upTo[1], rows.Err()
}
