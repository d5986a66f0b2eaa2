package batcher

import (
	"cmp"
	"context"
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
	// Probation is how long a member that failed is passed over: DefaultProbation when 0. Then it gets
	// one small dispatch; if that fails too, it is passed over for twice as long. When Probation is
	// negative it is passed over until its Update, or until it joins again.
	Probation time.Duration
	// Hedge is what may be sent twice because an answer is late, as a share of all picks: DefaultHedge
	// when 0, nothing when negative.
	Hedge float64
	// Patience is how long an answer is waited for at most where somebody else could give it:
	// DefaultPatience when 0. When it is negative every answer is waited for as long as it takes, and
	// nothing is sent twice.
	Patience time.Duration
	// Trace is told of every call, from many goroutines; it may be nil. It keeps nothing of the call
	// after it returns.
	Trace func(*Call)
}

// Dispatcher sends each pick to a member that holds its expert. It implements moe.Experts over any
// number of executors that come and go.
//
// Forward splits a batch by the present placement and sends the parts at the same time. A part that
// fails is split anew among the others, at last to the local fallback, and never again to a member that
// has failed it; the same goes for rows that a member answers with moe.Wide. A member that does not hold
// what it said is asked again once it says anew what it holds. What nobody holds waits for a member to
// join, and ends with ErrNowhere. Only an invalid batch, the caller's context and a full
// queue with no way round it end a call before.
//
// An answer that does not come in the time that the member's own past lets expect is late: others are
// asked beside it, and the first answer counts (chase). A member that fails is passed over for a while
// (breaker).
//
// A dispatcher has no goroutine of its own: those of a Forward end before it returns.
type Dispatcher struct {
	o        Options
	fallback *Member // nil: none
	spreads  spreads
	chases   sync.Pool // *chase
	choosers sync.Pool // *chooser
	slabs    slabs

	routing routing

	mu      sync.Mutex // never held while anything is computed or copied
	members []*Member
	budget  budget
	trials  trials
	turn    int
	changed chan struct{} // closed and replaced when somebody joins or has more
}

// LocalName is the name of the fallback.
const LocalName = "local"

// NewDispatcher returns a dispatcher without members.
func NewDispatcher(o Options) *Dispatcher {
	o.Wait = cmp.Or(o.Wait, DefaultWait)
	o.Wait = max(0, o.Wait)
	o.Probation = cmp.Or(o.Probation, DefaultProbation)
	o.Hedge = max(0, cmp.Or(o.Hedge, DefaultHedge))
	o.Patience = cmp.Or(o.Patience, DefaultPatience)
	d := &Dispatcher{o: o, changed: make(chan struct{}), budget: budget{share: o.Hedge}}
	d.spreads.d = d
	d.chases.New = func() any { return &chase{} }
	d.choosers.New = func() any { return &chooser{} }
	if o.Local != nil {
		d.fallback = &Member{name: LocalName, x: o.Local, d: d, local: true, set: &Set{}, done: make(chan struct{})}
	}
	return d
}

// Join adds an executor with what it holds. The name is for messages and need not be unique.
func (d *Dispatcher) Join(name string, x moe.Experts, holds *Set) *Member {
	m := &Member{name: name, x: x, d: d, set: holds.Clone(), done: make(chan struct{})}
	m.breaker.probation = max(0, d.o.Probation)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.members = append(d.members, m)
	d.tell()
	return m
}

// Close gives back the memory that the dispatcher keeps for its calls. It still works, and keeps none from then
// on.
func (d *Dispatcher) Close() {
	d.slabs.close()
	d.spreads.close()
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
	d.routing.note(b)
	if d.o.Trace == nil {
		return d.run(ctx, request{batch: b, out: out})
	}
	t := &trace{call: Call{Layer: b.Layer, Rows: b.Rows, Start: time.Now()}}
	err := d.run(ctx, request{batch: b, out: out, trace: t})
	t.end(err)
	d.o.Trace(&t.call)
	return err
}

// request is a batch to compute.
type request struct {
	batch *moe.Batch
	out   *moe.Partials
	tried []*Member // who is not to be asked
	but   *Member   // nor this one; nil: nobody
	hurry bool
	trace *trace
	over  *chase // whose dispatch this is to answer sooner; nil: none
}

// run computes a batch on whoever holds its experts.
func (d *Dispatcher) run(ctx context.Context, r request) error {
	s := d.spreads.take(ctx)
	s.root.tried = append(s.root.tried[:0], r.tried...)
	if r.but != nil {
		s.root.tried = append(s.root.tried, r.but)
	}
	s.out, s.err, s.last, s.hurry, s.trace, s.missing = r.out, nil, nil, r.hurry, r.trace, 0
	if r.over != nil {
		s.over, s.overJob = r.over.s, r.over.j
	}
	s.root = job{batch: r.batch, answer: r.out, tried: s.root.tried}
	s.serve(&s.root)
	s.wg.Wait()
	err := s.err
	if err == nil && len(s.pending) > 0 {
		panic("BUG: a call has ended before all answers to it were added")
	}
	d.slabs.put(s.slabs)
	clear(s.root.tried)
	clear(s.slabs)
	clear(s.pending)
	s.slabs, s.pending = s.slabs[:0], s.pending[:0]
	s.out, s.err, s.last, s.trace = nil, nil, nil, nil
	s.over, s.overJob, s.paid = nil, nil, nil
	s.root = job{tried: s.root.tried[:0]}
	d.spreads.put(s)
	if err != nil {
		r.out.Reset(0, r.batch.Hidden)
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

// leastRows is how many rows are not divided among members of which one is enough.
const leastRows = 32

// look fills c with the members that may compute something of a job's batch.
func (d *Dispatcher) look(c *chooser, b *moe.Batch, tried []*Member, now time.Time) view {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.members, c.fallback, c.least, c.trials, c.spare = c.members[:0], nil, leastRows, 0, 0
	v := view{changed: d.changed}
	d.turn++
	for i := range d.members {
		m := d.members[(d.turn+i)%len(d.members)]
		words := m.set.layer(b.Layer)
		if words == nil || member(tried, m) {
			continue
		}
		k := candidate{m: m, set: m.set, words: words, load: m.load, trial: m.trial}
		switch b := &m.breaker; b.ask(now) {
		case refuse:
			if b.state == tripped && b.probation > 0 && (v.retry.IsZero() || b.until.Before(v.retry)) {
				v.retry = b.until
			}
			continue
		case probe:
			k.quota = probeRows
		}
		if !k.trial { // a trial is to show what it is worth: the share is what it may cost
			k.pace = m.pace.get(now)
		}
		c.members = append(c.members, k)
		if k.trial {
			c.trials++
		}
	}
	if c.trials > 0 {
		c.spare = d.trials.lend(b.Rows, len(tried) == 0)
	}
	if d.fallback != nil && !member(tried, d.fallback) {
		c.fallback = d.fallback
	}
	c.level()
	return v
}

// giveBack takes back what look has lent to members on trial and c has not given them.
func (d *Dispatcher) giveBack(c *chooser) {
	if c.spare > 0 {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.trials.given -= int64(c.spare)
	}
}

// spend allows picks to be sent a second time, or does not.
func (d *Dispatcher) spend(picks int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.budget.take(picks)
}

// others reports whether all of a job might be computed without but, by those who have not had their turn. To
// hold the rest of a layer is not enough, nor is it to be let prove itself on a few rows of many.
func (d *Dispatcher) others(j *job, but *Member) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fallback != nil && !member(j.tried, d.fallback) {
		return true
	}
	var held [moe.MaxExperts / 64]uint64
	now := time.Now()
	for _, m := range d.members {
		leave := m.breaker.ask(now)
		if leave == probe && j.batch.Rows > probeRows {
			leave = refuse
		}
		if m != but && leave != refuse && !member(j.tried, m) {
			for i, word := range m.set.layer(j.batch.Layer) {
				held[i] |= word
			}
		}
	}
	for _, e := range j.batch.Expert {
		if !has(held[:], int(e)) {
			return false
		}
	}
	return true
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
func (d *Dispatcher) nowhere(j *job, last error) error {
	text := "start a worker that holds it, or serve with local experts"
	if last = cmp.Or(j.err, last); last != nil {
		return fmt.Errorf("%w: layer %d, expert %d, waited %v: %s; last answer: %w",
			ErrNowhere, j.batch.Layer, j.batch.Expert[0], d.o.Wait, text, last)
	}
	return fmt.Errorf("%w: layer %d, expert %d, waited %v: %s",
		ErrNowhere, j.batch.Layer, j.batch.Expert[0], d.o.Wait, text)
}
