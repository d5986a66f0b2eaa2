package batcher

import (
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
	set   *Set // replaced, never changed
	down  bool
	until time.Time // end of probation; zero: down until the next Update
	left  bool
	calls int // dispatches under way
	load  int // picks under way
	stats Stats
	picks []int64 // of each layer, since the last Drain
}

// Stats is what a member has done since it joined.
type Stats struct {
	Name  string
	Local bool // the fallback
	Down  bool // it failed, and is passed over

	InFlight   int           // picks sent and not answered
	Dispatches int64         // batches sent
	Rows       int64         // rows whose answer was used
	Picks      int64         // picks whose answer was used
	Failures   int64         // dispatches that brought no answer, those given up by the caller aside
	Wait       time.Duration // from dispatch to answer, added up
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
	m.set, m.down = holds, false
	m.d.tell()
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
// member. What becomes of the caller afterwards does not matter, since the work was done.
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

// begin notes a dispatch. It returns what the member holds, or false when it has left.
func (m *Member) begin(picks int) (*Set, bool) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	if m.left {
		return nil, false
	}
	m.calls++
	m.load += picks
	m.stats.Dispatches++
	return m.set, true
}

// outcome is how a dispatch ended.
type outcome struct {
	layer       int
	sent        int // picks of the dispatch
	rows, picks int // whose answer was used
	failed      bool
	took        time.Duration
}

// finish notes the end of a dispatch.
func (m *Member) finish(o outcome) {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	m.calls--
	m.load -= o.sent
	m.stats.Wait += o.took
	m.stats.Rows += int64(o.rows)
	m.stats.Picks += int64(o.picks)
	if o.failed {
		m.stats.Failures++
	}
	if o.picks > 0 {
		if n := o.layer + 1 - len(m.picks); n > 0 {
			m.picks = append(m.picks, make([]int64, n)...)
		}
		m.picks[o.layer] += int64(o.picks)
	}
	m.settle()
}

// settle closes done when it is time. d.mu is held.
func (m *Member) settle() {
	if m.left && m.calls == 0 {
		close(m.done)
	}
}

// up reports whether the member may be sent something, and lifts a mark whose time is over. d.mu is held.
func (m *Member) up(now time.Time) bool {
	if m.down && !m.until.IsZero() && !now.Before(m.until) {
		m.down = false
	}
	return !m.down
}

// markDown passes the member over for the time of probation. d.mu is held.
func (m *Member) markDown(now time.Time) {
	m.down, m.until = true, time.Time{}
	if p := m.d.o.Probation; p > 0 {
		m.until = now.Add(p)
	}
}

// snapshot returns the counters. d.mu is held.
func (m *Member) snapshot(now time.Time) Stats {
	s := m.stats
	s.Name, s.Local, s.InFlight, s.Down = m.name, m.local, m.load, !m.up(now)
	return s
}
