package batcher

import (
	"context"
	"fmt"
	"sync"
	"time"

	"kvasir/internal/moe"
)

const (
	// lateFloor is the least time after which an answer is late.
	lateFloor = 20 * time.Millisecond
	// An answer is given up, if somebody else may have it computed, after giveUpFactor times the time
	// after which it was late, and giveUpFloor at least.
	giveUpFactor = 4
	giveUpFloor  = 250 * time.Millisecond
	// DefaultPatience is how long an answer is waited for at most unless told otherwise.
	DefaultPatience = 10 * time.Second
)

// errBeaten ends a hedge whose answer has come from the member that was late.
var errBeaten = fmt.Errorf("batcher: beaten: %w", context.Canceled)

// chase is a dispatch that is not waited for without end. The dispatch itself runs where it was sent; a
// timer rings when it is late.
//
//  1. When it is late, others are asked too, if the budget allows it: a hedge. It has partials of its
//     own, and the first answer ends the other.
//  2. When it is very late, it is given up as soon as there is somebody else, and is asked again
//     elsewhere.
//  3. When nobody else has come for Options.Wait after that, it is given up all the same.
//
// An answer that comes later still is work: it is paid all the same, once (lateDispatch).
//
// The timer's goroutine runs the hedge; end does not return before it is through with the batch.
type chase struct {
	s    *spread
	j    *job
	m    *Member
	begs begun
	ctx  leash // of the dispatch

	timer *time.Timer // kept from one use to the next
	done  chan struct{}
	stage stage
	start time.Time

	race   moe.LateContext // of the dispatch: ctx, by which Late is found
	slab   *slab           // in whose own the hedge's answer is; the hedge's until hedged is set; nil: there was none
	second leash           // of the hedge, while it runs

	mu      sync.Mutex
	over    bool  // the dispatch has ended: nothing is begun any more
	running bool  // the hedge has begun
	hedged  bool  // and ended
	err     error // how
	late    bool  // the dispatch was given up
	rings   int   // that the timer was set and has not rung
}

type stage uint8

const (
	untilLate stage = iota
	untilVeryLate
	untilHopeless
)

// chase begins to watch a dispatch of j to m; nil: it is waited for as long as it takes.
func (s *spread) chase(j *job, m *Member, g begun) *chase {
	if m.local || s.d.o.Patience < 0 {
		return nil
	}
	c := s.d.chases.Get().(*chase)
	c.s, c.j, c.m, c.begs, c.start = s, j, m, g, g.at
	c.over, c.running, c.hedged, c.late, c.err = false, false, false, false, nil
	c.race.Lates, c.race.Context = c, &c.ctx
	c.ctx.tie(&s.ctx)
	c.stage = untilLate
	after := g.late
	switch {
	case j.again:
		c.stage, after = untilHopeless, max(g.giveUp+s.d.o.Wait, s.d.o.Patience)
	case after == 0 || s.hurry:
		c.stage, after = untilVeryLate, g.giveUp
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(after)
	return c
}

// set has the timer ring so long after the start. c.mu is held.
func (c *chase) set(after time.Duration) {
	c.rings++
	left := max(0, after-time.Since(c.start))
	if c.timer == nil {
		c.done = make(chan struct{}, 1)
		c.timer = time.AfterFunc(left, c.ring)
		return
	}
	c.timer.Reset(left)
}

// ring is the timer's goroutine.
func (c *chase) ring() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rings--
	if c.over {
		return
	}
	switch c.stage {
	case untilLate:
		c.stage = untilVeryLate
		if d := c.s.d; d.others(c.j, c.m) && d.spend(len(c.j.batch.Expert)) && c.hedge() {
			return
		}
		if !c.over {
			c.set(c.begs.giveUp)
		}
	case untilVeryLate:
		waited, most := time.Since(c.start), c.begs.giveUp+c.s.d.o.Wait
		switch {
		case c.s.hurry || c.s.d.others(c.j, c.m):
		case waited < most: // somebody may join
			c.set(min(waited+c.begs.giveUp, most))
			return
		default:
			c.stage = untilHopeless
		}
		c.giveUp()
	case untilHopeless:
		c.giveUp()
	}
}

// giveUp ends the dispatch, whose answer others may have computed. c.mu is held.
func (c *chase) giveUp() {
	c.late = true
	c.ctx.end(context.Canceled)
}

// hedge has others compute the same, and reports whether that settles the dispatch: it was answered, or
// has ended in the meantime. c.mu is held when it is called and when it returns.
func (c *chase) hedge() (settled bool) {
	c.running = true
	c.second.tie(&c.s.ctx)
	c.mu.Unlock()
	c.slab = c.s.d.slabs.take()
	err := c.s.d.run(&c.second, request{batch: c.j.batch, out: &c.slab.own, tried: c.j.tried, but: c.m, hurry: true, trace: c.s.trace, over: c})
	c.second.untie()
	c.mu.Lock()
	c.hedged, c.err = true, err
	if c.over {
		c.done <- struct{}{}
		return true
	}
	if err == nil {
		c.ctx.end(context.Canceled)
	}
	return err == nil
}

// end is called when the dispatch has returned. It ends the hedge too, unless that may still give the
// answer which the dispatch did not. answered says that the hedge did; late that the dispatch was ended
// for being late.
func (c *chase) end(err error) (answered, late bool) {
	c.mu.Lock()
	c.over = true
	if c.timer.Stop() {
		c.rings--
	}
	wait := c.running && !c.hedged
	if wait && err == nil {
		c.second.end(errBeaten)
	}
	c.mu.Unlock()
	if wait {
		<-c.done
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running && c.err == nil, c.late
}

// release lets a chase that has ended be used again, unless a ring is on its way to it.
func (c *chase) release() {
	c.mu.Lock()
	idle := c.rings == 0
	c.mu.Unlock()
	d := c.s.d
	c.ctx.untie()
	if c.slab != nil {
		d.slabs.put([]*slab{c.slab})
	}
	c.s, c.j, c.m, c.slab = nil, nil, nil, nil
	if idle {
		d.chases.Put(c)
	}
}
