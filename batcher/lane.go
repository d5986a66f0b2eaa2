package batcher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"kvasir/internal/moe"
)

// How many batches of a lane are under way at once unless told otherwise: DefaultWindow before an executor
// nearby, which works on few as well as on many and gets fuller ones so, and FarWindow before one that is far
// away, where they are what hides the round trip. 512 rows of a large model take 21 ms at 1 Gbit/s: of those
// FarWindow hides 300 ms.
const (
	DefaultWindow = 4
	FarWindow     = 16
)

// Lane is the queue before one executor. It implements moe.Experts: rows of calls that come at about the
// same time travel as one batch, a call of many rows travels as several, and each caller gets the answers
// to its own rows.
//
// The flow of a call: where nothing waits and the window has a place, Forward has the executor compute it
// itself. Else it offers it to the core and sleeps. One of the lane's goroutines, as many as the window has
// places, takes the next batch that is due, and has the executor compute it. Whoever got its last answer wakes
// up. Of what rows and answers are made nothing is copied where it can be helped:
//
//  1. A batch of one call is the call's own batch and partials, or a part of them. A call that leaves then
//     cancels the batch, and waits until the executor has let go.
//  2. A batch of several calls borrows their rows, where the executor is a moe.Borrower. A call that leaves
//     ends its lease and is gone; the others go on.
//  3. For another executor the rows of several calls are copied, and so are the answers: a caller who leaves
//     cannot wait for what others have under way.
//
// A caller's batch and partials are never touched once Forward has returned.
type Lane struct {
	x    moe.Experts
	lend bool           // x is a moe.Borrower
	wg   sync.WaitGroup // the goroutines, which end when closed is set, and calls that are computed straight
	pool sync.Pool      // *call

	mu      sync.Mutex // never taken under the lock of a call
	core    core
	idle    sync.Cond   // goroutines without a batch
	timer   *time.Timer // rings when a batch is due by its age
	rings   time.Time   // when; zero: it does not
	closed  bool
	flights []*flight
	near    int           // flights that are used before an executor nearby
	busy    int           // flights that have a batch, and calls that are computed straight
	fit     fit           // of the dispatches
	rtt     time.Duration // the least round trip that the executor told of; 0: it tells of none
}

// call is one Forward of a lane.
type call struct {
	ticket               // guarded by Lane.mu
	done   chan struct{} // one token when the lane has ended the call

	lease moe.Lease      // for batches that borrow its rows
	whole sync.WaitGroup // batches under way that are this call's alone

	mu    sync.Mutex // guards the rest
	over  bool       // nothing may begin to touch b and out any more
	lent  bool       // rows are in batches beside those of others
	late  *lateRows  // over, and takes what comes all the same; nil: nobody does
	b     *moe.Batch
	out   *moe.Partials
	left  int // rows without an answer
	err   error
	times Times // of the batch that was answered last
}

// flight is one place of the window, with the memory of its batch.
type flight struct {
	view  moe.Batch    // of rows that lie in those of calls
	sums  moe.Partials // likewise
	slab  copies
	sent  []piece   // of pieces, those that the executor has at present
	at    []int     // where each of them starts in the batch; -1: its caller had left
	taken time.Time // when it was closed
	times Times

	// Guarded by Lane.mu; the flight's goroutine may read pieces without.
	pieces []piece
	live   int // pieces whose caller waits
	ctx    context.Context
	cancel context.CancelFunc
}

// NewLane returns a lane before x with window batches under way at once; 0 means DefaultWindow or FarWindow,
// as x is near or far. The caller closes it, and x after it.
func NewLane(x moe.Experts, limits Limits, window int) (*Lane, error) {
	limits, err := limits.withDefaults()
	if err != nil {
		return nil, err
	}
	near := window
	if window == 0 {
		near, window = DefaultWindow, FarWindow
	}
	if window < 1 || window > moe.MaxRows {
		return nil, fmt.Errorf("batcher: window of %d batches, want 1 to %d", window, moe.MaxRows)
	}
	l := &Lane{x: x, core: core{Limits: limits}, near: near}
	_, l.lend = x.(moe.Borrower)
	l.pool.New = func() any { return &call{done: make(chan struct{}, 1)} }
	l.idle.L = &l.mu
	for range window {
		f := &flight{}
		l.flights = append(l.flights, f)
		l.wg.Go(func() {
			defer f.slab.release()
			for l.take(f) {
				l.run(f)
			}
		})
	}
	return l, nil
}

// Forward has the executor compute b, in one batch or several, with rows of other calls beside it. It
// returns ErrFull at once when too much waits, ErrClosed when the lane is closed, and what the executor
// returned for any batch that had rows of this call.
func (l *Lane) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	return l.ForwardTimed(ctx, b, out, nil)
}

// ForwardTimed is Forward, and tells how long the rows waited and what the executor did with the batch in
// which the last of them were. times may be nil.
func (l *Lane) ForwardTimed(ctx context.Context, b *moe.Batch, out *moe.Partials, times *Times) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := b.ValidateShape(moe.MaxExperts); err != nil {
		return err
	}
	out.Size(b.Rows, b.Hidden) // every row will be written
	if l.board(b, CallerOf(ctx)) {
		return l.straight(ctx, b, out, times)
	}
	c := l.pool.Get().(*call)
	c.over, c.lent, c.late, c.b, c.out, c.left, c.err = false, false, nil, b, out, b.Rows, nil
	c.ticket = ticket{shape: b.Shape, first: b.First, caller: CallerOf(ctx), call: c}
	if err := l.offer(&c.ticket); err != nil {
		out.Reset(0, b.Hidden)
		return err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		if !l.end(c, ctx.Err(), moe.LateOf(ctx)) {
			<-c.done // it was answered at the same moment
		}
	}
	if err := c.err; err != nil {
		c.whole.Wait()
		out.Reset(0, b.Hidden)
		return err // batches under way may still know c: it is not used again
	}
	if times != nil {
		*times = c.times
	}
	c.b, c.out, c.ticket = nil, nil, ticket{}
	l.pool.Put(c)
	return nil
}

// Close fails the calls of which something waits, lets the batches under way finish, and returns when
// the lane has no goroutine left. To cut short what is under way, close the executor first.
func (l *Lane) Close() {
	l.mu.Lock()
	l.closed = true
	var waiting []*call
	for _, q := range l.core.queues {
		for t := q.head; t != nil; t = t.after {
			waiting = append(waiting, t.call)
		}
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	l.idle.Broadcast()
	l.mu.Unlock()
	for _, c := range waiting {
		l.fail(c, ErrClosed)
	}
	l.wg.Wait()
}

func (l *Lane) offer(t *ticket) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	now := time.Now()
	if err := l.core.offer(now, t); err != nil {
		return err
	}
	l.wake(now)
	return nil
}

// wake sees to it that the next batch is taken when it is due. l.mu is held.
func (l *Lane) wake(now time.Time) {
	at, ok := l.core.deadline()
	switch {
	case !ok:
	case !at.After(now):
		l.idle.Signal()
	case l.timer == nil:
		l.rings = at
		l.timer = time.AfterFunc(at.Sub(now), l.ring)
	case !l.rings.Equal(at):
		l.rings = at
		l.timer.Reset(at.Sub(now))
	}
}

func (l *Lane) ring() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rings = time.Time{}
	if !l.closed {
		l.wake(time.Now())
	}
}

// take waits for the next batch that is due and gives it to f. It returns false when the lane is closed.
func (l *Lane) take(f *flight) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(f.pieces) > 0 {
		l.busy--
	}
	f.pieces, f.live = f.pieces[:0], 0
	for !l.closed {
		if l.busy >= l.places() {
			l.idle.Wait() // whoever ends takes the next
			continue
		}
		now := time.Now()
		f.pieces = l.core.next(now, f.pieces)
		l.wake(now) // for the one after
		if len(f.pieces) > 0 {
			f.live, f.taken = len(f.pieces), now
			l.busy++
			if f.ctx == nil || f.ctx.Err() != nil {
				f.ctx, f.cancel = context.WithCancel(context.Background())
				f.ctx = &moe.LateContext{Context: f.ctx, Lates: f}
			}
			return true
		}
		l.idle.Wait()
	}
	if f.cancel != nil {
		f.cancel()
	}
	return false
}

// places is how many flights are used. l.mu is held.
func (l *Lane) places() int {
	if l.rtt > nearby {
		return len(l.flights)
	}
	return l.near
}

// run has the batch of f computed and gives each caller its answers. When the executor refuses a batch
// for what is in it, each call is tried by itself, so that one caller's mistake is not another's.
func (l *Lane) run(f *flight) {
	err := l.dispatch(f, f.pieces)
	if len(f.pieces) > 1 && (errors.Is(err, moe.ErrInvalid) || errors.Is(err, moe.ErrNotHeld)) {
		for i := range f.pieces {
			if err := l.dispatch(f, f.pieces[i:i+1]); err != nil {
				l.fail(f.pieces[i].t.call, err)
			}
		}
		return
	}
	if err != nil {
		for _, p := range f.pieces {
			l.fail(p.t.call, err)
		}
	}
}

// dispatch has pieces computed as one batch, and answers their callers unless it returns an error.
func (l *Lane) dispatch(f *flight, pieces []piece) error {
	f.sent = pieces
	if len(pieces) == 1 {
		return l.alone(f, pieces[0])
	}
	b, out := f.share(pieces, l.lend)
	if b.Rows == 0 {
		return nil // all callers have left
	}
	if err := l.forward(f, b, out); err != nil {
		return fmt.Errorf("batch of %d rows for layer %d: %w", b.Rows, b.Layer, err)
	}
	for i, p := range pieces {
		if f.at[i] >= 0 {
			p.t.call.answer(p, out, f.at[i], f)
		}
	}
	return nil
}

// alone is dispatch for the rows of one call, which are computed where they lie.
func (l *Lane) alone(f *flight, p piece) error {
	c := p.t.call
	f.at = append(f.at[:0], 0)
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return nil
	}
	c.whole.Add(1)
	defer c.whole.Done()
	b, out := c.b, c.out
	c.mu.Unlock()
	if p.hi-p.lo < b.Rows {
		f.view.Borrow(b.Shape)
		f.view.BorrowRows(b, p.lo, p.hi, nil)
		f.sums.Borrow(b.Hidden)
		f.sums.BorrowRows(out, p.lo, p.hi, nil)
		b, out = &f.view, &f.sums
	}
	rows, layer := b.Rows, b.Layer
	if err := l.forward(f, b, out); err != nil {
		return fmt.Errorf("batch of %d rows for layer %d: %w", rows, layer, err)
	}
	c.answer(p, out, 0, f)
	return nil
}

// forward has the executor compute the batch of f, and learns from it.
func (l *Lane) forward(f *flight, b *moe.Batch, out *moe.Partials) error {
	d, err := l.compute(f.ctx, b, out, &f.times)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.learn(d)
	return nil
}

// share puts the rows of several calls, as far as they still wait, into one batch, and finds a place for the
// answers. f.at tells where each piece begins.
func (f *flight) share(pieces []piece, lend bool) (*moe.Batch, *moe.Partials) {
	shape := pieces[0].t.shape
	b, out := &f.view, &f.sums
	b.Borrow(shape)
	out.Borrow(shape.Hidden)
	if !lend {
		rows, picks := 0, 0
		for _, p := range pieces {
			rows += p.hi - p.lo
			picks += p.picks
		}
		b, out = f.slab.batch(shape, rows, picks), &f.slab.answer
	}
	f.at = f.at[:0]
	for _, p := range pieces {
		f.at = append(f.at, p.t.call.join(p, b, out))
	}
	return b, out
}

// join adds the rows of p to b, and their place to out if they are lent. It returns where they start, or -1 if
// the call is over.
func (c *call) join(p piece, b *moe.Batch, out *moe.Partials) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return -1
	}
	at := b.Rows
	if b.Borrowed() {
		c.lent = true
		b.BorrowRows(c.b, p.lo, p.hi, &c.lease)
		out.BorrowRows(c.out, p.lo, p.hi, &c.lease)
		return at
	}
	for r := p.lo; r < p.hi; r++ {
		copyRow(b.Row(b.Grow(c.b.Picks(r))), c.b.Row(r))
	}
	return at
}

// answer ends the wait for the rows of p, whose answers start at row at of out, unless their caller has left.
// They are those of a flight.
func (c *call) answer(p piece, out *moe.Partials, at int, f *flight) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		c.late.answer(p, out, at, f)
		return
	}
	n := p.hi - p.lo
	if out != c.out {
		copy(c.out.Status[p.lo:p.hi], out.Status[at:at+n])
	}
	if out == &f.slab.answer {
		for r := range n {
			copy(c.out.Row(p.lo+r), out.Row(at+r))
		}
	}
	c.times = f.times
	c.times.Lane += f.taken.Sub(p.t.at)
	if c.left -= n; c.left == 0 {
		c.over = true
		c.done <- struct{}{}
	}
}

// fail ends a call with an error, and wakes its caller, unless it is over already.
func (l *Lane) fail(c *call, err error) {
	if l.end(c, err, nil) {
		c.done <- struct{}{}
	}
}

// end closes a call's batch and partials to the lane, takes what waits of it off the queue, and cancels
// the batches under way in which nobody else has rows. It returns false if the call was over already. What is
// answered later goes to late, if that is not nil.
//
// A flight may still name a call that was answered and is in use again for another. That such a call
// counts down live once more does no harm: a call that ends here is never used again, so every piece
// counts once, and the piece of a caller who waits has not.
func (l *Lane) end(c *call, err error, late moe.Late) bool {
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return false
	}
	c.over, c.err = true, err
	c.leave(late)
	c.mu.Unlock()

	l.mu.Lock()
	defer l.mu.Unlock()
	l.core.withdraw(&c.ticket)
	for _, f := range l.flights {
		for _, p := range f.pieces {
			if p.t != &c.ticket {
				continue
			}
			if f.live--; f.live == 0 {
				f.cancel()
			}
		}
	}
	return true
}
