package ledger

import (
	"context"
	"fmt"

	"kvasir/wire/seal"
)

// Balance is what a worker has earned.
type Balance struct {
	Worker  seal.PublicKey
	Reports int64
	Picks   int64
	Output  int64 // bytes of expert output; FormatUnits makes units of it
	Pending NKVR  // credited, not yet checked
	Settled NKVR  // always 0 in this form: nothing checks the work yet
}

const balances = `SELECT r.worker, count(*), sum(r.picks), sum(r.bytes),
		coalesce((SELECT balance FROM accounts WHERE kind = 'pending' AND owner = r.worker), 0),
		coalesce((SELECT balance FROM accounts WHERE kind = 'settled' AND owner = r.worker), 0)
	FROM reports r`

// Balances returns all workers, by key.
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
	err = w.file.each(ctx, func(scan func(...any) error) error {
		var b Balance
		if err := scan(keyColumn{&b.Worker}, &b.Reports, &b.Picks, &b.Output, &b.Pending, &b.Settled); err != nil {
			return err
		}
		all = append(all, b)
		return nil
	}, query, args...)
	return all, err
}

// Debt is what a backbone has promised to workers.
type Debt struct {
	Backbone seal.PublicKey
	Owed     NKVR
}

// Debts returns all backbones, by key.
func (w *Wallet) Debts(ctx context.Context) (all []Debt, err error) {
	err = w.file.each(ctx, func(scan func(...any) error) error {
		var d Debt
		if err := scan(keyColumn{&d.Backbone}, &d.Owed); err != nil {
			return err
		}
		all = append(all, d)
		return nil
	}, "SELECT owner, -balance FROM accounts WHERE kind = 'backbone' ORDER BY owner")
	return all, err
}

// Refusal is a report that was not credited.
type Refusal struct {
	Hub    string
	Entry  int64
	Reason string
}

// Refusals returns the newest refusals, at most limit.
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

// Verify reads all the books and checks that they balance. It returns ErrUnbalanced for the first
// entry or account that does not, and ErrDamaged when the file cannot be trusted.
func (w *Wallet) Verify(ctx context.Context) error {
	var health string
	if err := w.file.db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&health); err != nil {
		return w.file.explain(err)
	}
	if health != "ok" {
		return w.file.explain(fmt.Errorf("%w: %s", ErrDamaged, health))
	}
	wrong := func(what, query string) error {
		return w.file.each(ctx, func(scan func(...any) error) error {
			var id, is, want int64
			if err := scan(&id, &is, &want); err != nil {
				return err
			}
			return fmt.Errorf("%w: %s %d: %d nKVR, want %d", ErrUnbalanced, what, id, is, want)
		}, query)
	}
	checks := []struct{ what, query string }{
		{"entries of report", fmt.Sprintf(`SELECT r.id, coalesce(sum(e.nkvr), 0), 0 FROM reports r
			LEFT JOIN entries e ON e.report = r.id GROUP BY r.id, r.bytes
			HAVING coalesce(sum(e.nkvr), 0) <> 0 OR coalesce(max(e.nkvr), -1) <> r.bytes * %d OR count(e.id) <> 2
			ORDER BY r.id LIMIT 1`, Rate)},
		{"account", `SELECT a.id, a.balance, coalesce(sum(e.nkvr), 0) FROM accounts a
			LEFT JOIN entries e ON e.account = a.id GROUP BY a.id, a.balance
			HAVING a.balance <> coalesce(sum(e.nkvr), 0) ORDER BY a.id LIMIT 1`},
	}
	for _, c := range checks {
		if err := wrong(c.what, c.query); err != nil {
			return err
		}
	}
	return w.chains(ctx)
}

// chains checks every stored report: its signature, its place in its session, and the columns that
// were made from it.
func (w *Wallet) chains(ctx context.Context) error {
	var last Report
	var before []byte
	return w.file.each(ctx, func(scan func(...any) error) error {
		var id, picks, bytes int64
		var worker seal.PublicKey
		var signed []byte
		if err := scan(&id, keyColumn{&worker}, &picks, &bytes, &signed); err != nil {
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
		if worker != r.Worker || picks != total.Picks || bytes != total.Bytes {
			return fmt.Errorf("%w: report %d: %d picks, signed are %d", ErrUnbalanced, id, picks, total.Picks)
		}
		last, before = r, signed
		return nil
	}, "SELECT id, worker, picks, bytes, signed FROM reports ORDER BY backbone, session, sequence")
}
