package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"kvasir/wire/seal"
)

// transfer is a movement between two accounts that a report is the reason of. There is one of a kind a
// report.
//
//	credit   backbone -> worker, pending     when the report comes, as far as the backbone's limit goes
//	settle   pending  -> worker, settled     when a later report of the session says that it holds
//	void     pending  -> backbone            when a later report says that a row was wrong
type transfer struct {
	report   int64
	kind     string
	from, to account
	amount   NKVR
}

type account struct {
	kind  string
	owner seal.PublicKey
}

// enter makes the two entries of a transfer. Balances have been looked at: it overflows nothing.
func (m transfer) enter(ctx context.Context, t *tx) error {
	id, err := t.insert(ctx, `INSERT INTO transfers (id, report, kind)
		SELECT coalesce(max(id), 0) + 1, $1, $2 FROM transfers RETURNING id`, m.report, m.kind)
	if err != nil {
		return err
	}
	if err := m.from.post(ctx, t, id, -m.amount); err != nil {
		return err
	}
	return m.to.post(ctx, t, id, m.amount)
}

func (a account) post(ctx context.Context, t *tx, transfer int64, amount NKVR) error {
	balance, err := a.balance(ctx, t)
	if err != nil {
		return err
	}
	if balance, err = add(balance, amount); err != nil {
		return err
	}
	id, err := t.insert(ctx, `INSERT INTO accounts (id, kind, owner, balance)
		SELECT coalesce(max(id), 0) + 1, $1, $2, $3 FROM accounts WHERE true
		ON CONFLICT (kind, owner) DO UPDATE SET balance = excluded.balance RETURNING id`,
		a.kind, a.owner.String(), int64(balance))
	if err != nil {
		return err
	}
	_, err = t.insert(ctx, `INSERT INTO entries (id, transfer, account, nkvr)
		SELECT coalesce(max(id), 0) + 1, $1, $2, $3 FROM entries RETURNING id`, transfer, id, int64(amount))
	return err
}

func (a account) balance(ctx context.Context, t *tx) (n NKVR, err error) {
	err = t.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE kind = $1 AND owner = $2", a.kind, a.owner.String()).
		Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return n, err
}

// row is a stored report, as far as it is money.
type row struct {
	id               int64
	backbone, worker seal.PublicKey
	nkvr             NKVR
	funded           bool
}

func (r *row) credit() transfer {
	return transfer{r.id, "credit", account{"backbone", r.backbone}, account{"pending", r.worker}, r.nkvr}
}

func (r *row) settle() transfer {
	return transfer{r.id, "settle", account{"pending", r.worker}, account{"settled", r.worker}, r.nkvr}
}

func (r *row) void() transfer {
	return transfer{r.id, "void", account{"pending", r.worker}, account{"backbone", r.backbone}, r.nkvr}
}

// credit enters one report and what follows from it. It writes nothing before all is known to fit, so
// that after a refusal the transaction goes on.
func (w *Wallet) credit(ctx context.Context, t *tx, hub string, v verified) (reward NKVR, credited bool, err error) {
	if v.err != nil {
		return 0, false, v.err
	}
	r := &v.report
	stored, err := place(ctx, t, head{sequence: math.MaxInt64}, r, v.Report, "SELECT sequence, signed FROM reports WHERE backbone = $1 AND session = $2",
		r.Backbone.String(), r.Session.String())
	if stored || err != nil {
		return 0, false, err
	}
	rate, err := rateAt(ctx, t, r.Time)
	if err != nil {
		return 0, false, err
	}
	in := row{backbone: r.Backbone, worker: r.Worker, nkvr: NKVR(v.total.Bytes) * rate} // both are bounded
	if in.funded, err = in.affordable(ctx, t); err != nil {
		return 0, false, err
	}
	funded := 0
	if in.funded {
		funded = 1
	}
	in.id, err = t.insert(ctx, `INSERT INTO reports
		(id, hub, backbone, session, sequence, worker, at, picks, bytes, nkvr, funded, verdict, said_by, signed, hash)
		SELECT coalesce(max(id), 0) + 1, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 'pending', 0, $11, $12 FROM reports RETURNING id`,
		hub, r.Backbone.String(), r.Session.String(), r.Sequence, r.Worker.String(), r.Time.UnixMilli(), v.total.Picks, v.total.Bytes,
		int64(in.nkvr), funded, v.Report, HashOf(v.Report).hex())
	if err != nil {
		return 0, false, err
	}
	if in.funded {
		if err := in.credit().enter(ctx, t); err != nil {
			return 0, false, err
		}
	}
	return in.nkvr, true, conclude(ctx, t, in.id, r)
}

// affordable reports whether the backbone's limit allows a credit. It returns ErrOverflow where an account
// could not hold what it would have then, or later, when it is settled.
func (r *row) affordable(ctx context.Context, t *tx) (bool, error) {
	owed, err := account{"backbone", r.backbone}.balance(ctx, t)
	if err != nil {
		return false, err
	}
	after, err := add(owed, -r.nkvr)
	if err != nil {
		return false, err
	}
	all := r.nkvr
	for _, kind := range []string{"pending", "settled"} {
		has, err := account{kind, r.worker}.balance(ctx, t)
		if err != nil {
			return false, err
		}
		if all, err = add(all, has); err != nil {
			return false, err
		}
	}
	var limit NKVR
	err = t.QueryRowContext(ctx, "SELECT nkvr FROM limits WHERE backbone = $1", r.backbone.String()).Scan(&limit)
	if errors.Is(err, sql.ErrNoRows) {
		return true, nil // nobody has set one
	}
	return -after <= limit, err
}

// conclude draws what a new report says of those before it: one wrong row voids all that its backbone has
// not settled of the worker, the new report's own picks with it; else those settle which hold.
func conclude(ctx context.Context, t *tx, id int64, r *Report) error {
	query, verdict := `SELECT id, nkvr, funded, `+says+` FROM reports
		WHERE backbone = $1 AND worker = $2 AND session = $3 AND sequence <= $4 AND verdict = 'pending' ORDER BY id`, "settled"
	args := []any{r.Backbone.String(), r.Worker.String(), r.Session.String(), r.Holds}
	if r.Wrong > 0 {
		query, verdict = `SELECT id, nkvr, funded, `+says+` FROM reports
			WHERE backbone = $1 AND worker = $2 AND verdict = 'pending' ORDER BY id`, "voided"
		args = args[:2]
	}
	rows, err := pick(ctx, t, r.Backbone, r.Worker, query, args...)
	if err != nil {
		return err
	}
	for _, p := range rows {
		if err := t.exec(ctx, "UPDATE reports SET verdict = $1, said_by = $2 WHERE id = $3", verdict, id, p.id); err != nil {
			return err
		}
		if !p.funded {
			continue
		}
		move := p.settle()
		if r.Wrong > 0 {
			move = p.void()
		}
		if err := move.enter(ctx, t); err != nil {
			return err
		}
	}
	if r.Wrong > 0 { // it owes less now
		_, err = fund(ctx, t, r.Backbone)
	}
	return err
}

// says is what a report's own bytes and its rate say of nkvr.
const says = "signed, (SELECT p.nkvr FROM rates p WHERE p.since <= reports.at ORDER BY p.since DESC LIMIT 1)"

// genuine returns ErrDamaged where a stored report is not worth what it says, so that no money moves by it.
func (r *row) genuine(signed []byte, rate NKVR) error {
	p, err := Parse(signed)
	var total Total
	if err == nil {
		total, err = p.Total()
	}
	if err != nil { // not wrapped: it is not about the report that came
		return fmt.Errorf("%w: report %d: %s", ErrDamaged, r.id, err.Error())
	}
	if worth := NKVR(total.Bytes) * rate; r.nkvr != worth || p.Worker != r.worker {
		return fmt.Errorf("%w: report %d: %d nKVR, signed are %d", ErrDamaged, r.id, int64(r.nkvr), int64(worth))
	}
	return nil
}

// pick returns the reports of a query that selects id, nkvr, funded and says.
func pick(ctx context.Context, t *tx, backbone, worker seal.PublicKey, query string, args ...any) (all []row, err error) {
	rows, err := t.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		p := row{backbone: backbone, worker: worker}
		var signed []byte
		var rate NKVR
		if err := rows.Scan(&p.id, &p.nkvr, &p.funded, &signed, &rate); err != nil {
			return nil, err
		}
		if err := p.genuine(signed, rate); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, rows.Err()
}

// Grant sets how much a backbone may owe. What it has signed beyond its limit waits, and is credited as far
// as the new limit goes, the oldest first; how much that is, is returned. What was credited stays, also
// where the new limit is lower. Without a limit a backbone may owe anything.
func (w *Wallet) Grant(ctx context.Context, backbone seal.PublicKey, limit NKVR) (credited NKVR, err error) {
	if backbone.IsZero() || limit < 0 || limit > MaxBalance {
		return 0, fmt.Errorf("%w: a limit of %d nKVR", ErrOverflow, int64(limit))
	}
	err = w.file.update(ctx, func(t *tx) error {
		err := t.exec(ctx, `INSERT INTO limits (backbone, nkvr) VALUES ($1, $2)
			ON CONFLICT (backbone) DO UPDATE SET nkvr = excluded.nkvr`, backbone.String(), int64(limit))
		if err != nil {
			return err
		}
		credited, err = fund(ctx, t, backbone)
		return err
	})
	return credited, err
}

// fund credits what waits for a backbone's limit, as far as that goes.
func fund(ctx context.Context, t *tx, backbone seal.PublicKey) (credited NKVR, err error) {
	waiting, err := waitingOf(ctx, t, backbone)
	if err != nil {
		return 0, err
	}
	for _, p := range waiting {
		settled := p.funded
		if ok, err := p.affordable(ctx, t); err != nil || !ok {
			return credited, err
		}
		if err := t.exec(ctx, "UPDATE reports SET funded = 1 WHERE id = $1", p.id); err != nil {
			return 0, err
		}
		moves := []transfer{p.credit(), p.settle()}
		if !settled {
			moves = moves[:1]
		}
		for _, m := range moves {
			if err := m.enter(ctx, t); err != nil {
				return 0, err
			}
		}
		credited += p.nkvr
	}
	return credited, nil
}

// waitingOf returns what a backbone has signed beyond its limit and nobody has voided; of these rows funded
// says that they have been settled.
func waitingOf(ctx context.Context, t *tx, backbone seal.PublicKey) (all []row, err error) {
	rows, err := t.QueryContext(ctx, `SELECT id, worker, nkvr, CASE verdict WHEN 'settled' THEN 1 ELSE 0 END, `+says+` FROM reports
		WHERE backbone = $1 AND funded = 0 AND verdict <> 'voided' ORDER BY id`, backbone.String())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		p := row{backbone: backbone}
		var signed []byte
		var rate NKVR
		if err := rows.Scan(&p.id, keyColumn{&p.worker}, &p.nkvr, &p.funded, &signed, &rate); err != nil {
			return nil, err
		}
		if err := p.genuine(signed, rate); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, rows.Err()
}
