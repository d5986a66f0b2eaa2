package batcher

import (
	"time"

	"kvasir/internal/moe"
)

// Rehearsal is what a Dispatcher and its Lanes decide, for who has a clock of his own and executors that only
// take time: simulations of swarms larger than any machine. The dispatcher is one without executors, whose
// members joined with nil. A Rehearsal sends nothing, and is not safe for concurrent use.
type Rehearsal struct {
	d *Dispatcher
	c chooser
}

// NewRehearsal returns a rehearsal over the members of a dispatcher.
func NewRehearsal(d *Dispatcher) *Rehearsal { return &Rehearsal{d: d} }

// Dispatched is what a member would have been sent; with no member, what nobody holds.
type Dispatched struct {
	To    *Member
	Batch *moe.Batch // it borrows its rows
	o     outcome
}

// Dispatch divides b among the members, those of not aside, as Forward would at the time now, and notes the
// parts as begun. Whoever calls it ends each part that has a member.
func (r *Rehearsal) Dispatch(now time.Time, b *moe.Batch, not []*Member) ([]Dispatched, error) {
	r.d.look(&r.c, b, not, now)
	parts, err := Split(b, len(r.c.members), r.c.choose)
	r.d.giveBack(&r.c)
	if err != nil {
		return nil, err
	}
	why := first
	if len(not) > 0 {
		why = again
	}
	list := make([]Dispatched, 0, len(parts))
	for i := range parts {
		x := Dispatched{Batch: parts[i].Batch}
		if m, set := r.c.member(parts[i].To); m != nil {
			if g, ok := m.begin(now, x.Batch, set, why); ok {
				x.To = m
				x.o = outcome{begun: g, layer: b.Layer, sent: x.Batch.Rows, sentPicks: len(x.Batch.Expert)}
			}
		}
		list = append(list, x)
	}
	return list, nil
}

// End notes the end of a part, so long after it began: with an answer, or with the error for which there is
// none.
func (x *Dispatched) End(took time.Duration, err error) {
	x.o.took = took
	if err != nil {
		x.o.fails(err)
	} else {
		x.o.rows, x.o.picks = x.Batch.Rows, len(x.Batch.Expert)
	}
	x.To.finish(&x.o)
}

// Queue is what a Lane decides with: which rows of which calls make up the next batch. Its user passes the time
// in, and keeps to the lane's window himself.
type Queue struct {
	core  core
	calls map[*ticket]any
	list  []piece
}

// Queued is the rows of one call that are in a batch.
type Queued struct {
	Call        any
	Rows, Picks int
}

// NewQueue returns an empty queue with a lane's limits.
func NewQueue(l Limits) (*Queue, error) {
	l, err := l.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Queue{core: core{Limits: l}, calls: map[*ticket]any{}}, nil
}

// Offer lets the rows of a call wait, or refuses them with ErrFull.
func (q *Queue) Offer(now time.Time, b *moe.Batch, call any) error {
	t := &ticket{shape: b.Shape, first: b.First}
	if err := q.core.offer(now, t); err != nil {
		return err
	}
	q.calls[t] = call
	return nil
}

// Next closes the batch that is due, if there is one, and appends its pieces to dst.
func (q *Queue) Next(now time.Time, dst []Queued) []Queued {
	q.list = q.core.next(now, q.list[:0])
	for _, p := range q.list {
		dst = append(dst, Queued{q.calls[p.t], p.hi - p.lo, p.picks})
		if p.hi == p.t.rows() {
			delete(q.calls, p.t)
		}
	}
	return dst
}
