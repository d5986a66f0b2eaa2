package engine

import (
	"context"
	"errors"
	"time"

	"kvasir/batcher/place"
)

// How plans are made. One goroutine makes them, outside the swarm's lock, of what is known as it begins:
//
//  1. soon after somebody has joined or left, in any case;
//  2. and every planEvery, by what has been measured since. Such a plan is followed only if it pays for the
//     moves within payTime, and no other is before that time is over; so what goes up and down moves nothing
//     to and fro.
//
// Work goes on meanwhile: settle moves experts so that what is held is served until others hold it.
const (
	planEvery = time.Minute
	payTime   = place.DefaultHorizon
	// planTries is how often a plan is made anew because members have changed meanwhile.
	planTries = 3
)

// errSlows sends a worker away, which is told why.
type errSlows struct{ why string }

func (e *errSlows) Error() string {
	return "this worker is not of use to the swarm at present: " + e.why
}

// back is when a worker that is sent away may come again; 0: whenever it likes.
func back(cause error) time.Duration {
	var slows *errSlows
	if errors.As(cause, &slows) {
		return smallRest
	}
	return 0
}

// planArgs are what a plan is made of.
type planArgs struct {
	model   place.Model
	workers []place.Worker
	who     []*attached
	members int // Swarm.members, as they were read
}

// keepPlanning makes plans until ctx ends.
func (s *Swarm) keepPlanning(ctx context.Context) {
	t := time.NewTicker(planEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			s.Replan()
		case <-s.wake:
			if s.loads() { // others may follow at about the same time
				soon := time.NewTimer(planDelay)
				select {
				case <-ctx.Done():
				case <-soon.C:
				}
				soon.Stop()
			}
			s.planAnew()
		}
	}
}

// loads reports whether there are workers that load what they are assigned.
func (s *Swarm) loads() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.present {
		if w.assigned() {
			return true
		}
	}
	return false
}

// planAnew plans for those who are present.
func (s *Swarm) planAnew() {
	for try := 1; ; try++ {
		s.mu.Lock()
		if s.planned {
			s.mu.Unlock()
			return
		}
		a := s.planArgs()
		s.mu.Unlock()
		p := place.Make(a.model, place.Backbone{}, a.workers)
		s.mu.Lock()
		if s.members == a.members || try == planTries {
			s.follow(&a, &p)
			s.planned = s.members == a.members
			s.settle()
			if !s.planned {
				s.wakePlanner()
			}
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
	}
}

// Replan plans by what has been measured lately, and moves experts if that pays. It is called every minute by
// itself. It reports what the new plan would bring; Worth says that it is followed.
func (s *Swarm) Replan() place.Change {
	s.mu.Lock()
	if s.c.Place != nil || !s.planned || len(s.present) == 0 {
		s.mu.Unlock()
		return place.Change{}
	}
	a := s.planArgs()
	for i, w := range a.who { // in force is what is served; what else is held need not be fetched
		a.workers[i].Cached = append(a.workers[i].Held, a.workers[i].Cached...)
		a.workers[i].Held = w.serves.ranges()
	}
	resting := time.Now().Before(s.rest)
	s.mu.Unlock()

	p, c := place.Again(a.model, place.Backbone{}, a.workers, place.Rules{Horizon: payTime})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members != a.members || resting {
		c.Worth = false
	}
	s.sendSlow(&a, &p)
	if !c.Worth {
		return c
	}
	if s.c.Log != nil {
		s.c.Log.Info("experts are moved", "tokens_per_s", c.Now, "after", c.Next, "takes", c.Moving.Round(time.Second))
	}
	s.rest = time.Now().Add(payTime)
	s.follow(&a, &p)
	s.settle()
	return c
}

// follow makes a plan what the workers shall hold. Under mu.
func (s *Swarm) follow(a *planArgs, p *place.Plan) {
	s.left.Plans++
	for i, w := range a.who {
		w.want = newMask(s.c.Model.Layers, s.c.Model.PerLayer)
		w.want.add(p.Workers[i].Ranges)
		slows := ""
		if p.Workers[i].Slows {
			slows = p.Workers[i].Why
		}
		if slows != "" && w.slows == "" && s.c.Log != nil {
			s.c.Log.Info("a worker is not used", "worker", w.id, "why", slows)
		}
		w.slows = slows
	}
}

// sendSlow sends those away whom two plans have left out because they slow the others: they are told, and may
// come again later. Under mu.
func (s *Swarm) sendSlow(a *planArgs, p *place.Plan) {
	for i, w := range a.who {
		if w.slows != "" && p.Workers[i].Slows && w.ctx.Err() == nil {
			w.drain(&errSlows{p.Workers[i].Why})
		}
	}
}

// planArgs reads what a plan is made of. Under mu.
func (s *Swarm) planArgs() planArgs {
	return planArgs{
		model: s.placeModel(), workers: s.placeWorkers(), who: append([]*attached(nil), s.present...),
		members: s.members,
	}
}

// wakePlanner has a plan made.
func (s *Swarm) wakePlanner() {
	select {
	case s.wake <- struct{}{}:
	default: // it is awake already
	}
}

// minPicked is how often an expert of a layer must have been picked, on average, for the counts to say more
// than chance.
const minPicked = 64

// load is how often each expert is picked; nil while too little is known.
func (s *Swarm) load() [][]float64 {
	counts := s.dispatcher.Routing()
	if len(counts) < s.c.Model.Layers {
		return nil
	}
	list := make([][]float64, s.c.Model.Layers)
	for l := range list {
		list[l] = make([]float64, s.c.Model.PerLayer)
		sum := int64(0)
		for e, n := range counts[l] {
			if e < len(list[l]) {
				list[l][e] = float64(n)
				sum += n
			}
		}
		if sum < minPicked*int64(s.c.Model.PerLayer) {
			return nil
		}
	}
	return list
}

// measuredSlower is how many times slower than it says a worker must be measured to be taken for that: what is
// measured holds the noise of all machines on the way.
const measuredSlower = 1.5

// speed is how many expert rows a second a worker computes: as it says, unless it is measured clearly slower.
func (s *Swarm) speed(w *attached) float64 {
	says, is := s.rows(w.rate), w.session.speed.get(time.Now())
	if is > 0 && (says == 0 || is*measuredSlower < says) {
		return is
	}
	return says
}
