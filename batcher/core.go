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
)

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

// ticket is a call's place in a core. Its user sets shape and first, and leaves it alone until all its
// rows have been taken or it has been withdrawn.
type ticket struct {
	shape moe.Shape
	first []int32 // as in moe.Batch: picks of row r are first[r] to first[r+1]
	call  *call   // whose it is; the core does not look

	next          int // the first row that still waits
	at            time.Time
	seq           uint64 // order of offers
	queue         *queue // nil: nothing waits
	before, after *ticket
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
}

// core decides which rows make up the next batch, and when. It has no clock, no goroutine and no lock:
// its user passes the time in and is alone with it.
//
// Rows of one shape wait in one queue, calls in the order in which they came. A queue is due when it
// could fill a batch, by rows or by bytes, or when its oldest row has waited for Limits.Delay. Of
// several that are due the one whose head came first goes first, so none starves.
//
// Invariants, checked against a twin that counts everything anew (core_test.go):
//
//  1. rows and bytes are the sums over all queues, and those of a queue are the sums over its tickets.
//  2. A queue in queues has a ticket; a ticket in a queue has a row that waits.
//  3. Along a queue seq ascends, and so does at.
//  4. A row is handed out once, or withdrawn, never both.
type core struct {
	Limits
	queues      []*queue // in no order
	free        []*queue
	rows, bytes int
	seq         uint64
}

// queue is what waits of one shape.
type queue struct {
	shape       moe.Shape
	head, tail  *ticket
	rows, bytes int
}

// offer lets all rows of t wait from now on, or refuses them all with ErrFull.
func (c *core) offer(now time.Time, t *ticket) error {
	rows, bytes := t.rows(), t.bytes(0, t.rows())
	if c.rows > 0 && (c.rows+rows > c.QueueRows || c.bytes+bytes > c.QueueBytes) {
		return fmt.Errorf("%w: %d rows and %d bytes wait, %d and %d more exceed %d and %d",
			ErrFull, c.rows, c.bytes, rows, bytes, c.QueueRows, c.QueueBytes)
	}
	c.seq++
	t.next, t.at, t.seq, t.after = 0, now, c.seq, nil
	q := c.find(t.shape)
	t.queue, t.before = q, q.tail
	if q.tail == nil {
		q.head = t
	} else {
		q.tail.after = t
	}
	q.tail = t
	c.count(q, rows, bytes)
	return nil
}

// next closes the batch that is due at now, if there is one: it appends its pieces to dst, at most one a
// ticket, and takes their rows off the queue.
func (c *core) next(now time.Time, dst []piece) []piece {
	var q *queue
	for _, o := range c.queues {
		if c.due(o, now) && (q == nil || o.head.seq < q.head.seq) {
			q = o
		}
	}
	if q == nil {
		return dst
	}
	rows, bytes := 0, 0
	for t := q.head; t != nil && rows < c.Rows; t = q.head {
		hi := t.next
		for hi < t.rows() && rows < c.Rows {
			n := t.bytes(hi, hi+1)
			if rows > 0 && bytes+n > c.Bytes {
				break
			}
			rows, bytes, hi = rows+1, bytes+n, hi+1
		}
		if hi == t.next {
			break // the next row does not fit
		}
		dst = append(dst, piece{t, t.next, hi})
		c.count(q, t.next-hi, -t.bytes(t.next, hi))
		t.next = hi
		if hi < t.rows() {
			break
		}
		c.unlink(t)
	}
	return dst
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
			d = d.Add(c.Delay)
		}
		if !ok || d.Before(at) {
			at, ok = d, true
		}
	}
	return at, ok
}

func (c *core) due(q *queue, now time.Time) bool {
	return c.full(q) || !now.Before(q.head.at.Add(c.Delay))
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
