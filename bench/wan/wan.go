// Package wan makes a stream connection behave as if its ends stood far apart: round trip, jitter,
// a rate each way behind a short queue, stalls, black holes and cuts.
//
// A Link is one path, say a home line. All connections over it share its two ways:
//
//	write -> [ queue, at most 64 KiB ] -> [ rate ] -> [ wire: half a round trip, jitter ] -> read
//
// A byte leaves the queue at the rate and then spends its time on the wire, however many others are
// there; so a link carries up to its bandwidth-delay product. A full queue holds the writer back:
// the emulator loses nothing and reorders nothing, as a stream over a real path does not either.
// What it does not model: loss and the retransmission that follows, slow start, packet headers
// (rates count payload), and the bytes that the sockets' own buffers hold.
//
// No byte of an idle line arrives before its time. What sockets and a busy machine add comes on
// top: 50 µs a loopback socket and way where nothing else runs, and it is not taken off the wire,
// since a quick machine adds less.
//
// A Link serves in four forms: Proxy and Serve stand between a listener and a target, Dial replaces
// a dialer, Join and Wrap take connections that exist, Pipe needs no socket at all. Pipe, Wrap,
// Join and Serve also run inside a testing/synctest bubble, if the Link was made in it; every delay
// is exact there.
package wan

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

const (
	// QueueMax is the largest queue in front of a way's rate limiter, in bytes, and its default.
	QueueMax = 64 << 10

	queueMin    = 1500
	delayMax    = 10 * time.Second
	wireMax     = 64 << 20 // bytes of one connection that may be under way, one way
	wireDefault = 8 << 20  // the same, where no rate tells the bandwidth-delay product
	connsMax    = 1024     // connections of one link
	faultsMax   = 64
	stallMax    = 24 * time.Hour
	lateMax     = 5 * time.Millisecond // how late a writer may wake and still count as on time
)

var (
	// ErrProfile says that a Profile asks for what a Link cannot do.
	ErrProfile = errors.New("wan: bad profile")
	// ErrClosed says that the Link was closed.
	ErrClosed = errors.New("wan: link closed")
	// ErrFull says that the Link carries as many connections as it can.
	ErrFull = errors.New("wan: too many connections on one link")
)

// Way is a direction, or both. The near end of a connection is the one that dials: a proxy's
// client, a dialer's caller.
type Way uint8

// Ways.
const (
	Up   Way = 1 << iota // near to far
	Down                 // far to near
	Both = Up | Down
)

// Profile describes a path. The zero Profile is a wire without length or limit.
type Profile struct {
	RTT    time.Duration // round trip, half of it each way
	Jitter time.Duration // each way is half of it shorter or longer, evenly spread
	Up     int64         // bits/s near to far, 0 = unlimited
	Down   int64         // bits/s far to near, 0 = unlimited
	Queue  int           // bytes that wait before the rate limiter, each way; 0 = QueueMax
	Seed   uint64        // of the jitter: same seed and same writes, same delays
	Faults []Fault       // what happens by the clock
}

// Check returns an error, wrapping ErrProfile, that names the first field out of its limits.
func (p Profile) Check() error {
	switch {
	case p.RTT < 0 || p.RTT > delayMax:
		return fmt.Errorf("%w: round trip %v, want 0 to %v", ErrProfile, p.RTT, delayMax)
	case p.Jitter < 0 || p.Jitter > p.RTT:
		return fmt.Errorf("%w: jitter %v, want 0 to the round trip, %v", ErrProfile, p.Jitter, p.RTT)
	case p.Queue != 0 && (p.Queue < queueMin || p.Queue > QueueMax):
		return fmt.Errorf("%w: queue of %d bytes, want %d to %d", ErrProfile, p.Queue, queueMin, QueueMax)
	case len(p.Faults) > faultsMax:
		return fmt.Errorf("%w: %d faults, want at most %d", ErrProfile, len(p.Faults), faultsMax)
	}
	for _, rate := range []int64{p.Up, p.Down} {
		if rate < 0 {
			return fmt.Errorf("%w: rate of %d bit/s, want 0 (unlimited) or more", ErrProfile, rate)
		}
		if w := p.wire(rate); w > wireMax {
			return fmt.Errorf("%w: %d bit/s over %v needs %.0f bytes on the wire, want at most %d",
				ErrProfile, rate, p.RTT, w, wireMax)
		}
	}
	for i, f := range p.Faults {
		if err := f.check(); err != nil {
			return fmt.Errorf("%w: fault %d: %w", ErrProfile, i, err)
		}
	}
	return nil
}

// wire returns how many bytes one connection may have under way at a rate, one way: twice what
// fills queue and wire, so that a reader a little late does not hold the writer back.
func (p Profile) wire(rate int64) float64 {
	if rate == 0 {
		return wireDefault
	}
	perSecond := float64(rate) / 8
	return max(1<<20, 2*(QueueMax+perSecond*(p.RTT+p.Jitter).Seconds()/2))
}

// Link is one path and the connections over it. Its methods are safe for concurrent use. Lock
// order: Link.mu, flow.mu, lane.mu; a later one is never held when an earlier one is taken.
type Link struct {
	profile  Profile
	epoch    time.Time // the link's clock counts from here
	up, down *lane
	bell     *bell // nil: the runtime's timers do

	ctx    context.Context // done when the link is closed
	cancel context.CancelFunc
	tasks  sync.WaitGroup // pumps, accept loops, faults; none starts after closed is set

	mu        sync.Mutex // guards all below
	closed    bool
	made      uint64 // connections so far: the number of the next
	pairs     map[*pair]struct{}
	listeners map[net.Listener]struct{}
	carried   [2]int64 // bytes up and down of connections that are gone
}

// NewLink returns a Link with p's properties, whose faults count from now. Close ends it.
func NewLink(p Profile) (*Link, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &Link{
		profile: p, epoch: time.Now(), ctx: ctx, cancel: cancel,
		up: newLane(p, p.Up), down: newLane(p, p.Down),
		pairs: map[*pair]struct{}{}, listeners: map[net.Listener]struct{}{},
	}
	if l.bell = newBell(l.now); l.bell != nil {
		l.start(l.bell.run)
	}
	for _, f := range p.Faults {
		l.start(func() { l.runFault(f) })
	}
	return l, nil
}

// Close resets all connections, closes all listeners and waits for the link's goroutines.
func (l *Link) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	l.mu.Lock()
	for ln := range l.listeners {
		_ = ln.Close() // its accept loop takes the error
	}
	l.mu.Unlock()
	l.Cut(Reset)
	if l.bell != nil {
		l.bell.close()
	}
	l.tasks.Wait()
	return nil
}

// Stall stands the ways still for d: nothing comes out, the queues fill, and then all goes on as if
// the time had not been. A stall within a stall ends at the later of the two ends.
func (l *Link) Stall(w Way, d time.Duration) {
	for _, n := range l.lanes(w) {
		n.stall(l.now(), d)
	}
}

// Resume ends stalls before their time.
func (l *Link) Resume(w Way) {
	for _, n := range l.lanes(w) {
		n.resume(l.now())
	}
	for _, p := range l.snapshot() {
		p.up.poke()
		p.down.poke()
	}
}

// BlackHole swallows what comes out of the ways: the connections stay open and writers go on
// writing, but nothing arrives any more, not even the end of the stream. A connection that has met
// a black hole stays in it, as one whose address mapping is lost does; Heal only lets new ones
// through. Dial waits for its context, and a proxy's client finds a connection that says nothing.
func (l *Link) BlackHole(w Way) {
	for _, n := range l.lanes(w) {
		n.setHole(true)
	}
	for _, p := range l.snapshot() {
		if w&Up != 0 {
			p.up.swallow()
		}
		if w&Down != 0 {
			p.down.swallow()
		}
	}
}

// Heal ends black holes for connections made from now on.
func (l *Link) Heal(w Way) {
	for _, n := range l.lanes(w) {
		n.setHole(false)
	}
}

// How says how a connection is cut.
type How uint8

// Ways of cutting.
const (
	Reset How = iota // both ends get a reset
	Fin              // both ends read the end of the stream
)

// Cut ends all connections at once; what is under way is lost. It returns how many there were. New
// ones can be made at once.
func (l *Link) Cut(h How) int {
	pairs := l.snapshot()
	for _, p := range pairs {
		p.cut(h)
	}
	return len(pairs)
}

// Stats is what a Link has carried.
type Stats struct {
	Up, Down int64 // bytes that arrived
	Open     int   // connections that at least one end holds open
	Made     int   // connections so far
}

// Stats returns the counts up to now.
func (l *Link) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{Up: l.carried[0], Down: l.carried[1], Open: len(l.pairs), Made: int(l.made)}
	for p := range l.pairs {
		s.Up += p.up.carried()
		s.Down += p.down.carried()
	}
	return s
}

func (l *Link) now() time.Duration { return time.Since(l.epoch) }

func (l *Link) lanes(w Way) []*lane {
	var s []*lane
	if w&Up != 0 {
		s = append(s, l.up)
	}
	if w&Down != 0 {
		s = append(s, l.down)
	}
	return s
}

func (l *Link) snapshot() []*pair {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := make([]*pair, 0, len(l.pairs))
	for p := range l.pairs {
		s = append(s, p)
	}
	return s
}

// start runs f in a goroutine that Close waits for, or not at all if the link is closed.
func (l *Link) start(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.tasks.Go(f)
	return true
}
