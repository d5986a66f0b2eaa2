package relay

import (
	"context"
	"sync"
	"time"
)

// A pace keeps handshakes at a distance from each other, so that a hub that begins again under thousands
// of workers is never asked for more than it can do. Who comes while others wait stands behind them; where
// the line is too long, it is sent away with a slot to come back in. Slots are a little further apart than
// places in the line, so that in its slot whoever comes finds one.
//
// Only who is first in the line looks at the clock, and only after waiting takes what it waited for. What a
// machine misses that wakes everybody late, up to a third of a second of it, is made up for; but however it wakes them,
// no second sees more than most.
type pace struct {
	rate     float64       // places a second; 0: no limit
	burst    float64       // places that are there when nobody has come for a while
	slot     time.Duration // between slots
	patience time.Duration // longest wait in the line, as far as it can be foreseen
	sleep    func(context.Context, time.Duration)

	first chan struct{} // holds a token while somebody is first in the line

	mu    sync.Mutex
	hands bucket
	let   []time.Time // when the last ones were let in, a ring: as many as one second may see
	next  int         // the oldest of let
	line  int         // who waits
	back  time.Time   // the last slot that was given
}

// pacePatience leaves most of Limits.Greet for the handshake itself.
const pacePatience = 2 * time.Second

func newPace(rate float64) *pace {
	if rate < 0 {
		return &pace{}
	}
	most := max(1, int(rate*19/18)) // 90 a second, as it is by default, are at most 95 within any second
	return &pace{
		rate: rate, burst: max(1, rate/20), let: make([]time.Time, most),
		// 80 slots for 90 places leave the rest to whoever comes for the first time.
		slot: seconds(1/rate) * 9 / 8, patience: pacePatience, sleep: sleep, first: make(chan struct{}, 1),
	}
}

// enter returns when there is a place, or ctx ends; after errTooOften, wait says for how long to go away.
func (p *pace) enter(ctx context.Context) (wait time.Duration, err error) {
	if p.rate == 0 {
		return 0, ctx.Err()
	}
	if wait := p.stand(); wait > p.patience {
		return p.away(time.Now(), wait), errTooOften
	}
	defer p.leave()
	select {
	case p.first <- struct{}{}:
		defer func() { <-p.first }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	for ctx.Err() == nil {
		d := p.take(time.Now())
		if d == 0 {
			return 0, nil
		}
		p.sleep(ctx, d)
	}
	return 0, ctx.Err()
}

// take takes a place, or says how long there is none.
func (p *pace) take(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d := p.let[p.next].Add(time.Second).Sub(now); !p.let[p.next].IsZero() && d > 0 {
		return d
	}
	d := p.hands.take(p.rate, max(p.rate/3, p.burst), now) // somebody waits: what was missed is made up for
	if d == 0 {
		p.let[p.next] = now
		p.next = (p.next + 1) % len(p.let)
	}
	return d
}

// stand joins the line, unless the wait that it returns is too long.
func (p *pace) stand() (wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	most := p.burst
	if p.line > 0 {
		most = max(p.rate/3, p.burst)
	}
	p.hands.fill(p.rate, most, time.Now())
	wait = seconds((float64(p.line) + 1 - p.hands.level) / p.rate)
	if wait <= p.patience {
		p.line++
	}
	return wait
}

func (p *pace) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line--
}

// away returns for how long to go away, at least for least.
func (p *pace) away(now time.Time, least time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.back.Add(p.slot)
	if first := now.Add(least); at.Before(first) {
		at = first
	}
	p.back = at
	return at.Sub(now)
}
