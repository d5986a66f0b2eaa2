package ledger

import (
	"context"
	"errors"
	"fmt"

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

// enter enters a transfer, which is two entries. Balances have been looked at: it overflows nothing.
func (m transfer) enter(ctx context.Context, t *tx) error {
	debited, err := m.from.post(ctx, t, -m.amount)
	if err != nil {
		return err
	}
	credited, err := m.to.post(ctx, t, m.amount)
	if err != nil {
		return err
	}
	return t.put(ctx, walletTransfers, m.report, m.kind, debited, credited, int64(m.amount))
}

// post changes the balance of an account, and returns its id.
func (a account) post(ctx context.Context, t *tx, amount NKVR) (id int64, err error) {
	h, err := t.holding(ctx, a)
	if err != nil {
		return 0, err
	}
	balance, err := add(h.balance, amount)
	if err != nil {
		return 0, err
	}
	if h.id == 0 {
		if h.id, err = t.id(ctx, walletAccounts); err != nil {
			return 0, err
		}
		if err := t.put(ctx, walletAccounts, h.id, a.kind, a.owner.String(), int64(0)); err != nil {
			return 0, err
		}
	}
	h.balance = balance
	t.know().balances[h.id] = int64(balance)
	return h.id, nil
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
	p, err := t.work(ctx, work{r.Backbone, r.Session}, r.Holds)
	if err != nil {
		return 0, false, err
	}
	backbone, session := r.Backbone.String(), r.Session.String()
	stored, err := place(ctx, t, p.head, r, v.Report, "SELECT sequence, signed FROM reports WHERE backbone = $1 AND session = $2",
		backbone, session)
	if stored || err != nil {
		return 0, false, err
	}
	rate, err := t.rateAt(ctx, r.Time)
	if err != nil {
		return 0, false, err
	}
	in := row{backbone: r.Backbone, worker: r.Worker, nkvr: NKVR(v.total.Bytes) * rate} // both are bounded
	if in.funded, err = in.affordable(ctx, t); err != nil {
		return 0, false, err
	}
	funded := int64(0)
	if in.funded {
		funded = 1
	}
	if in.id, err = t.id(ctx, walletReports); err != nil {
		return 0, false, err
	}
	worker := r.Worker.String()
	n := waiting{row: in, sequence: r.Sequence, owner: worker, signed: v.Report, rate: rate}
	n.flushed, n.slot = t.flushed, len(t.rows[walletReports])
	err = t.put(ctx, walletReports, "pending", int64(0), in.id, hub, backbone, session, r.Sequence, worker, r.Time.UnixMilli(),
		v.total.Picks, v.total.Bytes, int64(in.nkvr), funded, v.Report, HashOf(v.Report).hex())
	if err != nil {
		return 0, false, err
	}
	p.head, p.pending = head{r.Sequence, v.Report}, append(p.pending, n)
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
	owed, err := t.holding(ctx, account{"backbone", r.backbone})
	if err != nil {
		return false, err
	}
	after, err := add(owed.balance, -r.nkvr)
	if err != nil {
		return false, err
	}
	all := r.nkvr
	for _, kind := range []string{"pending", "settled"} {
		has, err := t.holding(ctx, account{kind, r.worker})
		if err != nil {
			return false, err
		}
		if all, err = add(all, has.balance); err != nil {
			return false, err
		}
	}
	limit, err := t.limit(ctx, r.backbone)
	return limit < 0 || -after <= limit, err
}

// conclude draws what a new report says of those before it: one wrong row voids all that its backbone has
// not settled of the worker, the new report's own picks with it; else those settle which hold.
func conclude(ctx context.Context, t *tx, id int64, r *Report) error {
	if r.Wrong > 0 {
		return void(ctx, t, id, r)
	}
	p, err := t.work(ctx, work{r.Backbone, r.Session}, r.Holds)
	if err != nil {
		return err
	}
	worker, left := r.Worker.String(), p.pending[:0:0]
	for i := range p.pending {
		n := &p.pending[i]
		if n.sequence > r.Holds || n.owner != worker {
			left = append(left, *n)
			continue
		}
		n.backbone, n.worker = r.Backbone, r.Worker
		if err := n.genuine(n.signed, n.rate); err != nil {
			return err
		}
		t.settle(n, id)
		if !n.funded {
			continue
		}
		if err := n.settle().enter(ctx, t); err != nil {
			return err
		}
	}
	p.pending = left
	return nil
}

// settle enters the verdict on a report, in its row where that was not inserted yet.
func (t *tx) settle(n *waiting, by int64) {
	if n.flushed == t.flushed && n.slot < len(t.rows[walletReports]) {
		t.rows[walletReports][n.slot], t.rows[walletReports][n.slot+1] = "settled", by
		return
	}
	t.wrote = true
	t.know().settled[n.id] = by
}

// void takes back all that a backbone has not settled of a worker.
func void(ctx context.Context, t *tx, id int64, r *Report) error {
	rows, err := pick(ctx, t, r.Backbone, r.Worker, `SELECT id, nkvr, funded, `+says+` FROM reports
		WHERE backbone = $1 AND worker = $2 AND verdict = 'pending' ORDER BY id`, r.Backbone.String(), r.Worker.String())
	if err != nil {
		return err
	}
	for _, p := range rows {
		if err := t.exec(ctx, "UPDATE reports SET verdict = 'voided', said_by = $1 WHERE id = $2", id, p.id); err != nil {
			return err
		}
		if !p.funded {
			continue
		}
		if err := p.void().enter(ctx, t); err != nil {
			return err
		}
	}
	_, err = fund(ctx, t, r.Backbone) // it owes less now
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
		credited, err = grant(ctx, t, backbone, limit)
		return err
	})
	return credited, err
}

// Seen reports whether a report that a key has signed is in the books, and whether one about its work is.
func (w *Wallet) Seen(ctx context.Context, key seal.PublicKey) (signs, works bool, err error) {
	err = w.file.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM reports WHERE backbone = $1),
		EXISTS (SELECT 1 FROM reports WHERE worker = $1)`, key.String()).Scan(&signs, &works)
	return signs, works, w.file.explain(err)
}

// grant is Grant in a transaction.
func grant(ctx context.Context, t *tx, backbone seal.PublicKey, limit NKVR) (credited NKVR, err error) {
	err = t.exec(ctx, `INSERT INTO limits (backbone, nkvr) VALUES ($1, $2)
		ON CONFLICT (backbone) DO UPDATE SET nkvr = excluded.nkvr`, backbone.String(), int64(limit))
	if err != nil {
		return 0, err
	}
	t.know().limits[backbone] = limit
	return fund(ctx, t, backbone)
}

// fund credits what waits for a backbone's limit, as far as that goes.
func fund(ctx context.Context, t *tx, backbone seal.PublicKey) (credited NKVR, err error) {
	defer func() { clear(t.know().works) }() // there may be more that is funded, and less that is pending
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
