package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"kvasir/wire/seal"
)

// Wallet is the gateway's books: it reads the feeds of hubs and credits workers. It is safe for
// concurrent use.
type Wallet struct {
	file *file
	root seal.PublicKey
	log  *slog.Logger
	most int // reports of a backbone that are kept aside
	keep int // refusals of a hub that are kept, the newest
	now  func() time.Time

	refused tally
	odd     oddities
}

// aheadMax is how far the clock of who signs may be ahead of the wallet's: one of them may have been set back or
// forth by a day.
const aheadMax = 48 * time.Hour

// OpenWallet opens the wallets at path, or makes them, of the swarm with this root. log may be nil.
func OpenWallet(ctx context.Context, path string, root seal.PublicKey, log *slog.Logger) (*Wallet, error) {
	f, err := openFile(ctx, path, walletFile, log)
	if err != nil {
		return nil, err
	}
	return &Wallet{file: f, root: root, log: orDiscard(log), most: maxEarly, keep: maxRefusals, now: time.Now}, nil
}

// Close closes the file.
func (w *Wallet) Close() error { return w.file.close() }

// Polled is what came of reading a feed.
type Polled struct {
	Entries  int // read
	Credited int // reports that were new and hold
	Stated   int // statements of workers that were new
	Disputed int // of those
	Refused  int // entries that do not hold, also those that were refused before; see Refusals
	Reward   NKVR
}

// Poll reads the feed of a hub, which is known by a name, from where the last Poll of that name came
// to, up to its end, and credits what holds. A report that does not hold is put down with the reason,
// and the next one is looked at; one that came before others of its session is kept until they come.
//
// A hub that has less than was read already, or something else in its place, gets ErrFeedBack, and is read from its first entry the
// next time: what was credited stays credited, once.
func (w *Wallet) Poll(ctx context.Context, hub string, feed Feed) (sum Polled, err error) {
	if hub == "" || len(hub) > seal.MaxName {
		return Polled{}, fmt.Errorf("ledger: a hub's name has 1 to %d bytes", seal.MaxName)
	}
	for more := true; more && err == nil; {
		more, err = w.run(ctx, hub, feed, &sum)
	}
	return sum, err
}

// Follow polls a feed again and again, at once and then after every pause, until ctx ends. Errors go
// to the log, one and the same once.
func (w *Wallet) Follow(ctx context.Context, hub string, feed Feed, pause time.Duration) {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	said := ""
	var told []Held
	for {
		sum, err := w.Poll(ctx, hub, feed)
		if err == nil {
			_ = w.tellHeld(ctx, feed, &told) // it is told the next time
		}
		if ctx.Err() != nil {
			return
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != said && text != "" && !errors.Is(err, ErrUnwritten) { // of which there is a line
			w.log.Warn("feed cannot be read, credit waits", "hub", hub, "error", err)
		}
		said = text
		if sum.Disputed > 0 {
			w.log.Warn("a worker disputes what was signed for it; see kvasir ledger top", "hub", hub, "reports", sum.Disputed)
		}
		if sum.Credited > 0 {
			w.log.Debug("credited", "hub", hub, "reports", sum.Credited, "nkvr", int64(sum.Reward))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (w *Wallet) watermark(ctx context.Context, hub string) (at Mark, err error) {
	var hash string
	err = w.file.db.QueryRowContext(ctx, "SELECT watermark, hash FROM feeds WHERE hub = $1", hub).Scan(&at.ID, &hash)
	if errors.Is(err, sql.ErrNoRows) {
		return Mark{}, nil
	}
	if err == nil && hash != "" {
		at.Hash, err = parseHash(hash)
	}
	return at, w.file.explain(err)
}

// rewind makes the next Poll begin at the feed's first entry.
func (w *Wallet) rewind(ctx context.Context, hub string, after int64, why string) error {
	err := w.file.update(ctx, func(t *tx) error {
		return t.exec(ctx, "UPDATE feeds SET watermark = 0, hash = '' WHERE hub = $1 AND watermark = $2", hub, after)
	})
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: hub %s %s; it is read again from the first", ErrFeedBack, hub, why)
}

// verified is an entry after the checks that need no file: a report or a statement, or why there is none.
type verified struct {
	Entry
	report    Report
	total     Total
	statement Statement
	err       error
}

// verify checks an entry. Grants that are known to be the root's are in known.
func (w *Wallet) verify(e Entry, known map[string]*seal.Grant) verified {
	v := verified{Entry: e}
	if len(e.Statement) > 0 && len(e.Report) == 0 {
		if v.statement, v.err = VerifyStatement(e.Statement); v.err == nil {
			v.err = w.past(v.statement.Time)
		}
		return v
	}
	if v.report, v.err = Verify(e.Report); v.err != nil {
		return v
	}
	if v.total, v.err = v.report.Total(); v.err == nil {
		v.err = w.granted(e.Grant, known[e.Grant], &v.report)
	}
	if v.err == nil {
		v.err = w.past(v.report.Time)
	}
	return v
}

// verifyAll checks entries, on all processors: signatures take time.
func (w *Wallet) verifyAll(entries []Entry) []verified {
	known := map[string]*seal.Grant{} // there are few
	for _, e := range entries {
		if known[e.Grant] == nil && e.Grant != "" {
			if g, err := w.grant(e.Grant); err == nil {
				known[e.Grant] = &g
			}
		}
	}
	page := make([]verified, len(entries))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(entries)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(entries); i = int(next.Add(1)) - 1 {
				page[i] = w.verify(entries[i], known)
			}
		})
	}
	wg.Wait()
	return page
}

func (w *Wallet) past(at time.Time) error {
	if at.After(w.now().Add(aheadMax)) {
		return fmt.Errorf("%w: at %s", ErrFuture, at.Format(time.RFC3339))
	}
	return nil
}

// grant reads a grant of the root.
func (w *Wallet) grant(text string) (g seal.Grant, err error) {
	if len(text) > grantMax {
		return g, fmt.Errorf("%w: grant of %d bytes", ErrNotGranted, len(text))
	}
	if g, err = seal.ParseGrant(text); err == nil {
		err = g.Verify(w.root)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrNotGranted, err)
	}
	return g, err
}

// granted checks that the root has made the key under a report a backbone's, at the time of the report. A grant
// that is known was read before.
func (w *Wallet) granted(text string, known *seal.Grant, r *Report) error {
	if known == nil {
		g, err := w.grant(text)
		if err != nil {
			return err
		}
		known = &g
	}
	err := known.CheckTime(r.Time)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrNotGranted, err)
	case known.Role != seal.Backbone:
		return fmt.Errorf("%w: the grant is for another role", ErrNotGranted)
	case known.Key != r.Backbone:
		return fmt.Errorf("%w: the grant is for another key", ErrNotGranted)
	}
	return nil
}

// take enters pages that begin after the watermark, and moves the watermark, in one transaction. Where another
// Poll was quicker it does nothing, and moved is false.
func (w *Wallet) take(ctx context.Context, hub string, after int64, page []verified, sum *Polled) (moved bool, err error) {
	e := &entering{w: w, hub: hub, after: after, page: page}
	err = w.file.update(ctx, func(t *tx) error { return e.enter(ctx, t) })
	if errors.Is(err, ErrDamaged) && !errors.Is(err, ErrUnwritten) { // of the page's entries, one or more
		e.care = true
		err = w.file.update(ctx, func(t *tx) error { return e.enter(ctx, t) })
	}
	if err != nil {
		return false, err
	}
	for n, v := range e.news {
		w.refused.add(v.err)
		if n < maxSaid {
			w.log.Warn("entry refused", "hub", hub, "entry", v.ID, "error", v.err)
		}
	}
	if more := len(e.news) - maxSaid; more > 0 {
		w.log.Warn("more entries refused; see kvasir ledger top", "hub", hub, "entries", more)
	}
	sum.Entries += e.got.Entries
	sum.Credited += e.got.Credited
	sum.Stated += e.got.Stated
	sum.Disputed += e.got.Disputed
	sum.Refused += e.got.Refused
	sum.Reward += e.got.Reward
	return e.moved, nil
}

// entering is a page that is entered. With care, nothing stays of an entry that a damaged row stands in the way
// of; without, the transaction is given up there.
type entering struct {
	w     *Wallet
	hub   string
	after int64
	page  []verified
	care  bool

	got   Polled
	news  []verified // refused, and not before
	moved bool       // the watermark
}

// enter enters the page.
func (e *entering) enter(ctx context.Context, t *tx) error {
	e.got, e.news, e.moved = Polled{}, nil, false
	if err := t.exec(ctx, "INSERT INTO feeds (hub, watermark) VALUES ($1, 0) ON CONFLICT DO NOTHING", e.hub); err != nil {
		return err
	}
	var at int64
	if err := t.QueryRowContext(ctx, "SELECT watermark FROM feeds WHERE hub = $1", e.hub).Scan(&at); err != nil || at != e.after {
		return err
	}
	if !e.care {
		if err := t.read(ctx, e.page); err != nil {
			return err
		}
	}
	for _, v := range e.page {
		err := e.one(ctx, t, v)
		if refusal(err) || e.care && errors.Is(err, ErrDamaged) {
			var fresh bool
			v.err = err
			if fresh, err = refuse(ctx, t, e.hub, v.ID, err); fresh {
				e.news = append(e.news, v)
			}
			e.got.Refused++
		}
		if err != nil {
			return err
		}
	}
	if len(e.news) > 0 {
		if err := forget(ctx, t, e.hub, e.w.keep); err != nil {
			return err
		}
	}
	last := e.page[len(e.page)-1]
	e.moved = true
	return t.exec(ctx, "UPDATE feeds SET watermark = $1, hash = $2 WHERE hub = $3", last.ID, last.mark().hex(), e.hub)
}

// one enters an entry.
func (e *entering) one(ctx context.Context, t *tx, v verified) error {
	if e.care {
		return e.w.whole(ctx, t, e.hub, v, &e.got)
	}
	return e.w.one(ctx, t, e.hub, v, &e.got)
}

// whole is one, of which nothing stays where a damaged row stands in the way: all that depends on it is refused,
// and comes again when it is put back from a copy, and the watermark with it.
func (w *Wallet) whole(ctx context.Context, t *tx, hub string, v verified, got *Polled) error {
	before := *got
	var refused error
	damaged, err := t.try(ctx, func() error {
		err := w.one(ctx, t, hub, v, got)
		if refusal(err) {
			refused, err = err, nil
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case damaged != nil:
		*got = before
		got.Entries++
		return damaged
	}
	return refused
}

// one enters one entry.
func (w *Wallet) one(ctx context.Context, t *tx, hub string, v verified, got *Polled) error {
	got.Entries++
	if v.err == nil && v.statement.Sequence > 0 {
		fresh, err := w.state(ctx, t, hub, v)
		if fresh {
			got.Stated++
			if v.statement.Opinion != Agree {
				got.Disputed++
			}
		}
		return err
	}
	reward, credited, err := w.credit(ctx, t, hub, v)
	if errors.Is(err, ErrGap) {
		return w.early(ctx, t, hub, v, err)
	}
	if err != nil || !credited {
		return err
	}
	got.Credited++
	got.Reward += reward
	return w.follow(ctx, t, v.report, got)
}

// refusal reports whether an error is about a report, so that the next one may be looked at.
func refusal(err error) bool {
	for _, e := range []error{ErrBadReport, ErrBadStatement, ErrBadSignature, ErrGap, ErrFork, ErrNotGranted, ErrOverflow, ErrFuture} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Counts returns how many entries were refused, by the reason, and how often nothing could be written.
func (w *Wallet) Counts() map[string]uint64 { return w.refused.counts(w.file) }
