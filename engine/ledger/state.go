package ledger

import (
	"context"
	"fmt"

	"kvasir/wire/seal"
)

// state enters what a worker says of a report, which may come later. It returns true for what is new.
func (w *Wallet) state(ctx context.Context, t *tx, hub string, v verified) (fresh bool, err error) {
	s := &v.statement
	p, err := t.work(ctx, work{s.Backbone, s.Session}, 0)
	if err != nil {
		return false, err
	}
	backbone, session, worker := s.Backbone.String(), s.Session.String(), s.Worker.String()
	if s.Sequence <= p.stated {
		stored, err := samePlace(ctx, t, s, `SELECT signed FROM statements
			WHERE backbone = $1 AND session = $2 AND sequence = $3 AND worker = $4`, backbone, session, s.Sequence, worker)
		if stored || err != nil {
			return false, err
		}
	}
	id, err := t.id(ctx, walletStatements)
	if err != nil {
		return false, err
	}
	p.stated = max(p.stated, s.Sequence)
	return true, t.put(ctx, walletStatements, id, hub, worker, backbone, session, s.Sequence, s.Report.hex(), int64(s.Opinion),
		s.Answered, v.Statement)
}

// about joins statements s with the reports r that they are about: those of the worker whose work it is.
const about = "s.backbone = r.backbone AND s.session = r.session AND s.sequence = r.sequence AND s.worker = r.worker"

// disputed is what a worker does not agree with: it says so, or it was shown another report.
const disputed = "(s.opinion <> 1 OR r.hash <> '' AND s.hash <> r.hash)"

// Dispute is a report that its worker does not agree with.
type Dispute struct {
	Worker, Backbone seal.PublicKey
	Session          SessionID
	Sequence         int64
	Opinion          Opinion // Forked also where the worker was shown another report
	Signed           int64   // picks that the backbone has signed in the session, up to this report
	Answered         int64   // picks that the worker had answered then, as it says
}

// Disputes returns the newest disputes, at most limit, but for those that Damaged names.
func (w *Wallet) Disputes(ctx context.Context, limit int) (all []Dispute, err error) {
	err = w.list(ctx, "dispute of worker", func(scan func(...any) error) (seal.PublicKey, error) {
		var d Dispute
		var session string
		var same bool
		err := scan(keyColumn{&d.Worker}, keyColumn{&d.Backbone}, &session, &d.Sequence, &d.Opinion, &d.Answered, &same, &d.Signed)
		if err == nil {
			d.Session, err = ParseSessionID(session)
		}
		if err != nil {
			return d.Worker, err
		}
		if d.Opinion == Agree || !same {
			d.Opinion = Forked
		}
		all = append(all, d)
		return d.Worker, nil
	}, `SELECT r.worker, r.backbone, r.session, r.sequence, s.opinion, s.answered, r.hash = '' OR r.hash = s.hash,
		(SELECT sum(p.picks) FROM reports p WHERE p.backbone = r.backbone AND p.session = r.session AND p.sequence <= r.sequence)
		FROM statements s JOIN reports r ON `+about+` WHERE `+disputed+` ORDER BY s.id DESC LIMIT $1`, max(limit, 0))
	return all, err
}

// statements checks every stored statement: its signature, and the columns that were made from it.
func (w *Wallet) statements(ctx context.Context) error {
	return w.file.each(ctx, func(scan func(...any) error) error {
		var id, opinion, answered, sequence int64
		var worker, backbone seal.PublicKey
		var session, hash string
		var signed []byte
		err := scan(&id, keyColumn{&worker}, keyColumn{&backbone}, &session, &sequence, &hash, &opinion, &answered, &signed)
		if err != nil {
			return err
		}
		s, err := VerifyStatement(signed)
		if err != nil {
			return fmt.Errorf("%w: statement %d: %w", ErrUnbalanced, id, err)
		}
		if s.Worker != worker || s.Backbone != backbone || s.Session.String() != session || s.Sequence != sequence ||
			s.Report.hex() != hash || int64(s.Opinion) != opinion || s.Answered != answered {
			return fmt.Errorf("%w: statement %d is not what the worker has signed", ErrUnbalanced, id)
		}
		return nil
	}, "SELECT id, worker, backbone, session, sequence, hash, opinion, answered, signed FROM statements ORDER BY id")
}
