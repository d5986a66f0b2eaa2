package batcher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"kvasir/internal/moe"
)

// DefaultWait is how long picks that nobody holds wait for somebody unless told otherwise.
const DefaultWait = 30 * time.Second

// Options of a Dispatcher.
type Options struct {
	// Local computes what no member answers. It may be nil, and it need not hold everything.
	Local moe.Experts
	// Wait is how long a pick that nobody holds waits for somebody to join: DefaultWait when 0, not at
	// all when negative.
	Wait time.Duration
	// Probation is how long a member that failed is passed over. When 0 it is passed over until its
	// Update, or until it joins again.
	Probation time.Duration
}

// Dispatcher sends each pick to a member that holds its expert. It implements moe.Experts over any
// number of executors that come and go.
//
// Forward splits a batch by the present placement and sends the parts at the same time. A part that
// fails is split anew among the others, at last to the local fallback, and never again to a member that
// has failed it; the same goes for rows that a member answers with moe.Wide. What nobody holds waits for
// a member to join, and ends with ErrNowhere. Only an invalid batch, the caller's context and a full
// queue with no way round it end a call before.
//
// A dispatcher has no goroutine of its own: those of a Forward end before it returns.
type Dispatcher struct {
	o        Options
	fallback *Member   // nil: none
	spreads  sync.Pool // *spread
	choosers sync.Pool // *chooser
	slabs    sync.Pool // *slab

	mu      sync.Mutex // never held while anything is computed or copied
	members []*Member
	turn    int
	changed chan struct{} // closed and replaced when somebody joins or has more
}

// NewDispatcher returns a dispatcher without members.
func NewDispatcher(o Options) *Dispatcher {
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	d := &Dispatcher{o: o, changed: make(chan struct{})}
	d.spreads.New = func() any { return &spread{d: d} }
	d.choosers.New = func() any { return &chooser{} }
	d.slabs.New = func() any { return &slab{} }
	if o.Local != nil {
		d.fallback = &Member{name: "local", x: o.Local, d: d, local: true, set: &Set{}, done: make(chan struct{})}
	}
	return d
}

// Join adds an executor with what it holds. The name is for messages and need not be unique.
func (d *Dispatcher) Join(name string, x moe.Experts, holds *Set) *Member {
	m := &Member{name: name, x: x, d: d, set: holds.Clone(), done: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.members = append(d.members, m)
	d.tell()
	return m
}

// Fallback returns the local executor as a member, for its counters; nil when there is none. It does not
// leave.
func (d *Dispatcher) Fallback() *Member { return d.fallback }

// Stats returns the counters of the present members, in the order in which they joined, and of the
// fallback, which comes last.
func (d *Dispatcher) Stats() []Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	var all []Stats
	for _, m := range d.members {
		all = append(all, m.snapshot(now))
	}
	if d.fallback != nil {
		all = append(all, d.fallback.snapshot(now))
	}
	return all
}

// Forward computes b on whoever holds its experts.
func (d *Dispatcher) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	if err := b.ValidateShape(moe.MaxExperts); err != nil {
		return err
	}
	s := d.spreads.Get().(*spread)
	s.ctx, s.out, s.err, s.root = ctx, out, nil, job{batch: b, answer: out, tried: s.root.tried[:0]}
	s.serve(&s.root)
	s.wg.Wait()
	err := s.err
	if s.cancel != nil {
		s.cancel()
	}
	clear(s.root.tried)
	s.ctx, s.cancel, s.out, s.err = nil, nil, nil, nil
	s.root = job{tried: s.root.tried[:0]}
	d.spreads.Put(s)
	if err != nil {
		out.Reset(0, b.Hidden)
	}
	return err
}

// tell wakes those who wait for somebody to join. d.mu is held.
func (d *Dispatcher) tell() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// view is what a dispatcher looks like to a job that finds nobody.
type view struct {
	changed <-chan struct{} // closed when it looks different
	retry   time.Time       // when a member ends its probation; zero: none will
}

// look fills c with the members that may compute something of a layer for a job.
func (d *Dispatcher) look(c *chooser, layer int, tried []*Member) view {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.members, c.fallback = c.members[:0], nil
	v := view{changed: d.changed}
	now := time.Now()
	d.turn++
	for i := range d.members {
		m := d.members[(d.turn+i)%len(d.members)]
		words := m.set.layer(layer)
		if words == nil || member(tried, m) {
			continue
		}
		if !m.up(now) {
			if !m.until.IsZero() && (v.retry.IsZero() || m.until.Before(v.retry)) {
				v.retry = m.until
			}
			continue
		}
		c.members = append(c.members, candidate{m: m, words: words, load: m.load})
	}
	if d.fallback != nil && !member(tried, d.fallback) {
		c.fallback = d.fallback
	}
	return v
}

// blame notes what a failure says about the member: that it lacks the layer after all, or that it is
// down; nothing if it was only full, or has been updated since the dispatch began, when it held set.
func (d *Dispatcher) blame(m *Member, set *Set, layer int, err error) {
	if m.local || errors.Is(err, ErrFull) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case m.set != set:
	case errors.Is(err, moe.ErrNotHeld):
		m.set = set.without(layer)
	default:
		m.markDown(time.Now())
	}
}

func member(list []*Member, m *Member) bool {
	for _, o := range list {
		if o == m {
			return true
		}
	}
	return false
}

// nowhere is the error of a pick that found nobody in time.
func (d *Dispatcher) nowhere(j *job) error {
	text := "start a worker that holds it, or serve with local experts"
	if j.err != nil {
		return fmt.Errorf("%w: layer %d, expert %d, waited %v: %s; last answer: %w",
			ErrNowhere, j.batch.Layer, j.batch.Expert[0], max(0, d.o.Wait), text, j.err)
	}
	return fmt.Errorf("%w: layer %d, expert %d, waited %v: %s",
		ErrNowhere, j.batch.Layer, j.batch.Expert[0], max(0, d.o.Wait), text)
}
