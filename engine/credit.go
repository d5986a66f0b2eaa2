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
	open     []worth
	output   int64
	mode     ledger.Mode

	pending, settled, voided ledger.NKVR

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

// worth is a report of the session that is pending.
type worth struct {
	sequence int64
	reward   ledger.NKVR
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
	if err != nil || report.Sequence <= c.sequence || reward > ledger.MaxBalance-c.pending-c.settled-c.voided {
		return
	}
	c.sequence, c.mode = report.Sequence, report.Mode
	c.output += total.Bytes
	c.fresh = c.fresh || total.Bytes > 0
	c.pending += reward
	c.open = append(c.open, worth{report.Sequence, reward})
	to, upTo := &c.settled, report.Holds
	if report.Wrong > 0 {
		to, upTo = &c.voided, report.Sequence
	}
	for len(c.open) > 0 && c.open[0].sequence <= upTo {
		c.pending -= c.open[0].reward
		*to += c.open[0].reward
		c.open = c.open[1:]
	}
}
