package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"kvasir/batcher/place"
	"kvasir/internal/moe"
)

const (
	flightsMax  = 64
	flightsAuto = 16 // more are under way only where they are asked for
	answersMin  = 3  // that a rate is measured over
)

// flightsFor is how many dispatches have to be under way so that what bounds them never waits: the formula
// that a backbone goes by.
func (d Dispatch) flightsFor(alone, bound time.Duration) int {
	if d.Flights > 0 {
		return d.Flights
	}
	return max(2, min(flightsAuto, place.Flights(0, alone.Seconds(), bound.Seconds())))
}

// pipeline keeps dispatches under way and measures the time from one answer to the next. The first answers,
// one for each that is under way, are not counted: all began at once. It ends with a whole number of turns.
type pipeline struct {
	w     *way
	batch *moe.Batch
	want  *moe.Partials
	least time.Duration

	mu        sync.Mutex // guards all below
	answers   int
	start     time.Time // of counting
	took      time.Duration
	counted   int // answers
	out, back int64
	different bool
	err       error
	over      bool
}

// run returns when nothing is under way any more.
func (p *pipeline) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var flights sync.WaitGroup
	for range p.w.flights {
		flights.Go(func() {
			var answer moe.Partials
			for p.on() {
				err := p.w.x.Forward(ctx, p.batch, &answer)
				if p.answered(err, err == nil && equal(&answer, p.want)) {
					cancel()
				}
			}
		})
	}
	flights.Wait()
	if p.err != nil {
		return fmt.Errorf("%s: %w", p.w.label(), p.err)
	}
	return nil
}

func (p *pipeline) on() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.over
}

// answered counts one. It reports whether the others have to be given up.
func (p *pipeline) answered(err error, same bool) (failed bool) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if p.err == nil {
			p.err = err
		}
		p.over = true
		return true
	}
	p.different = p.different || !same
	if p.over {
		return false
	}
	n := p.w.flights
	switch p.answers++; {
	case p.answers == n:
		p.start = now
		p.out, p.back = p.w.traffic.load()
	case p.answers > n && p.answers%n == 0 && p.answers-n >= answersMin && now.Sub(p.start) >= p.least:
		p.over = true
		p.took, p.counted = now.Sub(p.start), p.answers-n
		out, back := p.w.traffic.load()
		p.out, p.back = out-p.out, back-p.back
	}
	return false
}
