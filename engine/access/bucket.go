package access

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// bucket holds a minute's worth of something and fills all the time.
type bucket struct {
	perMinute float64
	level     float64
	at        time.Time
}

func newBucket(perMinute int, now time.Time) bucket {
	return bucket{float64(perMinute), float64(perMinute), now}
}

// fill brings the level to now.
func (b *bucket) fill(now time.Time) {
	if d := now.Sub(b.at); d > 0 {
		b.level = min(b.perMinute, b.level+b.perMinute*d.Minutes())
		b.at = now
	}
}

// rounding is what sums of fractions may be off.
const rounding = 1e-6

// until is how long it takes until there is so much, in whole milliseconds; 0: there is.
func (b *bucket) until(level float64) time.Duration {
	if b.level >= level-rounding {
		return 0
	}
	ms := (level - b.level) / b.perMinute * float64(time.Minute/time.Millisecond)
	return time.Duration(math.Ceil(ms-rounding)) * time.Millisecond
}

// holder is a key in use.
type holder struct {
	Key
	running atomic.Int64 // sequences
	spent   atomic.Int64 // tokens that the bucket has not been charged for

	mu       sync.Mutex
	requests bucket // under mu
	tokens   bucket // under mu
}

func newHolder(k Key, now time.Time) *holder {
	return &holder{Key: k, requests: newBucket(k.Limits.Requests, now), tokens: newBucket(k.Limits.Tokens, now)}
}

// enter counts a request, or says which limit is reached and for how long.
func (h *holder) enter(now time.Time) (limit string, wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Limits.Tokens > 0 {
		h.settle(now)
		if wait := h.tokens.until(1); wait > 0 {
			return "tokens a minute", wait
		}
	}
	if h.Limits.Requests > 0 {
		h.requests.fill(now)
		if wait := h.requests.until(1); wait > 0 {
			return "requests a minute", wait
		}
		h.requests.level--
	}
	return "", 0
}

// behind is how long work waits that nobody waits for: until half of a minute's tokens are there again. The
// other half is left to who waits for an answer.
func (h *holder) behind(now time.Time) time.Duration {
	if h.Limits.Tokens == 0 {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settle(now)
	return h.tokens.until(h.tokens.perMinute / 2)
}

// settle charges the bucket for what was spent. mu is held.
func (h *holder) settle(now time.Time) {
	h.tokens.fill(now)
	h.tokens.level -= float64(h.spent.Swap(0))
}

// take takes places for n sequences, if there are. Who is refused takes none meanwhile.
func (h *holder) take(n int) bool {
	for {
		now := h.running.Load()
		if h.Limits.Sequences > 0 && now+int64(n) > int64(h.Limits.Sequences) {
			return false
		}
		if h.running.CompareAndSwap(now, now+int64(n)) {
			return true
		}
	}
}
