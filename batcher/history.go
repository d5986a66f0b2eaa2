package batcher

import (
	"math/bits"
	"slices"
	"time"

	"kvasir/internal/moe"
)

const (
	// historyLen is how many dispatches of a class of rows a history remembers.
	historyLen = 64
	// historyMin is how many of them it takes to judge the next.
	historyMin = 8
	// An answer later than lateFactor times the time in which all but one in lateTail came is late. The
	// tail is wide enough that a stall of one dispatch in a hundred does not hide the next.
	lateFactor = 2
	lateTail   = 16
)

// classes is how many classes of rows there are: 1, 2, 3-4, 5-8, … moe.MaxRows.
var classes = class(moe.MaxRows) + 1

// class is the class of a dispatch of so many rows.
func class(rows int) int { return bits.Len(uint(max(1, rows) - 1)) }

// history is how long the latest dispatches of an executor took, by class of rows. It has no clock and no
// lock.
type history struct {
	classes []ring
}

// ring is the latest times of one class: as they came, and sorted.
type ring struct {
	took, sorted []time.Duration
	at           int // where the next goes, once took is full
}

// add notes that a dispatch of so many rows took so long.
func (h *history) add(rows int, took time.Duration) {
	if h.classes == nil {
		h.classes = make([]ring, classes)
	}
	h.classes[min(class(rows), classes-1)].add(took)
}

func (r *ring) add(took time.Duration) {
	if r.took == nil {
		r.took, r.sorted = make([]time.Duration, 0, historyLen), make([]time.Duration, 0, historyLen)
	}
	if len(r.took) < historyLen {
		r.took = append(r.took, took)
	} else {
		old, _ := slices.BinarySearch(r.sorted, r.took[r.at])
		r.sorted = slices.Delete(r.sorted, old, old+1)
		r.took[r.at] = took
		r.at = (r.at + 1) % historyLen
	}
	i, _ := slices.BinarySearch(r.sorted, took)
	r.sorted = slices.Insert(r.sorted, i, took)
}

// late returns after what time an answer to so many rows is late; ok is false while too little is known.
// A class with no history of its own takes that of the next larger one, or that of the next smaller one
// as if time went by rows.
func (h *history) late(rows int) (d time.Duration, ok bool) {
	if h.classes == nil {
		return 0, false
	}
	own := min(class(rows), classes-1)
	for c := own; c < classes; c++ {
		if d, ok := h.classes[c].judge(); ok {
			return d, true
		}
	}
	for c := own - 1; c >= 0; c-- {
		if d, ok := h.classes[c].judge(); ok {
			return d << (own - c), true
		}
	}
	return 0, false
}

func (r *ring) judge() (time.Duration, bool) {
	n := len(r.sorted)
	if n < historyMin {
		return 0, false
	}
	return lateFactor * r.sorted[n-1-n/lateTail], true
}

// pace is how long a pick takes an executor when it has others under way: the smoothed quotient of the
// time of a dispatch and the picks that were under way as it began. Members with equal products of pace
// and load answer at the same time.
type pace struct {
	perPick float64 // seconds; 0: nothing known
	at      time.Time
}

const (
	paceWeight = 8               // one new time in so many
	paceClip   = 4               // no single time counts for more than so many times the rest
	paceForget = 2 * time.Second // without a dispatch for so long, half of a bad name is forgotten
	paceFloor  = time.Millisecond
)

// add notes a dispatch that took so long and had so many picks under way with it. Times below a
// millisecond say more about this machine than about the executor.
func (p *pace) add(now time.Time, took time.Duration, load int) {
	x := max(took, paceFloor).Seconds() / float64(max(1, load))
	switch {
	case p.perPick == 0:
		p.perPick = x
	default:
		p.perPick += (min(x, paceClip*p.perPick) - p.perPick) / paceWeight
	}
	p.at = now
}

// get returns the seconds for a pick, 0 if unknown. What has not been heard of for a while gets better
// with time, so that it is tried again.
func (p *pace) get(now time.Time) float64 {
	if idle := now.Sub(p.at); p.perPick > 0 && idle > paceForget {
		return p.perPick / float64(int64(1)<<min(30, idle/paceForget))
	}
	return p.perPick
}
