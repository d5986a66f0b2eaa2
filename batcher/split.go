package batcher

import (
	"fmt"

	"kvasir/internal/moe"
)

// Nobody is where a pick goes that no executor holds.
const Nobody = -1

// Choose says where the picks of one row go: it sets to[i] to the executor, counted from 0, that
// computes expert[i], or to Nobody. It is called once a row, rows ascending, so it may carry a load from
// row to row; that is how replicas share work.
type Choose func(row int, expert []uint16, to []int32)

// Part is one executor's share of a batch.
type Part struct {
	To    int        // the executor, or Nobody
	Batch *moe.Batch // its rows, which stay where they are, with its picks of them
	Rows  []int32    // row i of Batch is row Rows[i] of the batch that was split; ascending
}

// Split divides b among n executors. Every pick of b is in exactly one part, with its weight; a part has
// a row of b once, or not at all; rows and picks keep their order. Parts come in the order of executors,
// Nobody first, and only those that have a pick. They borrow their rows of b.
func Split(b *moe.Batch, n int, choose Choose) ([]Part, error) {
	if err := b.ValidateShape(moe.MaxExperts); err != nil {
		return nil, err
	}
	var a assignment
	a.assign(b, n, choose)
	jobs := make([]*job, n+1)
	for i, picks := range a.shares {
		if picks > 0 {
			jobs[i] = &job{batch: &moe.Batch{}}
			jobs[i].batch.Borrow(b.Shape)
		}
	}
	distribute(&job{batch: b}, a.to, jobs)
	var parts []Part
	for i, j := range jobs {
		if j != nil {
			parts = append(parts, Part{To: i + Nobody, Batch: j.batch, Rows: j.rows})
		}
	}
	return parts, nil
}

// Combine adds the answer to a part into the sums of the whole batch: row i to row rows[i]. Values are
// integers, so parts may come in any order; a fault of any part faults the row.
func Combine(out, answer *moe.Partials, rows []int32) {
	for i, r := range rows {
		out.AddRow(int(r), answer, i)
	}
}

// assignment is where each pick of a batch goes.
type assignment struct {
	to     []int32
	shares []int // picks of Nobody, then of each executor
}

// assign asks choose about every row of b.
func (a *assignment) assign(b *moe.Batch, n int, choose Choose) {
	a.reset(len(b.Expert), n)
	for r := range b.Rows {
		expert, _ := b.Picks(r)
		to := a.to[b.First[r]:b.First[r+1]]
		choose(r, expert, to)
		for i, d := range to {
			if d < Nobody || int(d) >= n {
				panic(fmt.Sprintf("BUG: pick %d of row %d sent to executor %d of %d", i, r, d, n))
			}
			a.shares[d-Nobody]++
		}
	}
}

func (a *assignment) reset(picks, n int) {
	if cap(a.to) < picks {
		a.to = make([]int32, ceilPow2(picks))
	}
	a.to = a.to[:picks]
	if cap(a.shares) < n+1 {
		a.shares = make([]int, ceilPow2(n+1))
	}
	a.shares = a.shares[:n+1]
	clear(a.shares)
}

// sole returns the only destination, if there is but one.
func (a *assignment) sole() (dest int, ok bool) {
	for i, picks := range a.shares {
		if picks == len(a.to) {
			return i + Nobody, true
		}
	}
	return 0, false
}
