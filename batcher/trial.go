package batcher

// trialShare is how many of the rows members on trial get where others could compute them.
const trialShare = 0.05

// trials counts rows, while there are members on trial. It has no lock.
type trials struct {
	seen  int64 // rows that were divided among members
	given int64 // of those, that were given to members on trial without need
}

// lend returns how many rows may be given to members on trial, as if they were; who gives fewer gives the rest
// back. fresh says that the rows are divided for the first time.
func (t *trials) lend(rows int, fresh bool) int {
	if fresh {
		t.seen += int64(rows)
	}
	n := min(int64(trialShare*float64(t.seen))-t.given, int64(rows))
	if n <= 0 {
		return 0
	}
	t.given += n
	return int(n)
}
