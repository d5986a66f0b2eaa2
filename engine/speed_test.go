package engine

import (
	"math"
	"testing"
	"time"
)

// TestSpeedIsThatOfTheWorker has dispatches wait behind each other: the queue is not taken for slowness.
func TestSpeedIsThatOfTheWorker(t *testing.T) {
	var s speed
	now := time.Unix(1, 0)
	const perPick = 10 * time.Microsecond
	one := func(behind, picks int) {
		var loads []int
		for range behind {
			loads = append(loads, s.begin(picks))
		}
		for _, load := range loads { // each is answered when all before it are
			s.end(now, picks, load, time.Duration(load)*perPick)
		}
	}
	if s.get(now) != 0 {
		t.Error("known before anything was measured")
	}
	for range speedMin {
		one(1, speedLeast-1)
	}
	if s.get(now) != 0 {
		t.Error("small dispatches say something")
	}
	for range 8 {
		one(4, 512)
	}
	if got := s.get(now); math.Abs(got-1e5) > 1 {
		t.Errorf("%v picks a second, want 100000", got)
	}
	s.end(now, 512, s.begin(512), 0) // failed
	if got := s.get(now); math.Abs(got-1e5) > 1 || s.load != 0 {
		t.Errorf("after a failure %v picks a second, %d under way", got, s.load)
	}
	if now = now.Add(speedForget + 1); s.get(now) != 0 {
		t.Error("not forgotten")
	}
}
