package bench

import (
	"slices"
	"testing"
	"time"
)

func TestBatchesArePowersOfTwoAndTheLast(t *testing.T) {
	f := func(largest int, want ...int) {
		t.Helper()
		if got := batchesUpTo(largest); !slices.Equal(got, want) {
			t.Errorf("up to %d: %v, want %v", largest, got, want)
		}
	}
	f(1, 1)
	f(2, 1, 2)
	f(3, 1, 2, 3)
	f(8, 1, 2, 4, 8)
	f(512, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
}

// play runs a schedule on a machine where one round of a batch takes so long, and returns the rounds of
// each batch, 0 for those left out, and when it is over.
func play(s *schedule, round func(batch int) time.Duration) (rounds []int, now time.Duration) {
	for _, n := range s.batches {
		if s.skip(n, now) {
			rounds = append(rounds, 0)
			continue
		}
		if s.warm(n) {
			now += round(n)
		}
		k, last := 0, time.Duration(0)
		for ; s.again(n, k, last, now); k++ {
			last = round(n)
			now += last
		}
		s.done(n, last)
		rounds = append(rounds, k)
	}
	return rounds, now
}

func TestScheduleKeepsToItsBudget(t *testing.T) {
	const budget = 110 * time.Second
	for _, tt := range []struct {
		name   string
		row    time.Duration // of one round
		rounds []int
		over   bool // the largest batch does not fit, and is measured all the same
	}{
		{"quick machine", 100 * time.Microsecond, []int{15, 15, 15, 15, 15, 15, 15, 15, 15, 15}, false},
		{"portable kernels", 40 * time.Millisecond, []int{15, 15, 15, 15, 9, 5, 5, 3, 2, 1}, false},
		{"slow machine", 160 * time.Millisecond, []int{8, 5, 5, 5, 1, 1, 1, 0, 0, 1}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &schedule{batches: batchesUpTo(512), budget: budget}
			rounds, now := play(s, func(n int) time.Duration { return time.Duration(n) * tt.row })
			if !slices.Equal(rounds, tt.rounds) {
				t.Errorf("rounds %v, want %v", rounds, tt.rounds)
			}
			if (now > budget) != tt.over {
				t.Errorf("took %v of %v", now, budget)
			}
		})
	}
}

func TestRepeatDecidesAlone(t *testing.T) {
	s := &schedule{batches: batchesUpTo(256), budget: time.Second, repeat: 3}
	rounds, _ := play(s, func(int) time.Duration { return time.Minute })
	if want := slices.Repeat([]int{3}, 9); !slices.Equal(rounds, want) {
		t.Errorf("rounds %v, want %v", rounds, want)
	}
}

func TestSharesAddUpToOne(t *testing.T) {
	s := &schedule{batches: batchesUpTo(100)}
	last := 0.0
	for n := range s.batches {
		if got := s.share(n + 1); got <= last || got > 1 {
			t.Errorf("share of %d batches: %v after %v", n+1, got, last)
		} else {
			last = got
		}
	}
	if s.share(0) != 0 || last != 1 {
		t.Errorf("shares from %v to %v, want 0 to 1", s.share(0), last)
	}
}

// TestShortRoundsAreRepeatedAfterALongStart: one round of 40 ms proves nothing.
func TestShortRoundsAreRepeatedAfterALongStart(t *testing.T) {
	s := &schedule{batches: batchesUpTo(512), budget: 100 * time.Second}
	rounds := 0
	for now := 5 * time.Second; s.again(1, rounds, 40*time.Millisecond, now); now += 40 * time.Millisecond {
		rounds++
	}
	if rounds != roundsFew {
		t.Errorf("%d rounds of 40 ms after 5 s, want %d", rounds, roundsFew)
	}
	if s.again(4, 1, 2*time.Second, 20*time.Second) {
		t.Error("a round of 2 s is repeated beyond its share")
	}
}

func TestHalfOfTheBudgetIsForBatches(t *testing.T) {
	for spent, want := range map[time.Duration]time.Duration{0: 100, 30: 70, 50: 50, 400: 50} {
		s := &schedule{budget: 100}
		if s.begin(spent); s.budget != want {
			t.Errorf("after %d of 100, %d are left, want %d", spent, s.budget, want)
		}
	}
}
