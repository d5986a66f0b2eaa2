package ledger

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"

	"kvasir/wire/seal"
)

// Outbox keeps what a worker or a backbone has signed until a wallet has read it, and gives it to the hub as
// often as that needs, and of a backbone what it knows of workers, and how far its sessions have come. It is safe for concurrent use; what Put returned
// nil for is on the disk.
//
//	Put -> kept -> given to the hub -> read by a wallet (Given.Acknowledged) -> forgotten
//	               ^                     |
//	               +-- the hub lost it --+   (Given.Fresh of what it had)
type Outbox struct {
	file *file
	log  *slog.Logger
	most int

	refused tally // records
}

// MaxOutbox is how many reports an outbox keeps; beyond it the oldest are lost.
const MaxOutbox = 1 << 14

// Item is a report, and where a worker keeps it, its statement.
type Item struct {
	Hub       string
	Grant     seal.Grant // of the backbone
	Report    []byte
	Statement []byte // may be empty
}

// Given is a hub's answer to an item. It travels as JSON.
type Given struct {
	Fresh        bool   `json:"fresh,omitempty"`        // it was new to the hub
	Acknowledged int64  `json:"acknowledged,omitempty"` // all of the session from this one up to this sequence is in a wallet
	Refused      string `json:"refused,omitempty"`      // it will never be taken, because of this

	// Held is nKVR that gateways hold back of what was signed for the worker who asks: a backbone's limit is reached.
	Held int64 `json:"held,omitempty"`

	// Newest is the newest report of the session that the hub has, in hexadecimal digits, where this one contradicts
	// it: a backbone whose disk has refused what it signed, and which was started anew, does not know it.
	Newest string `json:"newest,omitempty"`
}

// OpenOutbox opens the outbox at path, or makes one. log may be nil.
func OpenOutbox(ctx context.Context, path string, log *slog.Logger) (*Outbox, error) {
	f, err := openFile(ctx, path, outboxFile, log)
	if err != nil {
		return nil, err
	}
	return &Outbox{file: f, log: orDiscard(log), most: MaxOutbox}, nil
}

// Close closes the file.
func (o *Outbox) Close() error { return o.file.close() }

// Counts returns what could not be written, and records that were refused.
func (o *Outbox) Counts() map[string]uint64 { return o.refused.counts(o.file) }

// Put keeps an item. One that is there already stays as it is.
func (o *Outbox) Put(ctx context.Context, i Item) error {
	return o.put(ctx, i, func(*tx) error { return nil })
}

// put is Put, with what else is done in the transaction.
func (o *Outbox) put(ctx context.Context, i Item, also func(*tx) error) error {
	r, err := Parse(i.Report)
	if err != nil {
		return err
	}
	lost := 0
	err = o.file.update(ctx, func(t *tx) error {
		lost = 0
		err := t.exec(ctx, `INSERT INTO items (id, hub, session, sequence, grant_text, report, statement, given)
			SELECT coalesce(max(id), 0) + 1, $1, $2, $3, $4, $5, $6, 0 FROM items WHERE true ON CONFLICT DO NOTHING`,
			i.Hub, r.Session.String(), r.Sequence, i.Grant.String(), i.Report, append([]byte{}, i.Statement...))
		if err == nil {
			err = also(t)
		}
		if err != nil {
			return err
		}
		var n int
		if err := t.QueryRowContext(ctx, "SELECT count(*) FROM items").Scan(&n); err != nil || n <= o.most {
			return err
		}
		lost = n - o.most
		return t.exec(ctx, "DELETE FROM items WHERE id IN (SELECT id FROM items ORDER BY id LIMIT $1)", lost)
	})
	if err == nil && lost > 0 {
		o.log.Warn("no gateway has read these receipts for long, and there are too many; the oldest are lost", "reports", lost)
	}
	return err
}

// Waiting is how many items no wallet has read.
func (o *Outbox) Waiting(ctx context.Context) (n int, err error) {
	err = o.file.db.QueryRowContext(ctx, "SELECT count(*) FROM items").Scan(&n)
	return n, o.file.explain(err)
}

// kept is an item in the file.
type kept struct {
	Item
	id       int64
	sequence int64
	given    bool
}

// Flush gives a hub what it has not had, asks how far wallets have read, and forgets that. Where the hub has
// lost what it had, it gets all again. It returns the first error of give.
func (o *Outbox) Flush(ctx context.Context, hub string, give func(context.Context, Item) (Given, error)) error {
	var sessions []string
	err := o.file.each(ctx, func(scan func(...any) error) error {
		var s string
		err := scan(&s)
		sessions = append(sessions, s)
		return err
	}, "SELECT session FROM items WHERE hub = $1 GROUP BY session ORDER BY min(id)", hub)
	if err != nil {
		return err
	}
	for _, s := range sessions {
		if err := o.flush(ctx, hub, s, give); err != nil {
			return err
		}
	}
	return nil
}

// flush is Flush for a session. The first item is given in any case: it tells whether the hub has lost it.
func (o *Outbox) flush(ctx context.Context, hub, session string, give func(context.Context, Item) (Given, error)) error {
	items, err := o.items(ctx, hub, session)
	if err != nil {
		return err
	}
	again, upTo := false, int64(0)
	for n, i := range items {
		if n > 0 && i.given && !again || i.sequence <= upTo {
			continue
		}
		g, err := give(ctx, i.Item)
		if err != nil {
			return err
		}
		if g.Refused != "" {
			o.log.Warn("the hub refuses a receipt; it is forgotten", "session", session, "report", i.sequence, "why", g.Refused)
			if err := o.forget(ctx, "id = $1", i.id); err != nil {
				return err
			}
			continue
		}
		again = again || g.Fresh && i.given
		upTo = max(upTo, g.Acknowledged)
		if err := o.took(ctx, hub, session, i.sequence, g); err != nil {
			return err
		}
	}
	return nil
}

// Took says what a hub has answered to a report that it was given without Flush.
func (o *Outbox) Took(ctx context.Context, hub string, r *Report, g Given) error {
	return o.took(ctx, hub, r.Session.String(), r.Sequence, g)
}

// took forgets nothing before the item that the answer is about: the hub may not have had that. A row that is
// replaced by itself would count as written, though SQLite writes nothing of it.
func (o *Outbox) took(ctx context.Context, hub, session string, sequence int64, g Given) error {
	return o.file.update(ctx, func(t *tx) error {
		err := t.exec(ctx, "UPDATE items SET given = 1 WHERE hub = $1 AND session = $2 AND sequence = $3 AND given = 0", hub, session, sequence)
		if err != nil {
			return err
		}
		return t.exec(ctx, "DELETE FROM items WHERE hub = $1 AND session = $2 AND sequence >= $3 AND sequence <= $4",
			hub, session, sequence, g.Acknowledged)
	})
}

func (o *Outbox) forget(ctx context.Context, which string, args ...any) error {
	return o.file.update(ctx, func(t *tx) error { return t.exec(ctx, "DELETE FROM items WHERE "+which, args...) })
}

func (o *Outbox) items(ctx context.Context, hub, session string) (all []kept, err error) {
	err = o.file.each(ctx, func(scan func(...any) error) error {
		i := kept{Item: Item{Hub: hub}}
		var grant string
		if err := scan(&i.id, &i.sequence, &grant, &i.Report, &i.Statement, &i.given); err != nil {
			return err
		}
		var err error
		if i.Grant, err = seal.ParseGrant(grant); err != nil {
			return fmt.Errorf("%w: item %d: %w", ErrDamaged, i.id, err)
		}
		all = append(all, i)
		return nil
	}, `SELECT id, sequence, grant_text, report, statement, given FROM items
		WHERE hub = $1 AND session = $2 ORDER BY sequence LIMIT 4096`,
		hub, session)
	return all, err
}

// Receive is the hub's side of Outbox.Flush: it enters the report, and the statement where there is one. The
// caller has checked the grant. What will never be taken is Given.Refused; an error is worth another try.
func (h *Hub) Receive(ctx context.Context, i Item) (g Given, err error) {
	c, err := claimed(i.Report, &i.Grant)
	if err != nil {
		return h.gaveUp(err)
	}
	var s Statement
	var cannot error // enter the statement; the report is
	if len(i.Statement) > 0 {
		s, cannot = VerifyStatement(i.Statement)
	}
	spoilt := cannot
	err = h.file.updateOf(ctx, &c.report.Session, func(t *tx) error {
		g, cannot = Given{}, spoilt
		fresh, err := c.enter(ctx, t)
		if err != nil {
			return err
		}
		g.Fresh = fresh
		if len(i.Statement) > 0 && cannot == nil {
			fresh, cannot = s.enter(ctx, t, i.Statement)
			if cannot != nil && !own(cannot) {
				return cannot
			}
			g.Fresh = g.Fresh || fresh
		}
		if g.Fresh { // of what no wallet has read, nothing is acknowledged
			return nil
		}
		reports, statements, err := acknowledged(ctx, t.QueryContext, c.report.Session, c.report.Sequence)
		if g.Acknowledged = reports; len(i.Statement) > 0 {
			g.Acknowledged = min(reports, statements)
		}
		return err
	})
	fits := !errors.Is(err, ErrFork)
	if err == nil {
		err = cannot
	}
	if err != nil {
		g, err = h.gaveUp(err)
		if g.Refused != "" && !fits {
			g.Newest = h.newest(ctx, c.report.Session)
		}
		return g, err
	}
	if len(i.Statement) > 0 { // of a worker
		g.Held = int64(h.held(ctx, c.report.Worker))
	}
	return g, nil
}

// newest returns Given.Newest; empty: it cannot be had.
func (h *Hub) newest(ctx context.Context, session SessionID) string {
	var signed []byte
	err := h.file.db.QueryRowContext(ctx, "SELECT signed FROM reports WHERE session = $1 ORDER BY sequence DESC LIMIT 1",
		session.String()).Scan(&signed)
	if err != nil {
		return ""
	}
	return hex.EncodeToString(signed)
}

// gaveUp is the answer to what has an error.
func (h *Hub) gaveUp(err error) (Given, error) {
	h.refused.add(err)
	if refusal(err) || errors.Is(err, ErrWrongSession) || errors.Is(err, ErrNoSession) {
		return Given{Refused: err.Error()}, nil
	}
	return Given{}, err
}
