package ledger

import (
	"context"

	"kvasir/wire/seal"
)

// Balance is what a worker has earned.
type Balance struct {
	Worker  seal.PublicKey
	Reports int64
	Picks   int64
	Output  int64 // bytes of expert output; FormatUnits makes units of it
	Pending NKVR  // credited, not yet checked
	Settled NKVR  // checked: it stays
	Voided  NKVR  // was pending when a row was found wrong
	Waiting NKVR  // not credited yet: the backbone's limit is reached

	Agreed   int64 // reports that the worker has countersigned
	Disputed int64 // reports that it disputes
}

const balances = `SELECT r.worker, count(*), sum(r.picks), sum(r.bytes),
		coalesce((SELECT balance FROM accounts WHERE kind = 'pending' AND owner = r.worker), 0),
		coalesce((SELECT balance FROM accounts WHERE kind = 'settled' AND owner = r.worker), 0),
		sum(CASE WHEN r.verdict = 'voided' THEN r.nkvr ELSE 0 END),
		sum(CASE WHEN r.funded = 0 AND r.verdict <> 'voided' THEN r.nkvr ELSE 0 END),
		count(CASE WHEN s.id IS NOT NULL AND NOT ` + disputed + ` THEN 1 END), count(CASE WHEN ` + disputed + ` THEN 1 END)
	FROM reports r LEFT JOIN statements s ON ` + about + " "

// Balances returns all workers, by key, but for those that Damaged names.
func (w *Wallet) Balances(ctx context.Context) ([]Balance, error) {
	return w.balances(ctx, balances+" GROUP BY r.worker ORDER BY r.worker")
}

// Balance returns one worker's balance; who has earned nothing has a balance of nothing.
func (w *Wallet) Balance(ctx context.Context, worker seal.PublicKey) (Balance, error) {
	all, err := w.balances(ctx, balances+" WHERE r.worker = $1 GROUP BY r.worker", worker.String())
	if err != nil || len(all) == 0 {
		return Balance{Worker: worker}, err
	}
	return all[0], nil
}

func (w *Wallet) balances(ctx context.Context, query string, args ...any) (all []Balance, err error) {
	err = w.list(ctx, "worker", func(scan func(...any) error) (seal.PublicKey, error) {
		var b Balance
		err := scan(keyColumn{&b.Worker}, &b.Reports, &b.Picks, &b.Output, &b.Pending, &b.Settled, &b.Voided, &b.Waiting,
			&b.Agreed, &b.Disputed)
		if err == nil {
			all = append(all, b)
		}
		return b.Worker, err
	}, query, args...)
	return all, err
}

// Debt is what a backbone has promised to workers.
type Debt struct {
	Backbone seal.PublicKey
	Owed     NKVR
	Limit    NKVR // that it may owe; below 0: nobody has set one
	Waiting  NKVR // beyond the limit
}

// Debts returns all backbones, by key, but for those that Damaged names.
func (w *Wallet) Debts(ctx context.Context) (all []Debt, err error) {
	err = w.list(ctx, "backbone", func(scan func(...any) error) (seal.PublicKey, error) {
		var d Debt
		err := scan(keyColumn{&d.Backbone}, &d.Owed, &d.Limit, &d.Waiting)
		if err == nil {
			all = append(all, d)
		}
		return d.Backbone, err
	}, `SELECT b.key, coalesce((SELECT -balance FROM accounts WHERE kind = 'backbone' AND owner = b.key), 0),
		coalesce((SELECT nkvr FROM limits WHERE backbone = b.key), -1),
		coalesce((SELECT sum(nkvr) FROM reports WHERE backbone = b.key AND funded = 0 AND verdict <> 'voided'), 0)
		FROM (SELECT owner AS key FROM accounts WHERE kind = 'backbone' UNION SELECT backbone FROM limits
			UNION SELECT backbone FROM reports WHERE funded = 0) b ORDER BY b.key`)
	return all, err
}

// Refusal is a report that was not credited.
type Refusal struct {
	Hub    string
	Entry  int64
	Reason string
}

// Refusals returns the newest refusals, at most limit; of each hub only so many are kept.
func (w *Wallet) Refusals(ctx context.Context, limit int) (all []Refusal, err error) {
	err = w.file.each(ctx, func(scan func(...any) error) error {
		var r Refusal
		if err := scan(&r.Hub, &r.Entry, &r.Reason); err != nil {
			return err
		}
		all = append(all, r)
		return nil
	}, "SELECT hub, entry, reason FROM refusals ORDER BY entry DESC, hub LIMIT $1", max(limit, 0))
	return all, err
}
