package engine

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"kvasir/engine/ledger"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

// booksTime bounds an entry in the ledger, which holds up the session that it is about.
const booksTime = 5 * time.Second

// meter enters what a hub counts into its ledger. It implements relay.Meter. What cannot be entered is
// logged: a session is not cut because its bytes could not be written down.
type meter struct {
	books *ledger.Hub
	log   *slog.Logger
}

func (m meter) enter(s relay.Session, f func(ctx context.Context, id ledger.SessionID) error) {
	ctx, cancel := context.WithTimeout(context.Background(), booksTime)
	defer cancel()
	id, err := ledger.ParseSessionID(s.ID)
	if err == nil {
		err = f(ctx, id)
	}
	if err != nil && m.log != nil && !errors.Is(err, ledger.ErrUnwritten) { // the ledger says that itself, once
		m.log.Error("the ledger has no entry of a session", "session", s.ID, "error", err)
	}
}

// Begin enters a session.
func (m meter) Begin(s relay.Session) {
	m.enter(s, func(ctx context.Context, id ledger.SessionID) error { return m.begin(ctx, s, id) })
}

func (m meter) begin(ctx context.Context, s relay.Session, id ledger.SessionID) error {
	return m.books.Begin(ctx, ledger.Session{ID: id, Worker: s.Worker, Backbone: s.Backbone, Start: s.Began})
}

// Count enters the bytes of a session so far.
func (m meter) Count(s relay.Session, toBackbone, toWorker uint64) {
	m.enter(s, func(ctx context.Context, id ledger.SessionID) error {
		count := ledger.Count{Session: id, ToWorker: int64(toWorker), ToBackbone: int64(toBackbone)}
		err := m.books.Meter(ctx, count)
		if errors.Is(err, ledger.ErrNoSession) { // its beginning could not be written then
			if err = m.begin(ctx, s, id); err == nil {
				err = m.books.Meter(ctx, count)
			}
		}
		return err
	})
}

// End enters the last count of a session, and that it has ended.
func (m meter) End(s relay.Session, toBackbone, toWorker uint64, _ error) {
	m.Count(s, toBackbone, toWorker)
	m.enter(s, func(ctx context.Context, id ledger.SessionID) error { return m.books.End(ctx, id, time.Now()) })
}

// keepBooks makes a hub enter bytes and reports into books, and show them to gateways.
func keepBooks(c *relay.HubConfig, books *ledger.Hub) {
	c.Meter = meter{books: books, log: c.Log}
	c.Report = func(ctx context.Context, g seal.Grant, body []byte) ([]byte, error) {
		got, err := books.Receive(ctx, ledger.Item{Grant: g, Report: body}) // it checks whose report it is
		if err != nil {
			return nil, err
		}
		return given(got)
	}
	root := c.Root
	c.Statement = func(ctx context.Context, p seal.Proof, body []byte) ([]byte, error) {
		return hear(ctx, books, root, p, body)
	}
	c.Ledger = ledger.Handler(books)
}
