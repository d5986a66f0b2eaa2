package worker

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrNoLoad: this system does not say what other programs need.
var ErrNoLoad = errors.New("worker: this system does not say how busy other programs keep it; " +
	"use --nice and --max-cpu instead")

// Busy tells when other programs need this machine. Their share of the processors has to stay above High
// for Rise before the worker makes room, and below Low for Fall before it comes back: a page that loads is
// no reason to leave, and a compiler that links none to return.
type Busy struct {
	// Load returns the time that all processors together have had, and how much of it others have used;
	// both grow.
	Load  func() (all, others time.Duration, err error)
	Every time.Duration // between two looks
	High  float64
	Low   float64
	Rise  time.Duration
	Fall  time.Duration
	Rest  time.Duration // what the backbone is told as the time of return

	mu      sync.Mutex
	busy    bool          // under mu
	changed chan struct{} // closed and replaced when busy changes; under mu
}

// NewBusy returns a Busy that looks at this machine every two seconds. It returns ErrNoLoad where the
// system does not say.
func NewBusy() (*Busy, error) {
	if _, _, err := systemLoad(); err != nil {
		return nil, errors.Join(ErrNoLoad, err)
	}
	return &Busy{
		Load: systemLoad, Every: 2 * time.Second, High: 0.5, Low: 0.2,
		Rise: 10 * time.Second, Fall: time.Minute, Rest: time.Minute,
	}, nil
}

// Run looks until ctx ends.
func (b *Busy) Run(ctx context.Context) {
	tick := time.NewTicker(b.Every)
	defer tick.Stop()
	var p pressure
	for {
		if all, others, err := b.Load(); err == nil {
			b.set(p.add(b, time.Now(), all, others))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// pressure is what has been seen so far.
type pressure struct {
	all, others time.Duration
	seen, busy  bool
	since       time.Time // when the share began to speak for a change; zero: it does not
}

// add takes another look and returns whether others need the machine.
func (p *pressure) add(b *Busy, now time.Time, all, others time.Duration) bool {
	span, used := all-p.all, others-p.others
	first := !p.seen
	p.all, p.others, p.seen = all, others, true
	if first || span <= 0 {
		return p.busy
	}
	share, hold := float64(used)/float64(span), b.Rise
	speaks := share > b.High
	if p.busy {
		speaks, hold = share < b.Low, b.Fall
	}
	switch {
	case !speaks:
		p.since = time.Time{}
	case p.since.IsZero():
		p.since = now
	case now.Sub(p.since) >= hold:
		p.busy, p.since = !p.busy, time.Time{}
	}
	return p.busy
}

func (b *Busy) set(busy bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy == busy {
		return
	}
	b.busy = busy
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

func (b *Busy) is() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.busy
}

// await returns true when busy is as wanted, and false when ctx ends first.
func (b *Busy) await(ctx context.Context, want bool) bool {
	for {
		b.mu.Lock()
		if b.busy == want {
			b.mu.Unlock()
			return true
		}
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		changed := b.changed
		b.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
