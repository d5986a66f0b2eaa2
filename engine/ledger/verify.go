package ledger

import (
	"context"
	"fmt"
	"time"

	"kvasir/wire/seal"
)

// check is a query that finds the first of something that is wrong: its id, what is there, what should be.
type check struct{ what, query string }

// checks are about single rows and their sums.
var checks = []check{
	{"rate of report", `SELECT r.id, r.nkvr, r.bytes * p.nkvr FROM reports r
		JOIN rates p ON p.since = (SELECT max(since) FROM rates WHERE since <= r.at)
		WHERE r.nkvr <> r.bytes * p.nkvr ORDER BY r.id LIMIT 1`},
	{"entries of transfer", `SELECT t.id, coalesce(max(e.nkvr), 0), r.nkvr FROM transfers t JOIN reports r ON r.id = t.report
		LEFT JOIN entries e ON e.transfer = t.id GROUP BY t.id, r.nkvr
		HAVING coalesce(sum(e.nkvr), 0) <> 0 OR coalesce(max(e.nkvr), -1) <> r.nkvr OR count(e.id) <> 2
		ORDER BY t.id LIMIT 1`},
	{"transfer", `SELECT t.id, 0, 1 FROM transfers t JOIN reports r ON r.id = t.report
		JOIN entries e ON e.transfer = t.id JOIN accounts a ON a.id = e.account
		WHERE e.nkvr <> 0 AND NOT (
			t.kind = 'credit' AND (e.nkvr < 0 AND a.kind = 'backbone' AND a.owner = r.backbone OR
				e.nkvr > 0 AND a.kind = 'pending' AND a.owner = r.worker) OR
			t.kind = 'settle' AND a.owner = r.worker AND
				(e.nkvr < 0 AND a.kind = 'pending' OR e.nkvr > 0 AND a.kind = 'settled') OR
			t.kind = 'void' AND (e.nkvr < 0 AND a.kind = 'pending' AND a.owner = r.worker OR
				e.nkvr > 0 AND a.kind = 'backbone' AND a.owner = r.backbone))
		ORDER BY t.id LIMIT 1`},
	{"transfers of report", `SELECT r.id, count(t.id), r.funded * CASE r.verdict WHEN 'pending' THEN 1 ELSE 2 END
		FROM reports r LEFT JOIN transfers t ON t.report = r.id AND (t.kind = 'credit' OR
			t.kind = 'settle' AND r.verdict = 'settled' OR t.kind = 'void' AND r.verdict = 'voided')
		GROUP BY r.id, r.funded, r.verdict
		HAVING count(t.id) <> r.funded * CASE r.verdict WHEN 'pending' THEN 1 ELSE 2 END
			OR count(t.id) <> (SELECT count(*) FROM transfers a WHERE a.report = r.id)
		ORDER BY r.id LIMIT 1`},
	{"account", `SELECT a.id, a.balance, coalesce(e.nkvr, 0) FROM accounts a
		LEFT JOIN (SELECT account, sum(nkvr) AS nkvr FROM entries GROUP BY account) e ON e.account = a.id
		WHERE a.balance <> coalesce(e.nkvr, 0) ORDER BY a.id LIMIT 1`},
}

// Verify reads all the books and checks that they balance. It returns ErrUnbalanced for the first
// entry or account that does not, and ErrDamaged when the file cannot be trusted.
func (w *Wallet) Verify(ctx context.Context) error {
	if err := w.file.health(ctx); err != nil {
		return err
	}
	if err := w.chains(ctx); err != nil {
		return err
	}
	for _, c := range checks {
		err := w.file.each(ctx, func(scan func(...any) error) error {
			var id, is, want int64
			if err := scan(&id, &is, &want); err != nil {
				return err
			}
			return fmt.Errorf("%w: %s %d: %d, want %d", ErrUnbalanced, c.what, id, is, want)
		}, c.query)
		if err != nil {
			return err
		}
	}
	if err := w.statements(ctx); err != nil {
		return err
	}
	return w.verdicts(ctx)
}

// chains checks every stored report: its signature, its place in its session, and the columns that
// were made from it.
func (w *Wallet) chains(ctx context.Context) error {
	var last Report
	var before []byte
	return w.file.each(ctx, func(scan func(...any) error) error {
		var id, picks, bytes, at, sequence int64
		var worker, backbone seal.PublicKey
		var session, hash string
		var signed []byte
		err := scan(&id, keyColumn{&worker}, &at, &picks, &bytes, &signed, keyColumn{&backbone}, &session, &sequence, &hash)
		if err != nil {
			return err
		}
		r, err := Verify(signed)
		if err != nil {
			return fmt.Errorf("%w: report %d: %w", ErrUnbalanced, id, err)
		}
		if r.Session != last.Session || r.Backbone != last.Backbone {
			last, before = Report{}, nil
		}
		total, err := r.Total()
		if err == nil {
			err = r.follows(last.Sequence, before)
		}
		if err != nil {
			return fmt.Errorf("%w: report %d: %w", ErrUnbalanced, id, err)
		}
		if worker != r.Worker || picks != total.Picks || bytes != total.Bytes || !time.UnixMilli(at).Equal(r.Time) {
			return fmt.Errorf("%w: report %d: %d picks, signed are %d", ErrUnbalanced, id, picks, total.Picks)
		}
		if backbone != r.Backbone || session != r.Session.String() || sequence != r.Sequence ||
			hash != "" && hash != HashOf(signed).hex() {
			return fmt.Errorf("%w: report %d is not in the place, or not under the hash, that is signed", ErrUnbalanced, id)
		}
		last, before = r, signed
		return nil
	}, "SELECT id, worker, at, picks, bytes, signed, backbone, session, sequence, hash FROM reports ORDER BY backbone, session, sequence")
}

// verdicts checks that a signed report says what has become of each, and that what was said was done.
func (w *Wallet) verdicts(ctx context.Context) error {
	err := w.file.each(ctx, func(scan func(...any) error) error {
		var id, said int64
		var verdict string
		var signed, by []byte
		if err := scan(&id, &verdict, &said, &signed, &by); err != nil {
			return err
		}
		r, err := Parse(signed)
		if err != nil {
			return fmt.Errorf("%w: report %d: %w", ErrUnbalanced, id, err)
		}
		j, err := Parse(by)
		switch {
		case err != nil || j.Backbone != r.Backbone || j.Worker != r.Worker:
		case verdict == "voided" && j.Wrong > 0:
			return nil
		case verdict == "settled" && j.Wrong == 0 && j.Session == r.Session && j.Holds >= r.Sequence:
			return nil
		}
		return fmt.Errorf("%w: report %d is %s, which report %d does not say", ErrUnbalanced, id, verdict, said)
	}, `SELECT r.id, r.verdict, r.said_by, r.signed, coalesce(j.signed, r.signed) FROM reports r
		LEFT JOIN reports j ON j.id = r.said_by WHERE r.verdict <> 'pending' ORDER BY r.id`)
	if err != nil {
		return err
	}
	holds := map[[2]string]int64{} // by backbone and session, from the newest report on
	return w.file.each(ctx, func(scan func(...any) error) error {
		var id int64
		var verdict string
		var signed []byte
		if err := scan(&id, &verdict, &signed); err != nil {
			return err
		}
		r, err := Parse(signed)
		if err != nil {
			return fmt.Errorf("%w: report %d: %w", ErrUnbalanced, id, err)
		}
		chain := [2]string{r.Backbone.String(), r.Session.String()}
		if r.Wrong == 0 {
			holds[chain] = max(holds[chain], r.Holds)
		}
		if verdict == "pending" && (r.Sequence <= holds[chain] || r.Wrong > 0) {
			return fmt.Errorf("%w: report %d is pending, and the reports say more of it", ErrUnbalanced, id)
		}
		return nil
	}, "SELECT id, verdict, signed FROM reports ORDER BY id DESC")
}
