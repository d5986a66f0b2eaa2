package ledger

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// maxEarly is how many reports of one backbone are kept that came before others of their session.
const maxEarly = 1 << 14

// early keeps a report which does not follow on what is there, as gap says. A hub that was put back from an
// old copy, or was away for a moment, may hand on what is new before what it is reminded of, and shows each
// entry once. It is down as refused, and later with what has become of it. early returns nil for a report that is kept already.
func (w *Wallet) early(ctx context.Context, t *tx, hub string, v verified, gap error) error {
	r := &v.report
	var signed []byte
	err := t.QueryRowContext(ctx, "SELECT signed FROM early WHERE backbone = $1 AND session = $2 AND sequence = $3",
		r.Backbone.String(), r.Session.String(), r.Sequence).Scan(&signed)
	switch {
	case err == nil && bytes.Equal(signed, v.Report):
		return nil
	case err == nil:
		return fmt.Errorf("%w: there is another report %d of session %s", ErrFork, r.Sequence, r.Session)
	case !errors.Is(err, sql.ErrNoRows):
		return err
	}
	var n int
	err = t.QueryRowContext(ctx, "SELECT count(*) FROM early WHERE backbone = $1", r.Backbone.String()).Scan(&n)
	if err != nil {
		return err
	}
	if n >= w.most {
		return fmt.Errorf("%w, as are those before %d others of this backbone", gap, n)
	}
	p, err := t.work(ctx, work{r.Backbone, r.Session}, 0)
	if err != nil {
		return err
	}
	p.early = true
	err = t.exec(ctx, `INSERT INTO early (backbone, session, sequence, hub, entry, grant_text, signed)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		r.Backbone.String(), r.Session.String(), r.Sequence, hub, v.ID, v.Grant, v.Report)
	if err != nil {
		return err
	}
	return fmt.Errorf("%w; this one is kept until it comes", gap)
}

// follow credits what was kept of a session and follows on a report.
func (w *Wallet) follow(ctx context.Context, t *tx, r Report, got *Polled) error {
	for {
		p, err := t.work(ctx, work{r.Backbone, r.Session}, 0)
		if err != nil || !p.early {
			return err
		}
		var hub string
		var e Entry
		at := []any{r.Backbone.String(), r.Session.String(), r.Sequence + 1}
		const next = "FROM early WHERE backbone = $1 AND session = $2 AND sequence = $3"
		err = t.QueryRowContext(ctx, "SELECT hub, entry, grant_text, signed "+next, at...).Scan(&hub, &e.ID, &e.Grant, &e.Report)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err == nil {
			err = t.exec(ctx, "DELETE "+next, at...)
		}
		if err != nil {
			return err
		}
		v := w.verify(e, nil)
		reward, credited, err := w.credit(ctx, t, hub, v)
		became := "it has come, and this one is credited"
		if refusal(err) {
			became, credited, err = fmt.Sprintf("it has come: %.300s", err), false, nil
		}
		if err == nil {
			err = t.exec(ctx, "UPDATE refusals SET reason = reason || $1 WHERE hub = $2 AND entry = $3", "; "+became, hub, e.ID)
		}
		if err != nil || !credited {
			return err
		}
		got.Credited++
		got.Reward += reward
		r = v.report
	}
}

const (
	// maxRefusals is how many refusals of a hub are kept: one that shows nothing but garbage fills no disk.
	maxRefusals = 1 << 14
	// maxSaid is how many entries of a transaction are logged as refused, each in a line.
	maxSaid = 16
)

// forget drops the oldest refusals of a hub, so that as many are left as are to be kept.
func forget(ctx context.Context, t *tx, hub string, keep int) error {
	var n int
	err := t.QueryRowContext(ctx, "SELECT count(*) FROM refusals WHERE hub = $1", hub).Scan(&n)
	if err != nil || n <= keep {
		return err
	}
	return t.exec(ctx, `DELETE FROM refusals WHERE hub = $1 AND entry IN
		(SELECT entry FROM refusals WHERE hub = $1 ORDER BY entry LIMIT $2)`, hub, n-keep)
}

// refuse puts down why an entry is not credited. It returns false where it was refused for such a reason before: a
// feed that is read again from its first entry shows it once more, and what is said of it then may differ a little.
func refuse(ctx context.Context, t *tx, hub string, entry int64, why error) (fresh bool, err error) {
	var said string
	err = t.QueryRowContext(ctx, "SELECT reason FROM refusals WHERE hub = $1 AND entry = $2", hub, entry).Scan(&said)
	if err == nil && strings.Contains(said, reason(why).Error()) || err != nil && !errors.Is(err, sql.ErrNoRows) {
		return false, err
	}
	return true, t.exec(ctx, `INSERT INTO refusals (hub, entry, reason) VALUES ($1, $2, $3)
		ON CONFLICT (hub, entry) DO UPDATE SET reason = excluded.reason`,
		hub, entry, fmt.Sprintf("%.300s", why))
}
