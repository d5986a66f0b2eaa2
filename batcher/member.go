package batcher

import (
	"errors"
	"time"

	"kvasir/internal/moe"
)

// Member is an executor in a Dispatcher, from Join on.
type Member struct {
	name  string
	x     moe.Experts
	d     *Dispatcher
	local bool          // the fallback: it is asked last, whatever it holds
	done  chan struct{} // closed when the member has left and nothing is under way

	// Guarded by d.mu.
	set     *Set // replaced, never changed
	left    bool
	trial   bool
	calls   int // dispatches under way
	load    int // picks under way
	counts  Counts
	layers  []Counts // by layer
	faults  Faults
	late    time.Duration // see Stats.Deadline
	picks   []int64       // of each layer, since the last Drain
	breaker breaker
	history history
	pace    pace
}

// LayerPicks is a count of picks in one layer.
type LayerPicks struct {
	Layer int
	Picks int64
}

// Name is the name under which the member joined.
func (m *Member) Name() string { return m.name }

// Update says what the member holds from now on, for instance when it has a new slice. A member that was
// marked down is up again.
func (m *Member) Update(holds *Set) {
	holds = holds.Clone()
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	m.set = holds
	m.breaker.reset()
	m.d.tell()
}

// Trial says whether the member is on trial: nobody knows yet what its answers are worth. Those who are get
// trialShare of the rows at most, all of them together, where others but the fallback hold the experts too, and
// all that only they hold.
func (m *Member) Trial(on bool) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	m.trial = on && !m.local
}

// Leave takes the member out: nothing more is sent to it. What is under way may still be answered. The
// fallback stays.
func (m *Member) Leave() {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	if m.left || m.local {
		return
	}
	m.left = true
	for i, o := range m.d.members {
		if o == m {
			m.d.members = append(m.d.members[:i], m.d.members[i+1:]...)
			break
		}
	}
	m.settle()
}

// Done is closed when the member has left and nothing is under way: its counts stay as they are.
func (m *Member) Done() <-chan struct{} { return m.done }

// Stats returns the member's counters. They stay readable after Leave.
func (m *Member) Stats() Stats {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	return m.snapshot(time.Now())
}

// Drain appends to dst, by ascending layer, the picks that the member has computed since the last Drain,
// and forgets them: each pick that was answered and taken into a caller's sum is in one Drain of one
// member. What becomes of the caller afterwards does not matter, since the work was done. Of a pick that several
// were asked for, because one was late, it is in a Drain of each that has answered it, once: also after Done,
// while the executor still answers.
func (m *Member) Drain(dst []LayerPicks) []LayerPicks {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	for layer, n := range m.picks {
		if n != 0 {
			dst = append(dst, LayerPicks{layer, n})
			m.picks[layer] = 0
		}
	}
	return dst
}

// begun is what is known of a dispatch as it begins.
type begun struct {
	at     time.Time
	set    *Set // what the member holds
	epoch  int
	load   int           // picks under way, its own included
	late   time.Duration // after what its answer is late; 0: nobody knows
	giveUp time.Duration // after what it is given up, if somebody else can be asked
}

// begin notes a dispatch. It returns false when the member has left, is not to be asked, or holds
// something else by now than the set by which it was chosen.
func (m *Member) begin(now time.Time, b *moe.Batch, by *Set, why cause) (g begun, ok bool) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	g = begun{at: now, set: m.set}
	if m.left || m.set != by {
		return g, false
	}
	if g.epoch, ok = m.breaker.begin(g.at); !ok {
		return g, false
	}
	picks := len(b.Expert)
	m.calls++
	m.load += picks
	m.counts.sent(why)
	m.layer(b.Layer).sent(why)
	if why != hedge {
		m.d.budget.send(picks)
	}
	g.load, g.giveUp = m.load, m.d.o.Patience
	if late, ok := m.history.late(b.Rows); ok && !m.local {
		g.late = min(max(late, lateFloor), m.d.o.Patience)
		g.giveUp = min(max(giveUpFactor*g.late, giveUpFloor), m.d.o.Patience)
		m.late = g.late
	}
	return g, true
}

// verdict is how a dispatch ended.
type verdict uint8

const (
	answered verdict = iota
	beaten           // others answered first
	late             // given up, because others may answer sooner
	failed
	lacking // it does not hold the layer after all
	refused // it was full, or the batch was no batch
	void    // the caller left
)

// verdictOf is what an error says of a member whose caller has not left.
func verdictOf(err error) verdict {
	switch {
	case errors.Is(err, moe.ErrNotHeld):
		return lacking
	case errors.Is(err, ErrLate):
		return late
	case errors.Is(err, ErrFull), errors.Is(err, moe.ErrInvalid):
		return refused
	}
	return failed
}

// outcome is what is known of a dispatch as it ends.
type outcome struct {
	begun
	layer           int
	instead         *Member // who was asked before, in vain; nil: nobody
	sent, sentPicks int     // rows and picks of the dispatch
	rows, picks     int     // whose answer was used
	took, combine   time.Duration
	times           Times
	verdict         verdict
	hopeless        bool  // late, and nobody else had come
	fault           Fault // where the verdict is a failure
}

// fails notes why a dispatch was not answered, its caller not having left.
func (o *outcome) fails(err error) { o.verdict, o.fault = verdictOf(err), faultOf(err) }

// finish notes the end of a dispatch.
func (m *Member) finish(o *outcome) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	m.calls--
	m.load -= o.sentPicks
	m.counts.ended(o)
	m.layer(o.layer).ended(o)
	switch o.verdict {
	case late, failed, lacking, refused:
		m.faults[o.fault]++
	}
	m.earn(o.layer, o.picks)
	if !m.local {
		m.judge(o)
	}
	m.settle()
}

// earn counts picks for the next Drain. d.mu is held.
func (m *Member) earn(layer, picks int) {
	if picks == 0 {
		return
	}
	if n := layer + 1 - len(m.picks); n > 0 {
		m.picks = append(m.picks, make([]int64, n)...)
	}
	m.picks[layer] += int64(picks)
}

// answeredLate notes picks that the member has answered after others had, or might have.
func (m *Member) answeredLate(layer, picks int) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	m.earn(layer, picks)
	m.counts.Spare += int64(picks)
	m.layer(layer).Spare += int64(picks)
}

// judge draws conclusions about the member. d.mu is held.
func (m *Member) judge(o *outcome) {
	now := o.at.Add(o.took)
	was := m.breaker.state
	switch o.verdict {
	case answered, beaten, late: // of one that was late at least so much is known
		m.history.add(o.sent, o.took)
		m.pace.add(now, o.took, o.load)
		if o.verdict == answered {
			m.breaker.good(o.epoch)
		} else {
			m.breaker.lost(now, o.epoch)
		}
	case failed:
		m.breaker.bad(now, o.epoch)
	case lacking:
		m.breaker.void(now, o.epoch)
		if m.set == o.set {
			m.set = o.set.without(o.layer)
		}
	case refused, void:
		m.breaker.void(now, o.epoch)
	}
	if was == probing && m.breaker.state != probing {
		m.d.tell()
	}
}

// settle closes done when it is time. d.mu is held.
func (m *Member) settle() {
	if m.left && m.calls == 0 {
		close(m.done)
	}
}
