package batcher

import (
	"context"
	"slices"
	"time"
)

// Class says how soon a caller needs its answer.
type Class uint8

// Classes. Rows of class Interactive go first, but seven batches in a row at most while others wait.
const (
	Interactive Class = iota // somebody looks on
	Bulk                     // batch jobs
)

// Caller is on whose behalf a call is made. Lanes are fair between callers, so that one with many rows
// does not hold up another with few.
type Caller struct {
	ID    uint64
	Class Class
}

type callerKey struct{}

// WithCaller says on whose behalf the calls are made that get this context, or one made of it. Without,
// all calls are one interactive caller's.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns on whose behalf calls with a context are made.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	c.Class = min(c.Class, Bulk)
	return c
}

const (
	// quantum is how many rows a caller has in a batch before it is another's turn.
	quantum = 32
	// maxPassed is how many batches in a row leave Bulk rows waiting.
	maxPassed = 7
)

// flow is the tickets of one caller in a queue, in the order of offers.
type flow struct {
	caller     Caller
	head, tail *ticket
	cursor     *ticket // while a batch is planned: the first of which something is not planned
}

// join puts a ticket at the end of its caller's flow.
func (q *queue) join(t *ticket) {
	list := &q.flows[t.caller.Class]
	at := slices.IndexFunc(*list, func(f *flow) bool { return f.caller.ID == t.caller.ID })
	if at < 0 {
		at = len(*list)
		*list = append(*list, q.newFlow(t.caller))
	}
	f := (*list)[at]
	t.flow, t.prior, t.later = f, f.tail, nil
	if f.tail == nil {
		f.head = t
	} else {
		f.tail.later = t
	}
	f.tail = t
}

// quit takes a ticket out of its flow, and the flow away with its last.
func (q *queue) quit(t *ticket) {
	f := t.flow
	if t.prior == nil {
		f.head = t.later
	} else {
		t.prior.later = t.later
	}
	if t.later == nil {
		f.tail = t.prior
	} else {
		t.later.prior = t.prior
	}
	t.flow, t.prior, t.later = nil, nil, nil
	if f.head != nil {
		return
	}
	list := &q.flows[f.caller.Class]
	at := slices.Index(*list, f)
	*list = slices.Delete(*list, at, at+1)
	q.free = append(q.free, f)
}

func (q *queue) newFlow(c Caller) *flow {
	n := len(q.free)
	if n == 0 {
		return &flow{caller: c}
	}
	f := q.free[n-1]
	q.free = q.free[:n-1]
	*f = flow{caller: c}
	return f
}

// load is what a batch that is planned has so far.
type load struct {
	rows, bytes int
	full        bool
}

// plan marks rows of one class for the batch: callers take turns, a quantum each, and the first that gets
// none will be the first of the next batch.
func (c *core) plan(q *queue, class Class, b *load) {
	list := q.flows[class]
	for _, f := range list {
		f.cursor = f.head
	}
	at, left := 0, len(list)
	for left > 0 && !b.full {
		f := list[at]
		if f.cursor != nil {
			c.planSome(f, b)
			if f.cursor == nil {
				left--
			}
		}
		at = (at + 1) % len(list)
	}
	if at > 0 {
		q.turned = append(append(q.turned[:0], list[at:]...), list[:at]...)
		copy(list, q.turned)
	}
}

// planSome marks up to a quantum of one caller's rows.
func (c *core) planSome(f *flow, b *load) {
	for n := quantum; n > 0 && f.cursor != nil; {
		t := f.cursor
		rows := min(n, t.rows()-t.planned, c.Rows-b.rows)
		size := t.bytes(t.planned, t.planned+rows)
		for rows > 0 && b.bytes+size > c.Bytes && (b.rows > 0 || rows > 1) {
			rows--
			size = t.bytes(t.planned, t.planned+rows)
		}
		if rows == 0 {
			b.full = true
			return
		}
		b.rows, b.bytes = b.rows+rows, b.bytes+size
		n -= rows
		if t.planned += rows; t.planned == t.rows() {
			f.cursor = t.later
		}
	}
	b.full = b.rows == c.Rows
}

// first is the class whose rows go first.
func (c *core) first() Class {
	if c.passed >= maxPassed {
		return Bulk
	}
	return Interactive
}

// gapWeight is how much the latest time between two offers counts, one in so many.
const gapWeight = 8

// arrive notes the time of an offer.
func (c *core) arrive(now time.Time) {
	if !c.lastOffer.IsZero() {
		gap := min(now.Sub(c.lastOffer), time.Minute)
		c.gap += (gap - c.gap) / gapWeight
	}
	c.lastOffer = now
}

// delay is how long a row waits for company. It adapts: at most as long as a dispatch of its own would
// cost, and not at all where nobody is likely to come in that time.
func (c *core) delay() time.Duration {
	switch {
	case !c.Adapt:
		return c.Delay
	case c.gap > c.saves:
		return 0
	}
	return min(c.Delay, c.saves)
}

// fit is a line through the times of dispatches by their rows, the latest counting most.
type fit struct{ n, x, y, xx, xy float64 }

// fitKeep is what is left of a dispatch's weight after the next.
const fitKeep = 0.97

func (f *fit) add(rows int, took time.Duration) {
	x, y := float64(rows), took.Seconds()
	f.n, f.x, f.y = fitKeep*f.n+1, fitKeep*f.x+x, fitKeep*f.y+y
	f.xx, f.xy = fitKeep*f.xx+x*x, fitKeep*f.xy+x*y
}

// fixed is the part of the time of a dispatch that does not depend on its rows: what two dispatches made
// one save. It is 0 until there were dispatches of different sizes.
func (f *fit) fixed() time.Duration {
	spread := f.n*f.xx - f.x*f.x
	if f.n < 4 || spread < f.n*f.n { // all within a row or so
		return 0
	}
	slope := max(0, (f.n*f.xy-f.x*f.y)/spread)
	return time.Duration(max(0, (f.y-slope*f.x)/f.n) * float64(time.Second))
}
