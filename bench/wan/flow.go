package wan

import (
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// markCost is what a segment counts beside its bytes, so that many small ones are bounded too.
const markCost = 32

// packet is what one packet carries.
const packet = 1448

// gather is for how long a reader is not woken for bytes while more follow them: to be woken for every 16 KiB at
// 1 Gbit/s took the emulation 7,600 times a second the trouble to be on time, and those whom it measured half a
// processor. A network card is not woken for every packet either.
const gather = 500 * time.Microsecond

// mark says when the next bytes of a flow arrive.
type mark struct {
	at    time.Duration // lane time
	bytes int
}

// flow is one way of one connection: what is on the wire and what lies unread behind it.
//
// Invariants:
//
//  1. The bytes of marks add up to data's length; their times never fall.
//  2. data's length and markCost for each mark stay at or below lane.wire, but for one segment.
//  3. One reader and one writer at a time hold the turns; only they wait on readable and writable.
type flow struct {
	link *Link
	lane *lane
	back *lane // the other way's
	mate *flow // the other way's

	reader, writer     chan struct{} // turns
	readable, writable chan struct{} // something changed: look again
	readWait           waiter        // of the reader's turn
	writeWait          waiter        // of the writer's turn

	mu       sync.Mutex // guards all below
	rng      *rand.Rand // jitter
	data     ring
	marks    []mark
	last     time.Duration // when the newest byte arrives
	got      int64         // bytes that arrived
	end      error         // what a reader gets after the data; nil while the writer may go on
	endAt    time.Duration // when it arrives
	left     bool          // nobody reads any more
	leftAt   time.Duration // when the writer knows, in back's time
	lost     bool          // in a black hole
	readErr  error         // cut: what a reader gets
	writeErr error         // cut: what a writer gets
}

func newFlow(l *Link, n, back *lane, seed uint64) *flow {
	return &flow{
		link: l, lane: n, back: back,
		reader: make(chan struct{}, 1), writer: make(chan struct{}, 1),
		writeWait: waiter{lax: true}, // who comes late is served as of when there was room
		readable:  make(chan struct{}, 1), writable: make(chan struct{}, 1),
		rng: rand.New(rand.NewPCG(l.profile.Seed, seed)),
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// poke makes reader and writer look again.
func (f *flow) poke() {
	signal(f.readable)
	signal(f.writable)
}

// write puts p on the way and returns when the queue has taken it.
func (f *flow) write(p []byte, due <-chan struct{}) (int, error) {
	if err := take(f.writer, due); err != nil {
		return 0, err
	}
	defer func() { <-f.writer }()
	if err := f.writeState(); err != nil {
		return 0, err
	}
	done := 0
	for done < len(p) {
		n := min(len(p)-done, f.lane.cut)
		if err := f.reserve(n, due); err != nil {
			return done, err
		}
		at, err := f.enter(n, due)
		if err != nil {
			return done, err
		}
		f.append(p[done:done+n], at)
		done += n
	}
	return done, nil
}

// take takes a turn, unless due comes first.
func take(turn chan struct{}, due <-chan struct{}) error {
	if isDone(due) {
		return os.ErrDeadlineExceeded
	}
	select {
	case turn <- struct{}{}:
		return nil
	case <-due:
		return os.ErrDeadlineExceeded
	}
}

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// writeState returns why the writer cannot go on, or nil.
func (f *flow) writeState() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writeStateLocked()
}

func (f *flow) writeStateLocked() error {
	switch {
	case f.writeErr != nil:
		return f.writeErr
	case f.end != nil:
		return syscall.EPIPE
	case f.left && f.back.here(f.link.now()) >= f.leftAt:
		return syscall.EPIPE
	}
	return nil
}

// reserve waits until n more bytes may be under way.
func (f *flow) reserve(n int, due <-chan struct{}) error {
	for {
		f.mu.Lock()
		err := f.writeStateLocked()
		used := f.data.size + len(f.marks)*markCost
		room := used == 0 || used+n+markCost <= f.lane.wire
		f.mu.Unlock()
		if err != nil || room {
			return err
		}
		select {
		case <-f.writable:
		case <-due:
			return os.ErrDeadlineExceeded
		}
	}
}

// enter waits for the queue and returns the lane time at which n bytes arrive.
func (f *flow) enter(n int, due <-chan struct{}) (time.Duration, error) {
	for taken := false; !taken; {
		select {
		case f.lane.turn <- struct{}{}:
			taken = true
		case <-f.writable:
			if err := f.writeState(); err != nil {
				return 0, err
			}
		case <-due:
			return 0, os.ErrDeadlineExceeded
		}
	}
	defer func() { <-f.lane.turn }()
	now := f.link.now()
	for {
		at, again, ok := f.lane.admit(now, n)
		if ok {
			return at, nil
		}
		if err := f.link.await(again, f.writable, due, &f.writeWait); err != nil {
			return 0, err
		}
		if err := f.writeState(); err != nil {
			return 0, err
		}
		now = f.link.now()
		// A short queue at a high rate runs empty in less time than waking takes. The writer was
		// there all the time, so it is served as of when there was room.
		if now > again && now-again < lateMax {
			now = again
		}
	}
}

// append puts bytes that arrive at lane time at, jitter aside, behind the others.
func (f *flow) append(p []byte, at time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at = f.arrivalLocked(at)
	if f.lost || f.left || f.writeErr != nil {
		return
	}
	f.data.write(p)
	f.marks = append(f.marks, mark{at, len(p)})
	if len(f.marks) == 1 { // else the reader knows when to look
		signal(f.readable)
	}
}

// arrivalLocked adds the jitter and keeps the order.
func (f *flow) arrivalLocked(at time.Duration) time.Duration {
	if j := f.lane.jitter; j > 0 {
		at += time.Duration(f.rng.Int64N(int64(j)+1)) - j/2
	}
	f.last = max(f.last, at)
	return f.last
}

// read fills p with what has arrived, and waits for the first byte.
func (f *flow) read(p []byte, due <-chan struct{}) (int, error) {
	if err := take(f.reader, due); err != nil {
		return 0, err
	}
	defer func() { <-f.reader }()
	for {
		n, next, err := f.arrived(p)
		if n > 0 || err != nil || len(p) == 0 {
			return n, err
		}
		f.readWait.lax = f.bulk()
		if err := f.link.await(next, f.readable, due, &f.readWait); err != nil {
			return 0, err
		}
	}
}

// arrived moves to p what has arrived. If that is nothing, it returns the link's time at which more
// does.
func (f *flow) arrived(p []byte) (n int, next time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.readErr != nil:
		return 0, 0, f.readErr
	case f.left:
		return 0, 0, net.ErrClosed
	case f.lost:
		return 0, never, nil
	}
	here := f.lane.here(f.link.now())
	for len(f.marks) > 0 && f.marks[0].at <= here && n < len(p) {
		m := &f.marks[0]
		k := min(m.bytes, len(p)-n)
		f.data.read(p[n : n+k])
		n += k
		m.bytes -= k
		if m.bytes == 0 {
			f.marks = f.marks[1:]
		}
	}
	switch {
	case n > 0:
		f.got += int64(n)
		signal(f.writable)
		return n, 0, nil
	case len(f.marks) > 0:
		return 0, f.lane.there(f.gatherLocked()), nil
	case f.end == nil:
		return 0, never, nil
	case f.endAt <= here:
		return 0, 0, f.end
	}
	return 0, f.lane.there(f.endAt), nil
}

// bulk reports whether what arrives next is more than a packet: a stream is there when it is there, and what it
// is delayed does not add up.
func (f *flow) bulk() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.data.size > packet
}

// gatherLocked returns when a reader that waits is woken: with the first that arrives, or with what is on its
// heels. What is alone, and the last of many, is on time to the microsecond; and so is all where there is jitter.
func (f *flow) gatherLocked() time.Duration {
	first := f.marks[0].at
	if f.lane.jitter > 0 {
		return first
	}
	at := first
	for _, m := range f.marks[1:] {
		if m.at > first+gather {
			break
		}
		at = m.at
	}
	return at
}

// finish ends the flow behind what is under way: the reader gets end, io.EOF or a reset. It returns
// the lane time at which it does.
func (f *flow) finish(end error) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.end == nil {
		f.end = end
		f.endAt = f.arrivalLocked(f.lane.pass(f.link.now()))
		f.poke()
	}
	return f.endAt
}

// leave says that nobody reads any more: what arrives is dropped. The writer gets an error once it
// can know, at the other way's time at.
func (f *flow) leave(at time.Duration) {
	lost := f.mate.isLost() // before f.mu: two flows are never locked at once
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left {
		return
	}
	if lost {
		at = never
	}
	f.left, f.leftAt = true, at
	f.dropLocked()
}

// swallow puts the flow into a black hole, and with it what the other way's writer would learn from
// it.
func (f *flow) swallow() {
	f.mu.Lock()
	f.lost = true
	f.dropLocked()
	f.mu.Unlock()

	m := f.mate
	m.mu.Lock()
	if m.left && m.back.here(m.link.now()) < m.leftAt {
		m.leftAt = never
	}
	m.mu.Unlock()
}

// kill ends the flow at once for both. After Fin the reader still gets what had arrived.
func (f *flow) kill(h How) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readErr != nil {
		return
	}
	if h == Reset {
		f.readErr, f.writeErr = syscall.ECONNRESET, syscall.ECONNRESET
		f.dropLocked()
		return
	}
	here := f.lane.here(f.link.now())
	for i, size := 0, 0; i < len(f.marks); i++ {
		if f.marks[i].at > here {
			f.marks = f.marks[:i]
			f.data.size = size
			break
		}
		size += f.marks[i].bytes
	}
	f.end, f.endAt, f.writeErr = io.EOF, 0, syscall.EPIPE
	f.poke()
}

func (f *flow) dropLocked() {
	f.data = ring{}
	f.marks = nil
	f.poke()
}

func (f *flow) isLost() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost
}

func (f *flow) carried() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.got
}
