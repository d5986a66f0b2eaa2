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
	counted   int           // answers
	compared  time.Duration // of the time that is counted, by all flights
	different bool
	err       error
	over      bool

	// Bytes of all answers, also of those that are not counted: while others are under way, what has been sent and
	// what has come back are not of the same dispatches. They are there when run has returned.
	out, back int64
}

// run returns when nothing is under way any more.
func (p *pipeline) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, back := p.w.traffic.load()
	var flights sync.WaitGroup
	for range p.w.flights {
		flights.Go(func() {
			var answer moe.Partials
			for n := 0; p.on(); n++ {
				err := p.w.x.Forward(ctx, p.batch, &answer)
				same, took := err == nil, time.Duration(0)
				if same {
					same, took = p.compare(&answer, n)
				}
				if p.answered(err, same, took) {
					cancel()
				}
			}
		})
	}
	flights.Wait()
	sent, got := p.w.traffic.load()
	p.out, p.back = sent-out, got-back
	if p.err != nil {
		return fmt.Errorf("%s: %w", p.w.label(), p.err)
	}
	return nil
}

// comparedPart of the rows of an answer that is counted are compared, in turn: to compare all of 512 rows takes a
// tenth of the time in which a stub answers them.
const comparedPart = 32

// compare compares an answer with what it has to be: the first and the last ones of a flight, which are not counted,
// as a whole, and of each other one the part whose turn it is. It tells how long that took.
func (p *pipeline) compare(answer *moe.Partials, n int) (same bool, took time.Duration) {
	start := time.Now()
	if n == 0 || !p.on() {
		same = equal(answer, p.want)
	} else {
		same = equalRows(answer, p.want, n%comparedPart*answer.Rows/comparedPart, (n%comparedPart+1)*answer.Rows/comparedPart)
	}
	return same, time.Since(start)
}

func (p *pipeline) on() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.over
}

// answered counts one. It reports whether the others have to be given up.
func (p *pipeline) answered(err error, same bool, compared time.Duration) (failed bool) {
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
	p.answers++
	if p.over {
		return false
	}
	n := p.w.flights
	p.compared += compared
	switch {
	case p.answers == n:
		p.start, p.compared = now, 0
	case p.answers > n && p.answers%n == 0 && p.answers-n >= answersMin && now.Sub(p.start) >= p.least:
		p.over = true
		p.took, p.counted = now.Sub(p.start), p.answers-n
	}
	return false
}
