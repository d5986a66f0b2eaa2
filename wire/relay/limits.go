package relay

import (
	"container/list"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Why somebody is over a limit; what is refused for it counts under the same name.
var (
	errTooOften = errors.New("too many handshakes a second")
	errTooMany  = errors.New("too many connections")
)

// Loopback is who lives behind 127.0.0.1 and ::1: whatever stands before a gateway or hub on its machine.
var Loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// Quota bounds what one address or one key may do. Zero fields take the default that stands beside the
// use in Limits; below zero there is no limit.
type Quota struct {
	Rate     float64 // handshakes a second in the long run
	Burst    int     // handshakes at once, before Rate holds
	Sessions int     // connections at a time; of a backbone's key: workers
	Bytes    float64 // a second, both directions summed; 0 is no limit
}

func (q *Quota) defaults(rate float64, burst, sessions int) {
	if q.Rate == 0 {
		q.Rate = rate
	}
	if q.Burst == 0 {
		q.Burst = burst
	}
	if q.Sessions == 0 {
		q.Sessions = sessions
	}
}

// A bucket holds tokens: burst of them at first, rate more a second, burst at most.
type bucket struct {
	level float64
	at    time.Time // when level was right; zero: it is full
}

// fill brings the level up to now.
func (b *bucket) fill(rate, burst float64, now time.Time) {
	switch since := now.Sub(b.at); {
	case b.at.IsZero():
		b.level = burst
	case since > 0: // a clock may have been set back
		b.level = min(burst, b.level+float64(rate*since.Seconds()))
	}
	b.at = now
}

// take takes a token, or says after what time there will be one.
func (b *bucket) take(rate, burst float64, now time.Time) (wait time.Duration) {
	b.fill(rate, burst, now)
	if b.level >= 1 {
		b.level--
		return 0
	}
	return max(seconds((1-b.level)/rate), 1) // 0 would be a token
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s, 1e9) * float64(time.Second))
}

// A toll holds bytes to a rate. Whoever has taken too many waits afterwards, for as long as it takes
// until all takers together are at the rate again.
type toll struct {
	rate float64 // bytes a second

	mu sync.Mutex
	b  bucket
}

// take returns how long to wait after n bytes.
func (t *toll) take(n int, now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	// A tenth of a second's worth may go at once, and a slice.
	t.b.fill(t.rate, float64(t.rate/10)+sliceMin, now)
	t.b.level -= float64(n)
	if t.b.level >= 0 {
		return 0
	}
	return seconds(-t.b.level / t.rate)
}

// An account is what a table knows of one address or key.
type account struct {
	hands    bucket
	toll     *toll // nil: no limit
	sessions int
	idle     *list.Element // in table.idle; nil while it has sessions
}

// A table keeps a Quota for each address or key that comes. It forgets who was away for longest, so it
// has at most max accounts, and those that have sessions.
type table[K comparable] struct {
	q   Quota
	max int

	mu   sync.Mutex
	m    map[K]*account
	idle *list.List // of K; who left last is first
}

func newTable[K comparable](q Quota, most int) *table[K] {
	return &table[K]{q: q, max: most, m: map[K]*account{}, idle: list.New()}
}

// enter counts a handshake and a session of k. leave is to follow unless there is an error; after
// errTooOften, wait says when to try again.
func (t *table[K]) enter(k K, now time.Time) (a *account, wait time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a = t.m[k]
	if a == nil {
		a = &account{}
		if t.q.Bytes > 0 {
			a.toll = &toll{rate: t.q.Bytes}
		}
		t.m[k] = a
		a.idle = t.idle.PushFront(k)
		t.forget()
	}
	if t.q.Rate > 0 {
		if wait = a.hands.take(t.q.Rate, float64(t.q.Burst), now); wait > 0 {
			t.touch(a)
			return nil, wait, errTooOften
		}
	}
	if t.q.Sessions > 0 && a.sessions >= t.q.Sessions {
		return nil, 0, errTooMany
	}
	a.sessions++
	if a.idle != nil {
		t.idle.Remove(a.idle)
		a.idle = nil
	}
	return a, 0, nil
}

// refund gives back a handshake that enter has counted. k has a session.
func (t *table[K]) refund(k K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.m[k]
	a.hands.level = min(float64(t.q.Burst), a.hands.level+1)
}

func (t *table[K]) leave(k K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.m[k]
	if a.sessions--; a.sessions == 0 {
		a.idle = t.idle.PushFront(k)
		t.forget()
	}
}

// touch keeps an account longer: forgotten, whoever knocks too often would begin anew. mu is held.
func (t *table[K]) touch(a *account) {
	if a.idle != nil {
		t.idle.MoveToFront(a.idle)
	}
}

// forget makes room. mu is held.
func (t *table[K]) forget() {
	for len(t.m) > t.max && t.idle.Len() > 1 {
		delete(t.m, t.idle.Remove(t.idle.Back()).(K))
	}
}

func (t *table[K]) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.m)
}

// tollsOf lists the tolls of accounts that have one.
func tollsOf(accounts ...*account) (tolls []*toll) {
	for _, a := range accounts {
		if a != nil && a.toll != nil {
			tolls = append(tolls, a.toll)
		}
	}
	return tolls
}

// addressOf returns what an address is limited as: itself, or of IPv6 the network of one customer, /64.
// It is invalid for what has no address.
func addressOf(nc net.Conn) netip.Prefix {
	a, ok := nc.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := a.AddrPort().Addr().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	p, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

// trusts reports whether limits by address do not hold for p.
func (l *Limits) trusts(p netip.Prefix) bool {
	return !p.IsValid() || slices.ContainsFunc(l.Behind, func(b netip.Prefix) bool { return b.Contains(p.Addr()) })
}

// wholeSeconds is d for a Retry-After header: rounded up, since whoever comes early finds no place.
func wholeSeconds(d time.Duration) int {
	return int((d + time.Second - 1) / time.Second)
}
