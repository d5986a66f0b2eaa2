package batcher

import (
	"errors"
	"time"

	"kvasir/internal/moe"
	"kvasir/wire/link"
)

// Counts is what came of dispatches. They are exact, and never fall:
//
//	Dispatches = Answered + Late + Failures + Void, and those under way
//	Failures   = the sum of Faults
type Counts struct {
	Dispatches int64         // batches sent
	Answered   int64         // whose answer was used
	Late       int64         // that others answered first, being asked because it was late
	Failures   int64         // that brought no answer, those given up by the caller aside
	Void       int64         // given up because the caller left
	Hedges     int64         // sent because others were late
	Retries    int64         // sent because others had failed, or did not hold what they were asked for
	Rows       int64         // whose answer was used
	Picks      int64         // likewise
	Spare      int64         // picks that it answered when they had been given up, for others were asked too
	Wait       time.Duration // from dispatch to answer, added up
}

// Add adds the counts of another.
func (c *Counts) Add(o *Counts) {
	c.Dispatches += o.Dispatches
	c.Answered += o.Answered
	c.Late += o.Late
	c.Failures += o.Failures
	c.Void += o.Void
	c.Hedges += o.Hedges
	c.Retries += o.Retries
	c.Rows += o.Rows
	c.Picks += o.Picks
	c.Spare += o.Spare
	c.Wait += o.Wait
}

// Stats is what a member has done since it joined, and what it is at.
type Stats struct {
	Name  string
	Local bool // the fallback
	Down  bool // it failed, and is passed over
	Trial bool // see Member.Trial
	Counts
	Faults Faults       // of Failures, by kind
	Layers []LayerStats // that it was sent something of, ascending

	Breaker  Breaker
	Retry    time.Time     // when it is tried again, if it is not asked; zero: not by itself
	Calls    int           // dispatches sent and not answered
	InFlight int           // picks of them
	Deadline time.Duration // after which its latest dispatch was late; 0: nothing known
	PerPick  time.Duration // what a pick takes it among others, lately; 0: nothing known
}

// LayerStats is what a member has done in one layer.
type LayerStats struct {
	Layer int
	Counts
}

// Breaker says whether a member is asked.
type Breaker uint8

// States of a Breaker.
const (
	BreakerClosed  Breaker = iota // it is sent everything
	BreakerOpen                   // it failed, and is passed over
	BreakerProbing                // it is passed over but for one small dispatch, which is under way or next
)

// String returns the word that stands in tables and metrics.
func (b Breaker) String() string { return [...]string{"closed", "open", "probing"}[b] }

// Fault is a kind of failure of a dispatch.
type Fault uint8

// Kinds of failures.
const (
	FaultLate    Fault = iota // no answer in time, and given up
	FaultLost                 // the session ended, or its lane
	FaultLeaving              // the worker, or this side, had said goodbye
	FaultWorker               // the worker could not compute it
	FaultLacking              // the worker does not hold it after all
	FaultFull                 // too much waits for it
	FaultInvalid              // the batch was refused as it is
	FaultAnswer               // the answer does not fit the batch
	FaultOther
	faults
)

// Faults counts failures by kind: index it with a Fault.
type Faults [faults]int64

var faultWords = [faults]string{
	"late", "lost", "leaving", "worker", "not_held", "full", "invalid", "answer", "other",
}

// String returns the word that stands in tables and metrics.
func (f Fault) String() string { return faultWords[f] }

// Sum is all failures.
func (f *Faults) Sum() (n int64) {
	for _, x := range f {
		n += x
	}
	return n
}

// Add adds the counts of another.
func (f *Faults) Add(o *Faults) {
	for i, x := range o {
		f[i] += x
	}
}

// faultOf is the kind of an error. Errors that name several kinds have the first.
func faultOf(err error) Fault {
	for _, k := range [...]struct {
		is   error
		kind Fault
	}{
		{ErrLate, FaultLate},
		{ErrAnswer, FaultAnswer},
		{moe.ErrNotHeld, FaultLacking},
		{ErrFull, FaultFull},
		{link.ErrBusy, FaultFull},
		{link.ErrDraining, FaultLeaving},
		{ErrClosed, FaultLost},
		{link.ErrClosed, FaultLost},
		{link.ErrTooBig, FaultInvalid},
		{moe.ErrInvalid, FaultInvalid},
		{link.ErrInternal, FaultWorker},
		{link.ErrCancelled, FaultWorker},
	} {
		if errors.Is(err, k.is) {
			return k.kind
		}
	}
	return FaultOther
}

// cause is why a dispatch is sent.
type cause uint8

const (
	first cause = iota
	again       // others have failed it
	hedge       // others are late
)

// layer returns the counts of a layer. d.mu is held.
func (m *Member) layer(l int) *Counts {
	if n := l + 1 - len(m.layers); n > 0 {
		m.layers = append(m.layers, make([]Counts, n)...)
	}
	return &m.layers[l]
}

// sent counts a dispatch that begins.
func (c *Counts) sent(why cause) {
	c.Dispatches++
	switch why {
	case again:
		c.Retries++
	case hedge:
		c.Hedges++
	}
}

// ended counts the end of a dispatch.
func (c *Counts) ended(o *outcome) {
	switch o.verdict {
	case answered:
		c.Answered++
	case beaten:
		c.Late++
	case void:
		c.Void++
	default:
		c.Failures++
	}
	c.Wait += o.took
	c.Rows += int64(o.rows)
	c.Picks += int64(o.picks)
}

// snapshot returns the counters. d.mu is held.
func (m *Member) snapshot(now time.Time) Stats {
	s := Stats{
		Name: m.name, Local: m.local, Trial: m.trial, Counts: m.counts, Faults: m.faults, Calls: m.calls, InFlight: m.load,
		Deadline: m.late, PerPick: time.Duration(m.pace.get(now) * float64(time.Second)),
	}
	switch leave := m.breaker.ask(now); {
	case leave == probe, m.breaker.state == probing:
		s.Breaker = BreakerProbing
	case leave == refuse:
		s.Breaker = BreakerOpen
		if m.breaker.probation > 0 {
			s.Retry = m.breaker.until
		}
	}
	s.Down = m.breaker.ask(now) == refuse
	for l := range m.layers {
		if m.layers[l].Dispatches > 0 {
			s.Layers = append(s.Layers, LayerStats{l, m.layers[l]})
		}
	}
	return s
}
