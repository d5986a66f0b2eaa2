package access

import (
	"sync"
	"time"
)

// Forecast says how long who is refused has to wait for a place, from how fast places become free. Each who
// asks is told the next one that nobody was told yet, so that not all come back at once. It is safe for
// concurrent use.
type Forecast struct {
	now func() time.Time

	mu   sync.Mutex
	last time.Time     // a place became free; zero: none did yet
	each time.Duration // from one to the next, lately
	next time.Time     // that nobody was told of
}

// Bounds of what a Forecast says.
const (
	soonest = time.Second
	latest  = time.Minute
)

// NewForecast returns a forecast that knows nothing yet; now may be nil.
func NewForecast(now func() time.Time) *Forecast {
	if now == nil {
		now = time.Now
	}
	return &Forecast{now: now}
}

// weight is that of the latest measurement among those before.
const weight = 0.1

// Free notes that a place became free.
func (f *Forecast) Free() {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	switch took := now.Sub(f.last); {
	case f.last.IsZero():
	case f.each == 0:
		f.each = took
	default:
		f.each += time.Duration(weight * float64(took-f.each))
	}
	f.last = now
}

// Wait is how long to wait, between a second and a minute.
func (f *Forecast) Wait() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if f.next.Before(now) {
		f.next = now
	}
	// Where nothing has become free for longer than usual, it is slower now.
	each := f.each
	if !f.last.IsZero() {
		each = max(each, now.Sub(f.last))
	}
	if f.next = f.next.Add(each); f.next.Sub(now) > latest {
		f.next = now.Add(latest)
	}
	return max(f.next.Sub(now), soonest)
}
