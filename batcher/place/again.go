package place

import (
	"math"
	"time"
)

// Defaults of Rules.
const (
	DefaultHorizon = 10 * time.Minute
	DefaultGain    = 1.10
)

// Rules say when what is held is given up for a better plan.
type Rules struct {
	Horizon time.Duration // within which a move has to pay; DefaultHorizon when 0
	Gain    float64       // how many times as much has to come out within it; DefaultGain when 0
}

// Change is what a new plan would bring.
type Change struct {
	Now, Next float64       // tokens a second as experts are held, and by the new plan
	Moving    time.Duration // until the slowest has what it lacks
	Gain      float64       // what comes out within the horizon, moving included, against staying
	Worth     bool
}

// slowFetch is at how many bytes a second a worker is taken to fetch of whom it is not known: 20 Mbit/s.
const slowFetch = 2.5e6

// Again plans anew for workers that hold something already, by what has been measured since, and says whether
// it is worth moving. While experts move, half of what came out is taken to come out. A plan that is not worth
// it is to be dropped; so small differences of what is measured move nothing.
func Again(m Model, b Backbone, ws []Worker, r Rules) (Plan, Change) {
	if r.Horizon <= 0 {
		r.Horizon = DefaultHorizon
	}
	if !(r.Gain > 0) {
		r.Gain = DefaultGain
	}
	next := Make(m, b, ws)
	c := Change{Now: Held(m, b, ws).Tokens, Next: next.Forecast.Tokens}
	for i := range next.Workers {
		down := sane(ws[i].Down)
		if down == 0 {
			down = slowFetch
		}
		c.Moving = max(c.Moving, seconds(float64(next.Workers[i].Fetch)/down))
	}
	moving := min(1, c.Moving.Seconds()/r.Horizon.Seconds())
	came := float64(c.Now*moving)/2 + float64(c.Next*(1-moving))
	switch {
	case c.Now > 0:
		c.Gain = came / c.Now
	case came > 0:
		c.Gain = math.Inf(1)
	}
	c.Worth = c.Gain >= r.Gain
	return next, c
}

// Held forecasts what comes out if everybody goes on with what it holds.
func Held(m Model, b Backbone, ws []Worker) Forecast {
	m, b = m.normal(), b.normal()
	_, sites := newSites(&m, ws)
	return fill(&m, &b, sites, false).forecast
}
