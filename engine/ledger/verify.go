package ledger

import (
	"context"
	"fmt"
	"time"

	"kvasir/wire/seal"
)

// check is a query that finds the first of something that is wrong: its id, what is there, what should be. It
// has a %s for what narrows it down to one worker, whose key stands in a column.
type check struct{ what, worker, query string }

// checks are about single rows and their sums.
var checks = []check{
	{"rate of report", "r.worker", `SELECT r.id, r.nkvr, r.bytes * p.nkvr FROM reports r
		JOIN rates p ON p.since = (SELECT max(since) FROM rates WHERE since <= r.at)
		WHERE %s AND r.nkvr <> r.bytes * p.nkvr ORDER BY r.id LIMIT 1`},
	{"transfer of report", "r.worker", `SELECT t.report, t.nkvr, r.nkvr FROM transfers t JOIN reports r ON r.id = t.report
		WHERE %s AND t.nkvr <> r.nkvr ORDER BY t.report LIMIT 1`},
	{"accounts of a transfer of report", "r.worker", `SELECT t.report, 0, 1 FROM transfers t JOIN reports r ON r.id = t.report
		LEFT JOIN accounts d ON d.id = t.debited LEFT JOIN accounts c ON c.id = t.credited
		WHERE %s AND CASE WHEN
			t.kind = 'credit' AND d.kind = 'backbone' AND d.owner = r.backbone AND c.kind = 'pending' AND c.owner = r.worker OR
			t.kind = 'settle' AND d.kind = 'pending' AND d.owner = r.worker AND c.kind = 'settled' AND c.owner = r.worker OR
			t.kind = 'void' AND d.kind = 'pending' AND d.owner = r.worker AND c.kind = 'backbone' AND c.owner = r.backbone
			THEN 0 ELSE 1 END = 1
		ORDER BY t.report LIMIT 1`},
	{"transfers of report", "r.worker", `SELECT r.id, count(t.kind), r.funded * CASE r.verdict WHEN 'pending' THEN 1 ELSE 2 END
		FROM reports r LEFT JOIN transfers t ON t.report = r.id AND (t.kind = 'credit' OR
			t.kind = 'settle' AND r.verdict = 'settled' OR t.kind = 'void' AND r.verdict = 'voided')
		WHERE %s GROUP BY r.id, r.funded, r.verdict
		HAVING count(t.kind) <> r.funded * CASE r.verdict WHEN 'pending' THEN 1 ELSE 2 END
			OR count(t.kind) <> (SELECT count(*) FROM transfers a WHERE a.report = r.id)
		ORDER BY r.id LIMIT 1`},
	{"account", "a.owner", `SELECT a.id, a.balance, coalesce(e.nkvr, 0) FROM accounts a
		LEFT JOIN (SELECT account, sum(nkvr) AS nkvr FROM entries GROUP BY account) e ON e.account = a.id
		WHERE %s AND a.balance <> coalesce(e.nkvr, 0) ORDER BY a.id LIMIT 1`},
}

// Verify reads all the books and checks that they balance. It returns ErrUnbalanced for the first
// entry or account that does not, and ErrDamaged when the file cannot be trusted.
func (w *Wallet) Verify(ctx context.Context) error {
	if err := w.file.health(ctx); err != nil {
		return err
	}
	p := proof{f: w.file, q: w.file.db}
	if err := p.prove(ctx); err != nil {
		return err
	}
	return w.statements(ctx)
}

// Proven is Account, after all was verified that it is the sum of: every chain in which the worker has a report,
// from its first one on, its transfers and its balances. What is wrong elsewhere does not matter. It returns
// ErrUnbalanced or ErrDamaged for the first that is wrong.
func (w *Wallet) Proven(ctx context.Context, worker seal.PublicKey, since time.Time) (a Account, err error) {
	err = w.file.snapshot(ctx, func(q querier) error {
		p := proof{f: w.file, q: q, worker: worker.String()}
		err := p.prove(ctx)
		if err != nil {
			return err
		}
		if a, err = w.account(ctx, q, worker, since); err != nil {
			return err
		}
		return p.adds(ctx, &a)
	})
	if err != nil {
		return Account{}, err
	}
	return a, nil
}

// proof is one look through the books of all workers, or of one.
type proof struct {
	f      *file
	q      querier
	worker string // text of the key; "": all
}

// each is file.each of a query that has a %s for a condition, which narrows it down to the worker.
func (p *proof) each(ctx context.Context, row func(scan func(...any) error) error, query, condition string) error {
	if p.worker == "" {
		return p.f.eachOf(ctx, p.q, row, fmt.Sprintf(query, "1 = 1"))
	}
	return p.f.eachOf(ctx, p.q, row, fmt.Sprintf(query, condition), p.worker)
}

// ofChains are the reports of the sessions in which a worker has one.
const ofChains = "(backbone, session) IN (SELECT backbone, session FROM reports WHERE worker = $1)"

func (p *proof) prove(ctx context.Context) error {
	if err := p.chains(ctx); err != nil {
		return err
	}
	for _, c := range checks {
		err := p.each(ctx, func(scan func(...any) error) error {
			var id, is, want int64
			if err := scan(&id, &is, &want); err != nil {
				return err
			}
			return fmt.Errorf("%w: %s %d: %d, want %d", ErrUnbalanced, c.what, id, is, want)
		}, c.query, c.worker+" = $1")
		if err != nil {
			return err
		}
	}
	if err := p.verdicts(ctx); err != nil {
		return err
	}
	return p.pending(ctx)
}

// adds checks that an account says what the balances say, which those of other reports may have been added to.
func (p *proof) adds(ctx context.Context, a *Account) error {
	said := map[string]NKVR{"pending": a.Pending + a.Before.Pending, "settled": a.Settled + a.Before.Settled}
	balances := map[string]NKVR{}
	err := p.each(ctx, func(scan func(...any) error) error {
		var kind string
		var balance NKVR
		err := scan(&kind, &balance)
		balances[kind] = balance
		return err
	}, "SELECT kind, balance FROM accounts a WHERE kind IN ('pending', 'settled') AND %s", "a.owner = $1")
	for _, kind := range []string{"pending", "settled"} {
		if err == nil && balances[kind] != said[kind] {
			err = fmt.Errorf("%w: account %s of the worker: %d, its reports add up to %d", ErrUnbalanced, kind,
				int64(balances[kind]), int64(said[kind]))
		}
	}
	return err
}

// chains checks every stored report: its signature, its place in its session, and the columns that
// were made from it.
func (p *proof) chains(ctx context.Context) error {
	var last Report
	var before []byte
	return p.each(ctx, func(scan func(...any) error) error {
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
	}, "SELECT id, worker, at, picks, bytes, signed, backbone, session, sequence, hash FROM reports WHERE %s "+
		"ORDER BY backbone, session, sequence", ofChains)
}

// verdicts checks that a signed report says what has become of each.
func (p *proof) verdicts(ctx context.Context) error {
	return p.each(ctx, func(scan func(...any) error) error {
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
		LEFT JOIN reports j ON j.id = r.said_by WHERE %s AND r.verdict <> 'pending' ORDER BY r.id`, "r.worker = $1")
}

// pending checks that nothing is pending of which a signed report says more.
func (p *proof) pending(ctx context.Context) error {
	holds := map[[2]string]int64{} // by backbone and session, from the newest report on
	return p.each(ctx, func(scan func(...any) error) error {
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
	}, "SELECT id, verdict, signed FROM reports WHERE %s ORDER BY id DESC", ofChains)
}
