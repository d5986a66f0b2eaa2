package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"kvasir/wire/seal"
)

// Hub is the ledger of a hub: what its meter counted, and the reports that it was given. It is safe
// for concurrent use. Whatever returned nil is on the disk.
type Hub struct {
	file    *file
	log     *slog.Logger
	refused tally
}

// OpenHub opens the ledger at path, or makes one. log may be nil.
func OpenHub(ctx context.Context, path string, log *slog.Logger) (*Hub, error) {
	f, err := openFile(ctx, path, hubFile, log)
	if err != nil {
		return nil, err
	}
	return &Hub{file: f, log: orDiscard(log)}, nil
}

func orDiscard(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}

// Close closes the file.
func (h *Hub) Close() error { return h.file.close() }

// Session is a worker's connection with a backbone, as the hub paired them.
type Session struct {
	ID       SessionID
	Worker   seal.PublicKey
	Backbone seal.Grant // the hub has checked it at the door
	Start    time.Time
	End      time.Time // zero: under way

	ToWorker, ToBackbone int64 // bytes, by the meter
}

// Begin enters a session; reports and counts name it. To enter the same again does nothing.
func (h *Hub) Begin(ctx context.Context, s Session) error {
	grant, err := s.Backbone.MarshalText()
	if err != nil {
		return fmt.Errorf("session %s: %w", s.ID, err)
	}
	if s.Worker.IsZero() || s.Backbone.Key.IsZero() {
		return fmt.Errorf("%w: session %s lacks a key", ErrWrongSession, s.ID)
	}
	return h.file.update(ctx, func(t *tx) error { return begin(ctx, t, &s, string(grant), 0) })
}

// begin enters a session unless it is there.
func begin(ctx context.Context, t *tx, s *Session, grant string, claimed int) error {
	c, err := t.chain(ctx, s.ID)
	switch {
	case errors.Is(err, ErrNoSession):
	case err != nil:
		return err
	case c.worker != s.Worker || c.backbone != s.Backbone.Key:
		return fmt.Errorf("%w: id %s is taken", ErrWrongSession, s.ID)
	default:
		return nil
	}
	return t.exec(ctx, `INSERT INTO sessions (id, worker, backbone, grant_text, started, ended, to_worker, to_backbone, claimed)
		VALUES ($1, $2, $3, $4, $5, 0, 0, 0, $6)`,
		s.ID.String(), s.Worker.String(), s.Backbone.Key.String(), grant, s.Start.UnixMilli(), claimed)
}

// End enters a session's end; the first one holds. Reports that come later are still taken.
func (h *Hub) End(ctx context.Context, id SessionID, at time.Time) error {
	return h.file.update(ctx, func(t *tx) error {
		if _, err := t.chain(ctx, id); err != nil {
			return err
		}
		return t.exec(ctx, "UPDATE sessions SET ended = $1 WHERE id = $2 AND ended = 0", at.UnixMilli(), id.String())
	})
}

// Count is what the meter has counted of a session since its start.
type Count struct {
	Session              SessionID
	ToWorker, ToBackbone int64 // bytes
}

// Meter enters counts of bytes, all in one transaction. A count below the one before is not entered,
// nor one of an unknown session; the error names them, and the others are entered.
func (h *Hub) Meter(ctx context.Context, counts ...Count) error {
	var refused []error
	err := h.file.update(ctx, func(t *tx) error {
		refused = nil
		for _, c := range counts {
			err := meter(ctx, t, c)
			switch {
			case errors.Is(err, ErrMeterBack), errors.Is(err, ErrNoSession):
				refused = append(refused, err)
			case err != nil:
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return errors.Join(refused...)
}

func meter(ctx context.Context, t *tx, c Count) error {
	var toWorker, toBackbone int64
	err := t.QueryRowContext(ctx, "SELECT to_worker, to_backbone FROM sessions WHERE id = $1", c.Session.String()).
		Scan(&toWorker, &toBackbone)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w: %s", ErrNoSession, c.Session)
	case err != nil:
		return err
	case c.ToWorker < toWorker || c.ToBackbone < toBackbone:
		return fmt.Errorf("%w: session %s from %d and %d bytes to %d and %d",
			ErrMeterBack, c.Session, toWorker, toBackbone, c.ToWorker, c.ToBackbone)
	}
	return t.exec(ctx, "UPDATE sessions SET to_worker = $1, to_backbone = $2 WHERE id = $3",
		c.ToWorker, c.ToBackbone, c.Session.String())
}

// Append enters a signed report and returns it. The same report may come again. Refused is what is
// malformed, not signed by the session's backbone or about another worker, what leaves a gap, and
// what contradicts the chain.
func (h *Hub) Append(ctx context.Context, signed []byte) (Report, error) {
	r, _, err := h.enter(ctx, signed, nil)
	return r, err
}

// Claim is Append for a hub that may have lost what it had: a session that it does not know is entered with
// the report, and the reports before this one may be missing; the wallet, which may have read them, looks at
// that. The caller has checked the grant. It returns true for a report that is new here.
func (h *Hub) Claim(ctx context.Context, grant seal.Grant, signed []byte) (Report, bool, error) {
	return h.enter(ctx, signed, &grant)
}

// enter is Append, or with a grant Claim.
func (h *Hub) enter(ctx context.Context, signed []byte, grant *seal.Grant) (Report, bool, error) {
	c, err := claimed(signed, grant)
	var fresh bool
	if err == nil {
		err = h.file.updateOf(ctx, &c.report.Session, func(t *tx) (err error) {
			fresh, err = c.enter(ctx, t)
			return err
		})
	}
	if err != nil {
		h.refused.add(err)
		return Report{}, false, err
	}
	return c.report, fresh, nil
}

// signatures are checked at a hub by as many as there are processors, in the order in which they come: who writes,
// and all who wait for that, would else wait until hundreds of them are checked.
var signatures = make(chan struct{}, runtime.GOMAXPROCS(0))

// claim is a report that comes to a hub, after the checks that need no file.
type claim struct {
	report Report
	total  Total
	signed []byte
	grant  *seal.Grant // see Claim; nil: see Append
}

func claimed(signed []byte, grant *seal.Grant) (c claim, err error) {
	signatures <- struct{}{}
	defer func() { <-signatures }()
	c = claim{signed: signed, grant: grant}
	if c.report, err = Verify(signed); err == nil {
		c.total, err = c.report.Total()
	}
	return c, err
}

// enter enters the report; fresh says that it is new.
func (c *claim) enter(ctx context.Context, t *tx) (fresh bool, err error) {
	r := &c.report
	at, err := t.chain(ctx, r.Session)
	if errors.Is(err, ErrNoSession) && c.grant != nil && c.grant.Key == r.Backbone {
		s := Session{ID: r.Session, Worker: r.Worker, Backbone: *c.grant, Start: r.Time}
		if err = begin(ctx, t, &s, c.grant.String(), 1); err == nil {
			at, err = t.chain(ctx, r.Session)
		}
	}
	if err != nil {
		return false, err
	}
	if at.worker != r.Worker || at.backbone != r.Backbone {
		return false, fmt.Errorf("%w: report %d of session %s names other keys", ErrWrongSession, r.Sequence, r.Session)
	}
	session := r.Session.String()
	stored, err := place(ctx, t, at.head, r, c.signed, "SELECT sequence, signed FROM reports WHERE session = $1", session)
	if c.grant != nil && errors.Is(err, ErrGap) {
		err = nil
	}
	if stored || err != nil {
		return false, err
	}
	id, err := t.entry(ctx)
	if err != nil {
		return false, err
	}
	if r.Sequence > at.sequence {
		at.head = head{r.Sequence, c.signed}
	}
	return true, t.put(ctx, hubReports, id, session, r.Sequence, r.Worker.String(), c.total.Picks, c.total.Bytes, c.signed, newMark())
}

// Session returns a session.
func (h *Hub) Session(ctx context.Context, id SessionID) (Session, error) {
	s := Session{ID: id}
	var grant string
	var start, end int64
	err := h.file.db.QueryRowContext(ctx, `SELECT worker, grant_text, started, ended, to_worker, to_backbone
		FROM sessions WHERE id = $1`, id.String()).
		Scan(keyColumn{&s.Worker}, &grant, &start, &end, &s.ToWorker, &s.ToBackbone)
	if errors.Is(err, sql.ErrNoRows) {
		return Session{}, fmt.Errorf("%w: %s", ErrNoSession, id)
	}
	if err != nil {
		return Session{}, h.file.explain(err)
	}
	if s.Backbone, err = seal.ParseGrant(grant); err != nil {
		return Session{}, h.file.explain(fmt.Errorf("%w: session %s: %w", ErrDamaged, id, err))
	}
	s.Start = time.UnixMilli(start).UTC()
	if end != 0 {
		s.End = time.UnixMilli(end).UTC()
	}
	return s, nil
}

// Work is what a hub has seen of a worker, over all its sessions.
type Work struct {
	Worker   seal.PublicKey
	Sessions int64
	Picks    int64
	Output   int64 // bytes of expert output, which is what units count

	ToWorker, ToBackbone int64 // bytes, by the meter
}

// Work returns all workers, by key.
func (h *Hub) Work(ctx context.Context) (all []Work, err error) {
	err = h.file.each(ctx, func(scan func(...any) error) error {
		var w Work
		if err := scan(keyColumn{&w.Worker}, &w.Sessions, &w.ToWorker, &w.ToBackbone, &w.Picks, &w.Output); err != nil {
			return err
		}
		all = append(all, w)
		return nil
	}, `SELECT s.worker, s.sessions, s.to_worker, s.to_backbone, coalesce(r.picks, 0), coalesce(r.bytes, 0)
		FROM (SELECT worker, count(*) AS sessions, sum(to_worker) AS to_worker, sum(to_backbone) AS to_backbone
			FROM sessions GROUP BY worker) s
		LEFT JOIN (SELECT worker, sum(picks) AS picks, sum(bytes) AS bytes FROM reports GROUP BY worker) r
			ON r.worker = s.worker
		ORDER BY s.worker`)
	return all, err
}

// Counts returns how many reports and statements were refused, by the reason, and how often nothing could be
// written.
func (h *Hub) Counts() map[string]uint64 { return h.refused.counts(h.file) }
