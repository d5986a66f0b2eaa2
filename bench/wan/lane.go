package wan

import (
	"sync"
	"time"
)

// lane is one way of a link: its queue, its rate limiter and its wire. It has no goroutine and no
// clock; now is the link's, and comes in as an argument.
//
// Invariants:
//
//  1. The lane's own time is the link's less lag. It stands still while the link's is before until.
//  2. What was admitted has left the queue at lane time free. Nothing is admitted that would make
//     the queue longer than its limit.
type lane struct {
	half   time.Duration // one way
	rate   int64         // bits/s, 0 = unlimited
	queue  int           // bytes
	wire   int           // bytes of one connection under way
	cut    int           // bytes that a write is cut into
	jitter time.Duration

	turn chan struct{} // held by the writer that waits for the queue: first come, first served

	mu    sync.Mutex
	lag   time.Duration
	until time.Duration
	free  time.Duration
	held  int // bytes queued during a stall where there is no rate
	hole  bool
	early chan struct{} // closed, and replaced, when a stall ends before its time
}

func newLane(p Profile, rate int64) *lane {
	n := &lane{
		half: p.RTT / 2, jitter: p.Jitter, rate: rate, queue: p.Queue,
		wire: int(p.wire(rate)), turn: make(chan struct{}, 1), early: make(chan struct{}),
	}
	if n.queue == 0 {
		n.queue = QueueMax
	}
	// A millisecond's worth, so that a reader sees bytes trickle in at the rate, between one packet
	// and what a socket hands over at once.
	n.cut = 16 << 10
	if rate > 0 {
		n.cut = int(min(int64(n.cut), max(1448, rate/8/1000)))
	}
	n.cut = min(n.cut, n.queue)
	return n
}

// span returns how long the limiter takes over n bytes.
func (n *lane) span(bytes int) time.Duration {
	if n.rate == 0 {
		return 0
	}
	return time.Duration(int64(bytes) * 8 * int64(time.Second) / n.rate)
}

// here returns the lane's time.
func (n *lane) here(now time.Duration) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hereLocked(now)
}

func (n *lane) hereLocked(now time.Duration) time.Duration {
	return max(now, n.until) - n.lag
}

// there returns the link's time at lane time t, if no stall comes between.
func (n *lane) there(t time.Duration) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return t + n.lag
}

// admit puts bytes into the queue. It returns the lane time at which the last of them arrives at
// the far end of the wire, jitter aside; or, if the queue is too full, the link's time at which to
// try again.
func (n *lane) admit(now time.Duration, bytes int) (arrives, again time.Duration, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	here := n.hereLocked(now)
	if n.rate == 0 {
		if now < n.until {
			if n.held > 0 && n.held+bytes > n.queue {
				return 0, n.until, false
			}
			n.held += bytes
		}
		return here + n.half, 0, true
	}
	start := max(n.free, here)
	if start-here > n.span(n.queue-bytes) {
		// Waiting for more room than is needed wakes the writer less often, and what it writes
		// leaves at the same time, since the queue does not run empty.
		room := n.span(n.queue - max(bytes, n.queue/2))
		return 0, n.free - room + n.lag, false
	}
	n.free = start + n.span(bytes)
	return n.free + n.half, 0, true
}

// pass returns the lane time at which something without length that enters now arrives.
func (n *lane) pass(now time.Duration) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return max(n.free, n.hereLocked(now)) + n.half
}

func (n *lane) stall(now, d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d <= 0 {
		return
	}
	if now >= n.until {
		n.until = now
		n.held = 0
	}
	end := max(n.until, now+min(d, stallMax))
	n.lag += end - n.until
	n.until = end
}

func (n *lane) resume(now time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now < n.until {
		n.lag -= n.until - now
		n.until = now
		close(n.early)
		n.early = make(chan struct{})
	}
}

// resumed returns a channel that is closed when a stall ends before its time.
func (n *lane) resumed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.early
}

func (n *lane) setHole(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hole = on
}

func (n *lane) holed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hole
}
