package schedule

import (
	"cmp"
	"slices"
)

const (
	// defaultGrow is limits.grow. Answers end when they end: to keep room for the longest would
	// leave most of the memory empty.
	defaultGrow = 256
	// batchShare: where both classes wait, every batchShare-th admission is of class Batch, and
	// prompts of class Batch come first in every batchShare-th micro-batch.
	batchShare = 8
	// promptShare: decodes leave one in so many rows of a micro-batch to prompts, if there are any.
	promptShare = 8
	// quantum is the least rows of a prompt that go together, if it has them and there is room.
	// Each visit of a sequence moves its DeltaNet state through the cache, so small chunks cost
	// much.
	quantum = 64
)

// state says where a task is.
type state uint8

const (
	gone     state = iota // in no list: over, or not begun
	waiting               // in a queue; it has no sequence
	resuming              // in running, as all that follow; its sequence is being made
	idle                  // it has a sequence, and nobody uses it
	busy                  // in a micro-batch under way
)

// task is one choice of a request, as the core sees it: a run of known tokens of which its sequence
// has taken some. Prefill, decode, and the computing anew of what was preempted are all the same to
// it.
//
// Its user sets the first fields, and leaves the task to the core.
type task struct {
	class Class
	index int     // of the choice
	have  int     // tokens that are known: the prompt's and those chosen
	left  int     // tokens that may still be chosen
	forks int     // further choices, which part from this one when the prompt is computed
	owner *choice // whose it is; the core does not look

	state   state
	order   uint64 // of arrival; choices of a request follow each other
	fresh   bool   // never admitted
	done    int    // tokens that the sequence has taken
	promise int    // tokens for which room is kept
	served  int64  // number of the last micro-batch that it was in
	frees   int64  // core.frees when it was last given out
	short   bool   // its last step found no memory
	stalled bool   // and nothing has been freed since
	evict   bool   // to be preempted as soon as nobody uses it
	dying   bool   // to be removed as soon as nobody uses it
}

// decodes reports whether a single token is left to compute, which yields the next.
func (t *task) decodes() bool { return t.have-t.done == 1 }

func (t *task) inUse() bool { return t.state == busy || t.state == resuming }

// piece is the next n tokens of one task, in a micro-batch.
type piece struct {
	t *task
	n int
}

// core decides who is admitted, what makes up the next micro-batch, and who is preempted. It has no
// clock, no goroutine, no lock and no model: its user passes in how much memory there is, is alone
// with it, and tells it what came of what it said.
//
// Invariants, checked after every step of the tests (core_test.go):
//
//  1. A task is in one queue while it waits, in running while it has a sequence or is getting
//     one, and nowhere when it is gone.
//  2. A task is in one micro-batch at a time, and done <= have.
//  3. Queues and running are in the order of arrival. So a preempted task is ahead of all that
//     have not been admitted.
//  4. While a task is short of memory nobody is admitted, and the first of running is not
//     preempted unless it is alone: so it always goes on.
type core struct {
	limits
	bytes func(tokens int) int64 // what a sequence of so many tokens takes at most

	queues  [classes][]*task
	running []*task
	held    bool   // there was no room for the next in the queue, and nothing has been freed since
	passed  int    // admissions of class Interactive in a row while class Batch waited
	orders  uint64 // given out
	fresh   int    // tasks in queues that were never admitted
	frees   int64  // sequences given up

	decodes, prompts []*task // scratch of next
	counts           counts
}

// counts are sums since the beginning; Stats tells what of.
type counts struct {
	batches, rows, prefilled, reused, recomputed, preemptions int64
}

// limits bound what a core lets run and wait.
type limits struct {
	rows      int // the most of a micro-batch
	flights   int // micro-batches under way at once
	sequences int // that run at once
	waiting   int // requests that wait to be admitted for the first time, and have no place yet
	grow      int // tokens of its answer for which there must be room when a sequence is admitted
}

// full reports whether no further request may wait. Those for whom there are places do not wait: they are
// admitted before long, however many come at once.
func (c *core) full() bool { return c.fresh-c.seated() >= c.limits.waiting }

// seated is how many of those who were never admitted have places, which nobody else has. Where memory is
// short, nobody has.
func (c *core) seated() (n int) {
	free := c.sequences
	for _, r := range c.running {
		if free -= 1 + r.forks; r.short {
			return 0
		}
	}
	if c.held || free <= 0 || c.fresh < c.limits.waiting {
		return 0 // in the last case it makes no difference
	}
	for _, q := range c.queues {
		for _, t := range q {
			if free -= 1 + t.forks; free < 0 {
				return n
			}
			if t.fresh {
				n++
			}
		}
	}
	return n
}

// submit lets a new task wait.
func (c *core) submit(t *task) {
	t.fresh = true
	c.fresh++
	t.order = c.orders
	c.orders += uint64(1 + t.forks)
	c.wait(t)
}

// wait puts a task into its queue, where its time of arrival belongs.
func (c *core) wait(t *task) {
	t.state, t.done = waiting, 0
	t.short, t.stalled, t.evict = false, false, false
	t.promise = t.have + min(c.grow, t.left)
	c.queues[t.class] = insert(c.queues[t.class], t)
}

// insert puts a task where its order belongs.
func insert(list []*task, t *task) []*task {
	at, _ := slices.BinarySearchFunc(list, t, func(a, b *task) int { return cmp.Compare(a.order, b.order) })
	return slices.Insert(list, at, t)
}

// head returns the task that is to be admitted next. Class Interactive goes first, but not always.
func (c *core) head() *task {
	fast, slow := c.queues[Interactive], c.queues[Batch]
	if len(fast) > 0 && (len(slow) == 0 || c.passed < batchShare-1) {
		return fast[0]
	}
	if len(slow) > 0 {
		return slow[0]
	}
	return nil
}

// admits reports whether the head of the queue could be admitted if there is memory for it.
func (c *core) admits() bool {
	t := c.head()
	if t == nil || c.held {
		return false
	}
	seats := 1 + t.forks
	for _, r := range c.running {
		if seats += 1 + r.forks; r.short {
			return false // what becomes free is for r
		}
	}
	return seats <= c.sequences
}

// claim is how many bytes a task may still take within its promise.
func (c *core) claim(t *task) int64 {
	whole := c.bytes(max(t.promise, t.have))
	n := whole
	if t.state == idle || t.state == busy {
		n -= c.bytes(t.done)
	}
	// A fork shares the prompt and has a state of its own.
	return n + int64(t.forks)*(whole-c.bytes(t.have)+c.bytes(0))
}

// admit takes tasks off the queue as far as there is memory for them: room is what sequences may
// take beyond what they hold. No more are admitted at once than fill a micro-batch, so that those
// under way do not wait for many. Its user makes their sequences and answers each with resumed or
// refused.
func (c *core) admit(room int64) (list []*task) {
	for _, r := range c.running {
		room -= c.claim(r)
	}
	for rows := 0; rows < c.rows && c.admits(); {
		t := c.head()
		need := c.claim(t)
		if need > room && len(c.running) > 0 {
			c.held = true
			break
		}
		room -= need
		rows += t.have
		c.leaveQueue(t)
		switch {
		case t.class == Batch:
			c.passed = 0
		case len(c.queues[Batch]) > 0:
			c.passed++
		}
		t.state, t.frees = resuming, c.frees
		c.running = insert(c.running, t)
		list = append(list, t)
	}
	return list
}

func (c *core) leaveQueue(t *task) {
	q := c.queues[t.class]
	at := slices.Index(q, t)
	c.queues[t.class] = slices.Delete(q, at, at+1)
	if t.fresh {
		t.fresh = false
		c.fresh--
	}
}

// resumed says that t has a sequence, which knows done of its tokens from others.
func (c *core) resumed(t *task, done int) {
	t.state, t.done = idle, done
	c.held = false // while it was made its memory counted twice
	c.counts.reused += int64(done)
}

// refused says that there was no memory for the sequence of t. It waits again, unless it runs
// alone: then there never will be, and refused reports true and leaves it.
func (c *core) refused(t *task) (hopeless bool) {
	t.state = idle
	news := t.frees != c.frees // since it was tried
	if len(c.running) == 1 && !news {
		return true
	}
	c.leave(t)
	c.wait(t)
	c.held = !news
	return false
}

// leave takes a task out of running.
func (c *core) leave(t *task) {
	at := slices.Index(c.running, t)
	c.running = slices.Delete(c.running, at, at+1)
}

// freed is called when a sequence is given up: others may try again.
func (c *core) freed() {
	c.held = false
	c.frees++
	for _, r := range c.running {
		r.stalled, r.evict = false, false
	}
}

// took says that the n tokens of a piece were computed, and chosen tokens, 0 or 1, came of it. With
// the first one further choices part: each is to be placed by part.
func (c *core) took(t *task, n, chosen int) {
	c.counts.rows += int64(n)
	if !t.decodes() {
		c.counts.prefilled += int64(n)
		c.held = false // while it was under way its memory counted twice
	}
	t.state, t.short = idle, false
	t.done += n
	if chosen > 0 {
		t.have += chosen
		t.left -= chosen
		t.forks = 0
	}
}

// part places child, a choice that has parted from t and got its first token. With ok it has a
// sequence, which stands where t does; otherwise it found no memory, and waits to be computed by
// itself.
func (c *core) part(t, child *task, ok bool) {
	child.order = t.order + uint64(child.index)
	child.have, child.left = t.have, t.left
	if !ok {
		c.wait(child)
		return
	}
	child.state, child.done, child.promise, child.served = idle, t.done, t.promise, t.served
	c.running = insert(c.running, child)
}

// again lets a task wait, whose sequence is spoiled and given up, to be computed anew.
func (c *core) again(t *task) {
	c.counts.recomputed += int64(t.done)
	c.leave(t)
	c.wait(t)
	c.freed()
}

// remove takes a task away for good. It reports whether its sequence is to be given up now. If the
// task is in use it is only marked, and is to be removed when it comes back (back).
func (c *core) remove(t *task) (free bool) {
	switch t.state {
	case waiting:
		c.leaveQueue(t)
		c.held = false // its successor may be smaller
	case resuming, busy:
		t.dying = true
		return false
	case idle:
		c.leave(t)
		c.freed()
		free = true
	}
	t.state = gone
	return free
}

// back says that nobody uses t any more, whose piece or sequence came to nothing. Its user removes
// it, or lets it try again.
func (c *core) back(t *task) { t.state = idle }

// lacked says that there was no memory for a piece of t, which stands where it stood. It goes on
// when something has been freed; preempt sees to it.
func (c *core) lacked(t *task) {
	t.state, t.short, t.stalled = idle, true, t.frees == c.frees
	t.promise = t.have + min(c.grow, t.left)
}

// preempt makes room for those who lack it, one task at a time: the youngest. It appends to dst
// those whose sequences are to be given up now; they wait again. If somebody lacks memory who is
// alone, there is none to be had: preempt returns it as hopeless.
func (c *core) preempt(dst []*task) (victims []*task, hopeless *task) {
	if c.lacks() {
		if len(c.running) == 1 {
			return dst, c.running[0]
		}
		c.running[len(c.running)-1].evict = true
	}
	for i := len(c.running) - 1; i >= 0; i-- {
		if t := c.running[i]; t.evict && !t.inUse() && !t.dying {
			c.counts.preemptions++
			c.again(t)
			dst = append(dst, t)
		}
	}
	return dst, nil
}

// lacks reports whether somebody waits for memory and nobody is about to give any.
func (c *core) lacks() bool {
	any := false
	for _, t := range c.running {
		if t.evict || t.dying {
			return false
		}
		any = any || t.stalled
	}
	return any
}
