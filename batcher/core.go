package batcher

import (
	"fmt"
	"time"

	"kvasir/internal/moe"
)

// Limits say when a batch is closed and how much may wait for one. A field that is 0 has its default.
type Limits struct {
	// Rows is the most rows of a batch: 1 to moe.MaxRows; 512 by default.
	Rows int
	// Bytes is the most bytes of a batch: values, scales and picks; 16 MiB by default. A batch of one
	// row may be larger.
	Bytes int
	// Delay is how long a row waits for company while the executor has room for another batch. By
	// default it does not wait: what arrives while all places are taken goes together all the same.
	Delay time.Duration
	// Adapt lets Delay be the most that a row waits, DefaultDelay when 0: it waits no longer than it
	// saves the executor, which the lane measures, and only while others come as often as that. Before
	// an executor further away than 2 ms nothing waits: see nearby.
	Adapt bool
	// QueueRows and QueueBytes bound what waits; 16,384 rows and 256 MiB by default. An empty queue
	// takes any one call, so that no call is refused for ever.
	QueueRows, QueueBytes int
}

// Defaults of Limits.
const (
	DefaultRows       = 512
	DefaultBytes      = 16 << 20
	DefaultQueueRows  = 4 * moe.MaxRows
	DefaultQueueBytes = 256 << 20
	DefaultDelay      = 5 * time.Millisecond
)

// nearby is up to what round trip rows wait for company. Beyond, what passes between two answers is more the
// line's doing than the executor's, and several calls are under way to hide it. In emulated time, with 16
// micro-batches of 16 to 32 rows under way and a worker that takes 5 ms a batch besides 20 us a row, to wait
// made a step a third shorter at 0 ms, and at 13 ms 4 % shorter to 9 % longer, by the jitter of the line.
const nearby = 2 * time.Millisecond

// withDefaults returns the limits in force, or an error that names the field out of bounds.
func (l Limits) withDefaults() (Limits, error) {
	for _, f := range []struct {
		name string
		at   *int
		def  int
	}{
		{"Rows", &l.Rows, DefaultRows},
		{"Bytes", &l.Bytes, DefaultBytes},
		{"QueueRows", &l.QueueRows, DefaultQueueRows},
		{"QueueBytes", &l.QueueBytes, DefaultQueueBytes},
	} {
		if *f.at < 0 {
			return l, fmt.Errorf("batcher: limit %s is %d, want 1 or more, or 0 for %d", f.name, *f.at, f.def)
		}
		if *f.at == 0 {
			*f.at = f.def
		}
	}
	if l.Rows > moe.MaxRows {
		return l, fmt.Errorf("batcher: limit Rows is %d, want up to %d", l.Rows, moe.MaxRows)
	}
	if l.Delay < 0 {
		return l, fmt.Errorf("batcher: limit Delay is %v, want 0 or more", l.Delay)
	}
	if l.Adapt && l.Delay == 0 {
		l.Delay = DefaultDelay
	}
	return l, nil
}

// pickBytes is what a pick counts against the byte limits: expert and weight.
const pickBytes = 2 + 4

// rowBytes is what the values of a row count against the byte limits.
func rowBytes(s moe.Shape) int {
	if s.Format == moe.RowF32 {
		return 4 * s.Hidden
	}
	return s.Hidden + 4*s.Format.Scales(s.Hidden)
}

// ticket is a call's place in a core. Its user sets shape, first and caller, and leaves it alone until
// all its rows have been taken or it has been withdrawn.
type ticket struct {
	shape  moe.Shape
	first  []int32 // as in moe.Batch: picks of row r are first[r] to first[r+1]
	caller Caller
	call   *call // whose it is; the core does not look

	next          int // the first row that still waits
	planned       int // the first row that is not in the batch being closed
	at            time.Time
	seq           uint64 // order of offers
	queue         *queue // nil: nothing waits
	before, after *ticket
	flow          *flow
	prior, later  *ticket // in the flow
}

// bytes counts the rows from lo up to hi.
func (t *ticket) bytes(lo, hi int) int {
	return (hi-lo)*rowBytes(t.shape) + int(t.first[hi]-t.first[lo])*pickBytes
}

func (t *ticket) rows() int { return len(t.first) - 1 }

// piece is the rows of one ticket that are in a batch.
type piece struct {
	t      *ticket
	lo, hi int
	picks  int
}

// core decides which rows make up the next batch, and when. It has no clock, no goroutine and no lock:
// its user passes the time in and is alone with it.
//
// Rows of one shape wait in one queue, those of each caller in the order in which they came. A queue is
// due when it could fill a batch, by rows or by bytes, or when its oldest row has waited for its time. Of
// several that are due, one with rows of the class that goes first does, and else the one whose oldest
// call came first. In a batch callers take turns, the class that goes first before the other.
//
// Invariants, checked against a twin that counts everything anew (core_test.go):
//
//  1. rows and bytes are the sums over all queues, and those of a queue are the sums over its tickets.
//  2. A queue in queues has a ticket; a ticket in a queue has a row that waits.
//  3. Along a queue seq ascends, and so does at; likewise along a flow. A ticket in a queue is in the flow
//     of its caller there.
//  4. A row is handed out once, or withdrawn, never both.
type core struct {
	Limits
	queues      []*queue // in no order
	free        []*queue
	rows, bytes int
	seq         uint64
	passed      int // batches in a row that left Bulk rows waiting and had none
	bulk        int // calls of class Bulk that wait

	lastOffer time.Time
	gap       time.Duration // between two offers, smoothed
	saves     time.Duration // what two dispatches made one save; set by the lane
}

// queue is what waits of one shape.
type queue struct {
	shape       moe.Shape
	head, tail  *ticket
	rows, bytes int
	flows       [Bulk + 1][]*flow // by class; who is first gets the first rows of the next batch
	free        []*flow
	turned      []*flow // room to turn flows in
}

// offer lets all rows of t wait from now on, or refuses them all with ErrFull.
func (c *core) offer(now time.Time, t *ticket) error {
	rows, bytes := t.rows(), t.bytes(0, t.rows())
	maxRows, maxBytes := c.QueueRows, c.QueueBytes
	if t.caller.Class == Bulk { // a quarter is kept for those who look on
		maxRows, maxBytes = maxRows-maxRows/4, maxBytes-maxBytes/4
	}
	if c.rows > 0 && (c.rows+rows > maxRows || c.bytes+bytes > maxBytes) {
		return fmt.Errorf("%w: %d rows and %d bytes wait, %d and %d more exceed %d and %d",
			ErrFull, c.rows, c.bytes, rows, bytes, maxRows, maxBytes)
	}
	c.arrive(now)
	c.seq++
	t.next, t.planned, t.at, t.seq, t.after = 0, 0, now, c.seq, nil
	if t.caller.Class == Bulk {
		c.bulk++
	}
	q := c.find(t.shape)
	t.queue, t.before = q, q.tail
	if q.tail == nil {
		q.head = t
	} else {
		q.tail.after = t
	}
	q.tail = t
	q.join(t)
	c.count(q, rows, bytes)
	return nil
}

// pass reports whether t would be a batch of its own at once if it were offered: then it is to be computed, and
// is not offered.
func (c *core) pass(now time.Time, t *ticket) bool {
	rows, bytes := t.rows(), t.bytes(0, t.rows())
	if c.rows > 0 || rows > c.Rows || bytes > c.Bytes && rows > 1 {
		return false
	}
	if full := rows == c.Rows || bytes >= c.Bytes; !full && c.delay() > 0 {
		return false
	}
	c.arrive(now)
	c.passed = 0
	return true
}

// next closes the batch that is due at now, if there is one: it appends its pieces to dst, at most one a
// ticket, and takes their rows off the queue.
func (c *core) next(now time.Time, dst []piece) []piece {
	var q *queue
	first := c.first()
	for _, o := range c.queues {
		if c.due(o, now) && (q == nil || o.before(q, first)) {
			q = o
		}
	}
	if q == nil {
		return dst
	}
	var b load
	c.plan(q, first, &b)
	c.plan(q, Bulk-first, &b)
	old, bulk := len(dst), false
	for _, class := range [...]Class{first, Bulk - first} {
		for _, f := range q.flows[class] {
			for t := f.head; t != nil && t.planned > t.next; t = t.later {
				dst = append(dst, piece{t, t.next, t.planned, int(t.first[t.planned] - t.first[t.next])})
				bulk = bulk || class == Bulk
			}
		}
	}
	for _, p := range dst[old:] {
		c.count(q, p.lo-p.hi, -p.t.bytes(p.lo, p.hi))
		if p.t.next = p.hi; p.t.next == p.t.rows() {
			c.unlink(p.t)
		}
	}
	if c.passed++; bulk || c.bulk == 0 {
		c.passed = 0
	}
	return dst
}

// before reports whether q goes before another queue that is due too.
func (q *queue) before(o *queue, first Class) bool {
	if mine, others := len(q.flows[first]) > 0, len(o.flows[first]) > 0; mine != others {
		return mine
	}
	return q.head.seq < o.head.seq
}

// withdraw takes what still waits of t off its queue. Rows that next has handed out are not its matter.
func (c *core) withdraw(t *ticket) {
	if t.queue == nil {
		return
	}
	c.count(t.queue, t.next-t.rows(), -t.bytes(t.next, t.rows()))
	t.next = t.rows()
	c.unlink(t)
}

// deadline returns when next will have a batch if nothing more is offered; ok is false when nothing
// waits. A time that has passed means now.
func (c *core) deadline() (at time.Time, ok bool) {
	for _, q := range c.queues {
		d := q.head.at
		if !c.full(q) {
			d = d.Add(c.delay())
		}
		if !ok || d.Before(at) {
			at, ok = d, true
		}
	}
	return at, ok
}

func (c *core) due(q *queue, now time.Time) bool {
	return c.full(q) || !now.Before(q.head.at.Add(c.delay()))
}

func (c *core) full(q *queue) bool { return q.rows >= c.Rows || q.bytes >= c.Bytes }

// find returns the queue of a shape, which may be a new and empty one.
func (c *core) find(s moe.Shape) *queue {
	for _, q := range c.queues {
		if q.shape == s {
			return q
		}
	}
	var q *queue
	if n := len(c.free); n > 0 {
		q, c.free = c.free[n-1], c.free[:n-1]
	} else {
		q = &queue{}
	}
	q.shape = s
	c.queues = append(c.queues, q)
	return q
}

func (c *core) count(q *queue, rows, bytes int) {
	c.rows, c.bytes = c.rows+rows, c.bytes+bytes
	q.rows, q.bytes = q.rows+rows, q.bytes+bytes
}

// unlink takes t, of which nothing waits any more, off its queue, and the queue away with its last.
func (c *core) unlink(t *ticket) {
	q := t.queue
	q.quit(t)
	if t.caller.Class == Bulk {
		c.bulk--
	}
	if t.before == nil {
		q.head = t.after
	} else {
		t.before.after = t.after
	}
	if t.after == nil {
		q.tail = t.before
	} else {
		t.after.before = t.before
	}
	t.queue, t.before, t.after = nil, nil, nil
	if q.head != nil {
		return
	}
	last := len(c.queues) - 1
	for i, o := range c.queues {
		if o == q {
			c.queues[i], c.queues[last] = c.queues[last], nil
			c.queues = c.queues[:last]
			c.free = append(c.free, q)
			return
		}
	}
}
