package batcher

import "kvasir/internal/moe"

// lateRows takes the answers to the rows of a call of a lane that has left. A nil one drops them.
type lateRows struct {
	to   moe.Late
	sums *moe.Partials // where executors write that were lent the rows beside others; nil: none was
}

// leave ends the lease of a call's rows; what is answered later goes to late, if that is not nil. mu is held.
func (c *call) leave(late moe.Late) {
	if late == nil {
		c.lease.End()
		return
	}
	c.late = &lateRows{to: late}
	if c.lent {
		c.late.sums = &moe.Partials{}
		c.lease.Divert(c.b, c.out, copyBatch(c.b), c.late.sums)
	}
}

// answer is told of the rows of a piece, whose answers begin at row at of out. They are those of a flight.
func (l *lateRows) answer(p piece, out *moe.Partials, at int, f *flight) {
	if l == nil {
		return
	}
	n := p.hi - p.lo
	if len(f.sent) > 1 && out == &f.sums { // where they were is the caller's again
		copy(l.sums.Status[p.lo:p.hi], out.Status[at:at+n])
		out, at = l.sums, p.lo
	}
	l.to.Answer(p.lo, out, at, n)
}

// Late implements moe.Lates for the executor of a flight: which of its callers have left, and are told of the
// answer all the same.
func (f *flight) Late() moe.Late {
	var all lateFlight
	for i, p := range f.sent {
		c := p.t.call
		c.mu.Lock()
		if c.over && c.late != nil && f.at[i] >= 0 {
			all = append(all, latePiece{p, c.late.to, f.at[i]})
		}
		c.mu.Unlock()
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// lateFlight takes the answer to a batch whose callers have all left.
type lateFlight []latePiece

type latePiece struct {
	piece
	to moe.Late
	at int // where it starts in the batch
}

// Answer implements moe.Late.
func (l lateFlight) Answer(lo int, out *moe.Partials, at, n int) {
	for _, p := range l {
		first, last := max(p.at, lo), min(p.at+p.hi-p.lo, lo+n)
		if first < last {
			p.to.Answer(p.lo+first-p.at, out, at+first-lo, last-first)
		}
	}
}
