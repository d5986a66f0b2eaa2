package batcher

import (
	"errors"
	"time"
)

// ErrLate: an executor's answer did not come in time, and was not waited for any longer.
var ErrLate = errors.New("batcher: answer is late")

const (
	// DefaultProbation is how long a member that failed is passed over unless told otherwise.
	DefaultProbation = 2 * time.Second
	// probeRows is the most rows of the one dispatch that a member gets to prove itself.
	probeRows = 32
	// maxDoubling bounds how often the time of probation doubles.
	maxDoubling = 5
	// maxBeaten is how many dispatches in a row may be late before it counts as a failure.
	maxBeaten = 4
)

// state is a breaker's.
type state uint8

const (
	closed  state = iota // sent everything
	tripped              // passed over until its time
	probing              // has one small dispatch under way, and gets no other
)

// breaker decides whether a member that failed is asked. After a failure it is passed over for a time;
// then it gets one small dispatch. If that is answered all is well, else it is passed over for twice as
// long. It has no clock and no lock.
type breaker struct {
	probation time.Duration // 0: never again until reset
	state     state
	until     time.Time // end of tripped
	failures  int       // in a row
	late      int       // answers in a row
	epoch     int       // counts changes of state: what began before one says nothing after it
}

// leave is what a breaker lets through.
type leave uint8

const (
	pass  leave = iota
	probe       // one small dispatch
	refuse
)

// ask says what may be sent.
func (b *breaker) ask(now time.Time) leave {
	switch {
	case b.state == closed:
		return pass
	case b.state == tripped && b.probation > 0 && !now.Before(b.until):
		return probe
	}
	return refuse
}

// begin is called for a dispatch that is about to be sent. It returns the epoch to end it with, or false
// if the breaker does not let it pass.
func (b *breaker) begin(now time.Time) (epoch int, ok bool) {
	switch b.ask(now) {
	case refuse:
		return 0, false
	case probe:
		b.set(probing)
	}
	return b.epoch, true
}

// good notes an answer. It reports whether the member is back.
func (b *breaker) good(epoch int) (back bool) {
	if epoch != b.epoch {
		return false
	}
	b.late = 0
	if b.state == closed {
		return false
	}
	b.failures = 0
	b.set(closed)
	return true
}

// bad notes a failure.
func (b *breaker) bad(now time.Time, epoch int) {
	if epoch != b.epoch {
		return
	}
	b.until = now.Add(b.probation << min(b.failures, maxDoubling))
	b.failures++
	b.late = 0
	b.set(tripped)
}

// lost notes that an answer was late, and not waited for. It reports whether that was once too often.
func (b *breaker) lost(now time.Time, epoch int) (tripped bool) {
	if epoch != b.epoch {
		return false
	}
	if b.late++; b.late < maxBeaten && b.state == closed {
		return false
	}
	b.bad(now, epoch)
	return true
}

// void notes that a dispatch ended without saying anything about the member.
func (b *breaker) void(now time.Time, epoch int) {
	if epoch == b.epoch && b.state == probing {
		b.until = now
		b.set(tripped)
	}
}

// reset forgets all failures.
func (b *breaker) reset() {
	b.failures, b.late = 0, 0
	b.set(closed)
}

func (b *breaker) set(s state) { b.state, b.epoch = s, b.epoch+1 }

// DefaultHedge is what may be sent twice, as a share of what is sent, unless told otherwise.
const DefaultHedge = 0.05

// budget bounds what is sent twice. It has no lock.
type budget struct {
	share       float64
	sent, spare int64 // picks sent once, and picks sent a second time
}

// budgetWindow is after how many picks the past counts half.
const budgetWindow = 1 << 22

// send notes picks that are sent for the first time.
func (b *budget) send(picks int) {
	if b.sent += int64(picks); b.sent > budgetWindow {
		b.sent, b.spare = b.sent/2, (b.spare+1)/2
	}
}

// take allows picks to be sent a second time, or does not.
func (b *budget) take(picks int) bool {
	if float64(b.spare+int64(picks)) > b.share*float64(b.sent) {
		return false
	}
	b.spare += int64(picks)
	return true
}
