package bench

import (
	"math"
	"slices"
	"time"
)

const (
	roundsMax = 15
	roundsFew = 5  // of a batch whose rounds are short, whatever its share
	keepBelow = 64 // batches up to this size are never left out
)

// schedule shares a time budget out among batches: the larger ones get more, since one round of them
// takes longer, and what a batch does not use goes to the next. It has no clock; time comes in as an
// argument, counted from the beginning of the run.
type schedule struct {
	batches []int // ascending
	repeat  int   // rounds of each batch; 0: as the budget allows
	budget  time.Duration
	took    time.Duration // one round of the batch before
	rows    int           // of that batch; 0: none yet
}

// batchesUpTo lists the powers of two up to a size, and the size itself.
func batchesUpTo(largest int) []int {
	var list []int
	for n := 1; n < largest; n *= 2 {
		list = append(list, n)
	}
	return append(list, largest)
}

// guess says how long one round of a batch will take, from the batch before; 0: not known yet. It is
// more than it will be for small batches, where rows share what has to be read better and better.
func (s *schedule) guess(batch int) time.Duration {
	if s.rows == 0 {
		return 0
	}
	return time.Duration(float64(s.took) * float64(batch) / float64(s.rows))
}

// skip reports whether a batch has to be left out, so that the largest can still be measured in time.
// Those up to keepBelow and the largest are measured in any case.
func (s *schedule) skip(batch int, now time.Duration) bool {
	largest := s.batches[len(s.batches)-1]
	if s.repeat > 0 || batch <= keepBelow || batch == largest {
		return false
	}
	return now+s.guess(batch)+s.guess(largest) > s.budget
}

// warm reports whether there is time for a round of a batch that is not counted.
func (s *schedule) warm(batch int) bool { return s.guess(batch) < s.budget/50 }

// again reports whether a batch gets another round after so many, the last of which took so long.
func (s *schedule) again(batch, rounds int, last, now time.Duration) bool {
	switch {
	case rounds == 0:
		return true
	case s.repeat > 0:
		return rounds < s.repeat
	case rounds >= roundsMax:
		return false
	case rounds < roundsFew && last < s.budget/50:
		return true // making the weights may have used up the share of the first batches
	}
	return now+last <= s.deadline(batch)
}

// deadline is when the rounds of a batch should be over. Shares of the budget go with the square root of
// the rows.
func (s *schedule) deadline(batch int) time.Duration {
	return time.Duration(float64(s.budget) * s.share(slices.Index(s.batches, batch)+1))
}

// share is the part of the run that the first n batches make.
func (s *schedule) share(n int) float64 {
	var part, all float64
	for i, b := range s.batches {
		all += math.Sqrt(float64(b))
		if i < n {
			part = all
		}
	}
	return part / all
}

// begin takes off the budget what was needed before the first batch, but half of it stays.
func (s *schedule) begin(spent time.Duration) { s.budget = max(s.budget/2, s.budget-spent) }

// done notes how long a round of a batch took.
func (s *schedule) done(batch int, round time.Duration) { s.rows, s.took = batch, round }
