package engine

import (
	"sync"
	"time"

	"kvasir/engine/ledger"
	"kvasir/wire"
	"kvasir/wire/seal"
)

// credit adds up what backbones have signed. It believes what was signed by the backbone of the session,
// about this worker and that session, once.
type credit struct {
	own seal.PublicKey

	mu       sync.Mutex
	session  string
	sequence int64 // of the last report of session
	output   int64
	mode     ledger.Mode
	fates

	at   string // the session that goes on
	from int64  // output when it began, less what was signed by then

	look  patience
	fresh bool // a receipt for work has come, and is not on the disk yet
}

// patience is how long a worker works for who signs nothing.
type patience struct {
	seen  int64     // output at the last look
	since time.Time // of the first look that found work, since the last receipt for some; zero: none has
	grown time.Time // when there was more than at the look before
}

// unsignedMax is how long the work may go on without a receipt, or with none that the disk has taken: what is lost
// with the process is no promise.
const unsignedMax = time.Minute

// lull is after how long without work what is unsigned is not held against the backbone: an answer that
// nobody waited for any more is never signed.
const lull = 30 * time.Second

// unsigned reports whether the worker has worked for a minute, and no receipt has come for work.
func (c *credit) unsigned(output int64, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := &c.look
	if output == l.seen {
		return false // no work is done for nothing at present
	}
	if l.since.IsZero() || now.Sub(l.grown) >= lull {
		l.since = now
	}
	l.seen, l.grown = output, now
	return now.Sub(l.since) >= unsignedMax
}

// kept says that the receipts that have come are on the disk.
func (c *credit) kept() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fresh {
		c.fresh, c.look.since = false, time.Time{} // the next look begins anew
	}
}

// fates is what becomes of what was signed, as far as the reports of one session after another say.
type fates struct {
	pending, settled, voided ledger.NKVR
	open                     []worth
}

// worth is a report of the session that is pending.
type worth struct {
	sequence int64
	reward   ledger.NKVR
}

// add enters the next report of the session. It returns false where it cannot be counted any more.
func (f *fates) add(r *ledger.Report, reward ledger.NKVR) bool {
	if reward > ledger.MaxBalance-f.pending-f.settled-f.voided {
		return false
	}
	f.pending += reward
	f.open = append(f.open, worth{r.Sequence, reward})
	to, upTo := &f.settled, r.Holds
	if r.Wrong > 0 {
		to, upTo = &f.voided, r.Sequence
	}
	for len(f.open) > 0 && f.open[0].sequence <= upTo {
		f.pending -= f.open[0].reward
		*to += f.open[0].reward
		f.open = f.open[1:]
	}
	return true
}

// promised is what a backbone has signed for a worker in a session.
type promised struct {
	mu       sync.Mutex
	sequence int64 // of the last report
	fates
}

// add enters a report, once.
func (p *promised) add(r *ledger.Report) {
	total, err := r.Total()
	if err != nil {
		return
	}
	reward, err := ledger.Reward(total.Bytes)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && r.Sequence > p.sequence && p.fates.add(r, reward) {
		p.sequence = r.Sequence
	}
}

// sums returns what has settled, and what is void.
func (p *promised) sums() (settled, voided ledger.NKVR) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settled, p.voided
}

// begin says that a session begins after so much output. What of that was not signed, nobody will sign to
// this worker any more: the hub has the backbone's last report, or there is none.
func (c *credit) begin(session string, output int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.from = session, output-c.output
	c.look = patience{seen: output}
}

// unsaid is how much of the output of a session, which goes on, has no receipt. mu is held.
func (c *credit) unsaid(session string, output int64) int64 {
	if session != c.at {
		return 0 // it begins
	}
	return max(0, output-c.from-c.output)
}

// take is worker.Config.Receipt.
func (c *credit) take(backbone seal.PublicKey, session string, r wire.Receipt) {
	report, err := ledger.Verify(r.Signed)
	if err != nil || report.Worker != c.own || report.Backbone != backbone {
		return // it says nothing that would be paid
	}
	id, err := ledger.ParseSessionID(session)
	if err != nil || report.Session != id {
		return
	}
	total, err := report.Total()
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != session {
		c.session, c.sequence, c.open = session, 0, nil // what was open stays pending here; the wallet knows
	}
	reward, err := ledger.Reward(total.Bytes)
	if err != nil || report.Sequence <= c.sequence || !c.add(&report, reward) {
		return
	}
	c.sequence, c.mode = report.Sequence, report.Mode
	c.output += total.Bytes
	c.fresh = c.fresh || total.Bytes > 0
}
