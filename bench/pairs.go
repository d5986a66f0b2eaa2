package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"
)

const (
	pairsLeast = 5  // of a point that is judged
	pairsKept  = 3  // fewer that are left: the machine is too noisy to tell
	pairsMost  = 15 // that are tried
	peakDrift  = 0.05
)

// limits is what the machine can do at best, measured at one moment. 0: not measured.
type limits struct {
	peak float64 // products a second
	read float64 // bytes a second
}

// sample is one run of a point.
type sample struct {
	dispatches int
	took       time.Duration // by all of them
	against    time.Duration // by as many with uniform picks, in turns with them; 0: none
	touched    int           // experts, by all of them
	counted    counts        // by all of them, where the subject is a whole model
	allocs     uint64
}

// count adds what was counted on the way to the experts.
func (x *sample) count(c counts) {
	x.counted.calls += c.calls
	x.counted.touched += c.touched
	x.counted.picks += c.picks
}

// pair is a run of a point with the limits before and after it.
type pair struct {
	before, after limits
	run           sample
}

// steady reports whether the machine stayed the same during the pair: its peak, and where memory is what
// bounds the point its rate too.
func (p *pair) steady(reads bool) bool {
	near := func(a, b float64) bool { return max(a, b)-min(a, b) <= peakDrift*max(a, b) }
	return near(p.before.peak, p.after.peak) && (!reads || near(p.before.read, p.after.read))
}

// limits returns the means of those before and after.
func (p *pair) limits() limits {
	return limits{peak: (p.before.peak + p.after.peak) / 2, read: (p.before.read + p.after.read) / 2}
}

// keep returns the pairs during which the machine stayed the same.
func keep(pairs []pair, reads bool) []pair {
	var list []pair
	for i := range pairs {
		if pairs[i].steady(reads) {
			list = append(list, pairs[i])
		}
	}
	return list
}

// pairsSchedule says how many pairs a point gets. It has no clock.
type pairsSchedule struct {
	fixed int           // so many; 0: as many as it takes
	until time.Duration // from the beginning of the run, the time of this point is over
}

// again reports whether another pair is measured after so many were, of which some were kept.
func (s pairsSchedule) again(tried, kept int, now time.Duration) bool {
	switch {
	case s.fixed > 0:
		return tried < s.fixed
	case tried == 0:
		return true
	case kept >= pairsLeast, tried >= pairsMost, now > s.until:
		return false
	}
	return true
}

// meter is what pairs are made of.
type meter struct {
	limits func() limits
	run    func(ctx context.Context, pair int) (sample, error)
	now    func() time.Duration // since the run began
}

// collect measures pairs. What comes after one is what comes before the next.
func collect(ctx context.Context, m meter, s pairsSchedule, reads bool) ([]pair, error) {
	var pairs []pair
	before := m.limits()
	for s.again(len(pairs), len(keep(pairs, reads)), m.now()) {
		run, err := m.run(ctx, len(pairs)+1)
		if err != nil {
			return nil, err
		}
		after := m.limits()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		pairs = append(pairs, pair{before, after, run})
		before = after
	}
	return pairs, nil
}

// pointRun is a point under way.
type pointRun struct {
	r         *kernelsRun
	p         *point
	name      string
	done      float64 // of the whole run
	schedule  pairsSchedule
	identical bool
}

// pool is the rows that the point computes.
func (m *pointRun) pool() *pool {
	if m.p.picks == picksHot {
		return m.r.subject.hot
	}
	return m.r.subject.uniform
}

// pairs measures the point.
func (m *pointRun) pairs(ctx context.Context) ([]pair, error) {
	s, q := m.r.subject, m.pool()
	m.identical = true
	if err := q.use(m.p.rows); err != nil {
		return nil, err
	}
	if m.against() {
		if err := s.uniform.use(m.p.rows); err != nil {
			return nil, err
		}
	}
	m.r.o.progress(m.done, m.name+", warming up")
	if _, err := s.once(ctx, q); err != nil {
		return nil, err
	}
	return collect(ctx, meter{
		limits: m.limits, run: m.run, now: func() time.Duration { return time.Since(m.r.start) },
	}, m.schedule, m.p.reads() && s.read)
}

// against reports whether the point is compared with uniform picks.
func (m *pointRun) against() bool { return m.p.picks == picksHot }

// limits measures what the machine can do now.
func (m *pointRun) limits() limits {
	r, s := m.r, m.r.subject
	l := limits{peak: r.active.PeakRate(r.k.least)}
	if l.peak > 0 {
		r.peaks = append(r.peaks, l.peak)
	}
	if s.read {
		l.read = s.backend.ReadRate(s.arena, r.k.least)
	}
	if l.read > 0 {
		r.reads = append(r.reads, l.read)
	}
	return l
}

// run computes batches for a while.
func (m *pointRun) run(ctx context.Context, pair int) (sample, error) {
	m.r.o.progress(m.done, fmt.Sprintf("%s, pair %d", m.name, pair))
	var x sample
	var before, after runtime.MemStats
	s, q := m.r.subject, m.pool()
	for x.dispatches == 0 || x.took < m.r.k.least {
		if m.against() {
			took, err := s.once(ctx, s.uniform)
			if err != nil {
				return x, err
			}
			x.against += took
		}
		if x.dispatches == 0 {
			runtime.ReadMemStats(&before)
		}
		took, err := s.once(ctx, q)
		if err != nil {
			return x, err
		}
		if x.dispatches == 0 {
			runtime.ReadMemStats(&after)
			x.allocs = after.Mallocs - before.Mallocs
		}
		x.took += took
		x.touched += s.touched(q.part)
		x.dispatches++
	}
	if !q.same(&s.answer, q.at) {
		m.identical = false
	}
	return x, nil
}

// middle returns the median; 0 of nothing.
func middle(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	list = slices.Sorted(slices.Values(list))
	n := len(list)
	return (list[(n-1)/2] + list[n/2]) / 2
}
