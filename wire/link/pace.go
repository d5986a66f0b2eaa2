package link

import (
	"fmt"
	"slices"
	"time"
)

// Bounds of a pace's window.
const (
	paceMin = 128 << 10
	paceMax = 64 << 20
)

// pace decides how many bulk bytes may be on their way: max(128 KiB, 2 x rate x smallest round trip).
// It has no clock and no lock; time comes in as an argument.
//
// The rate is the largest of the last eight measured, each over at least a round trip. While the bound
// was not reached in such a time, it measures the sender and not the path, and counts only if it is
// larger. So from 128 KiB the bound doubles with every round trip until the path is full.
type pace struct {
	sent, acked uint64 // bytes, since the session began
	window      uint64

	trips [16]time.Duration // the last round trips, 0: none
	trip  int               // number of round trips measured

	from  time.Time // when the measurement under way began
	base  uint64    // acked at from
	full  bool      // the bound has been reached since
	rates [8]uint64 // bytes a second
	rate  int       // number of rates measured

	moved time.Time // when acked last grew, or the first unacknowledged byte left
}

func newPace() pace { return pace{window: paceMin} }

func (p *pace) unacked() uint64 { return p.sent - p.acked }

// room reports whether n more bytes may leave.
func (p *pace) room(n int) bool {
	if p.unacked() == 0 || p.unacked()+uint64(n) <= p.window {
		return true
	}
	p.full = true
	return false
}

// send notes that n bytes leave.
func (p *pace) send(n int, now time.Time) {
	if p.unacked() == 0 {
		p.moved = now
		if p.from.IsZero() {
			p.from, p.base = now, p.acked
		}
	}
	p.sent += uint64(n)
}

// ack notes that the other side has received so many bytes since the session began.
func (p *pace) ack(received uint64, now time.Time) error {
	if received < p.acked || received > p.sent {
		return fmt.Errorf("%w: %d bulk bytes acknowledged, %d were before and %d are sent",
			ErrProtocol, received, p.acked, p.sent)
	}
	if received == p.acked {
		return nil
	}
	p.acked, p.moved = received, now
	p.measure(now)
	return nil
}

// measure ends the measurement under way if it is long enough, and begins another.
func (p *pace) measure(now time.Time) {
	took := now.Sub(p.from)
	if took < max(p.smallest(), time.Millisecond) {
		return
	}
	got := (p.acked - p.base) * uint64(time.Second/time.Microsecond) / uint64(took/time.Microsecond)
	if p.full || got > slices.Max(p.rates[:]) {
		p.rates[p.rate%len(p.rates)] = got
		p.rate++
		p.resize()
	}
	p.from, p.base, p.full = now, p.acked, false
}

// tripped notes a round trip.
func (p *pace) tripped(d time.Duration) {
	p.trips[p.trip%len(p.trips)] = max(d, 1)
	p.trip++
	p.resize()
}

// smallest returns the smallest of the last round trips, 0 where none is known.
func (p *pace) smallest() time.Duration {
	var least time.Duration
	for _, d := range p.trips {
		if d > 0 && (least == 0 || d < least) {
			least = d
		}
	}
	return least
}

func (p *pace) resize() {
	// In microseconds and bytes a second the product is below 2^64 up to 18 TB/s and a second.
	w := 2 * slices.Max(p.rates[:]) * uint64(p.smallest()/time.Microsecond) / uint64(time.Second/time.Microsecond)
	p.window = min(max(w, paceMin), paceMax)
}

// deadline returns when the other side has stalled, unless it acknowledges something before; zero where
// nothing is unacknowledged.
func (p *pace) deadline() time.Time {
	if p.unacked() == 0 {
		return time.Time{}
	}
	return p.moved.Add(stall)
}
