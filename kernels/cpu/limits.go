package cpu

import (
	"runtime"
	"sync/atomic"
	"time"

	"kvasir/internal/machine"
)

// PeakRate multiplies int8 values on all threads for at least d, from registers and with nothing else to
// do, and returns products a second: what limits large batches. It is 0 for the portable variant, which
// has no such loop.
func (b *Backend) PeakRate(d time.Duration) float64 {
	if b.kernel == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p := &peak{b: b, until: time.Now().Add(d)}
	start := time.Now()
	b.team.run(b.Threads(), p)
	return float64(float64(p.products.Load()) / time.Since(start).Seconds())
}

// peak is a measurement of PeakRate under way. Each thread has one task of it.
type peak struct {
	b        *Backend
	until    time.Time
	products atomic.Int64
}

func (p *peak) do(_ *worker, _, _ int) {
	for time.Now().Before(p.until) {
		p.products.Add(int64(p.b.kernel.Peak(1 << 22)))
	}
}

// ReadRate reads the weights in a from end to end, again and again, with as many threads as b has, for at
// least d, and returns bytes a second: what limits small batches. It is 0 where a is empty.
func (b *Backend) ReadRate(a *Arena, d time.Duration) float64 {
	defer runtime.KeepAlive(a) // what is read is a's only as long as somebody has a
	largest := a.largest()
	if len(largest) == 0 {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return machine.ReadRateOf(largest, b.Threads(), d)
}

// largest returns the largest piece of a.
func (a *Arena) largest() (p []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.pieces.list {
		if len(m) > len(p) {
			p = m
		}
	}
	return p
}

// Load loads n bytes of the weights in a from byte at on, on this thread, and goes on at the beginning after the
// last. It returns where it has stopped: 0 where a is empty.
func (a *Arena) Load(at, n int) int {
	defer runtime.KeepAlive(a) // what is read is a's only as long as somebody has a
	p := a.largest()
	if len(p) == 0 {
		return 0
	}
	for at %= len(p); n > 0; {
		end := min(at+n, len(p))
		machine.Load(p[at:end])
		n -= end - at
		at = end % len(p)
	}
	return at
}
