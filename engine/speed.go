package engine

import (
	"sync"
	"time"
)

// speed measures how many picks a second a worker computes, from dispatches that were long enough: the time
// of one in the worker, against the picks that were under way there as it began, its own included.
type speed struct {
	mu      sync.Mutex // guards the rest
	load    int
	perPick float64 // seconds; smoothed
	n       int     // how many have been measured since the last was forgotten
	at      time.Time
}

const (
	speedLeast  = 64              // picks under way, for a dispatch to say something
	speedMin    = 16              // dispatches, for the speed to be known
	speedWeight = 16              // one new time in so many
	speedForget = 5 * time.Minute // without a dispatch, it is not known any more
)

// begin notes a dispatch, and returns the picks under way.
func (s *speed) begin(picks int) (load int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load += picks
	return s.load
}

// end notes the end of a dispatch that took so long in the worker; 0: it says nothing.
func (s *speed) end(now time.Time, picks, load int, work time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.load -= picks
	if work <= 0 || load < speedLeast {
		return
	}
	if now.Sub(s.at) > speedForget {
		s.n = 0
	}
	x := work.Seconds() / float64(load)
	if s.n == 0 {
		s.perPick = x
	}
	s.perPick += (x - s.perPick) / speedWeight
	s.n, s.at = s.n+1, now
}

// get returns picks a second; 0: not known.
func (s *speed) get(now time.Time) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n < speedMin || now.Sub(s.at) > speedForget || s.perPick <= 0 {
		return 0
	}
	return 1 / s.perPick
}
