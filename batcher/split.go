package batcher

import (
	"fmt"
	"slices"

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
	new(cuts).distribute(&job{batch: b}, &a, jobs)
	var parts []Part
	for i, j := range jobs {
		if j != nil {
			j.batch.BorrowSome(b, j.rows)
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

// look is assign where there is no choice: holder tells the destination of each expert, and nobody that of the
// rest.
func (a *assignment) look(b *moe.Batch, n int, holder []int32, nobody int32) {
	a.reset(len(b.Expert), n)
	for i, e := range b.Expert {
		d := nobody
		if int(e) < len(holder) {
			d = holder[e]
		}
		a.to[i] = d
		a.shares[d-Nobody]++
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

// cuts is the parts that a batch is being cut into, by destination.
type cuts []cut

// cut is how far a part is.
type cut struct {
	rows   []int32 // as long as they can become, as are the others
	first  []int32
	expert []uint16
	weight []float32
	last   int32 // row of the call that came last
	n, at  int   // rows and picks so far
}

// distribute gives each pick of j to the part of its destination, Nobody's first; a destination without picks
// has none. It writes without asking whether a row is new, since that is what a processor cannot guess.
func (c *cuts) distribute(j *job, a *assignment, parts []*job) {
	*c = (*c)[:0]
	for i, picks := range a.shares {
		k := cut{last: -1}
		if part := parts[i]; part != nil {
			p, rows := part.batch, min(picks, j.batch.Rows)
			k.rows = slices.Grow(part.rows[:0], rows)[:rows]
			k.first = slices.Grow(p.First[:0], rows+1)[:rows+1]
			k.expert, k.weight = slices.Grow(p.Expert[:0], picks)[:picks], slices.Grow(p.Weight[:0], picks)[:picks]
			k.first[0] = 0
		}
		*c = append(*c, k)
	}
	b, list := j.batch, *c
	for r := range b.Rows {
		row := j.row(r)
		for i := b.First[r]; i < b.First[r+1]; i++ {
			k := &list[a.to[i]-Nobody]
			more := 0
			if k.last != row {
				more = 1
			}
			k.last, k.n = row, k.n+more
			k.expert[k.at], k.weight[k.at] = b.Expert[i], b.Weight[i]
			k.at++
			k.rows[k.n-1], k.first[k.n] = row, int32(k.at)
		}
	}
	for i := range list {
		if k := &list[i]; parts[i] != nil {
			p := parts[i].batch
			p.First, p.Expert, p.Weight = k.first[:k.n+1], k.expert, k.weight
			parts[i].rows = k.rows[:k.n]
		}
	}
	own(j, a.to, parts)
	clear(list)
}

// own finds a place for the answer to each row of each part. Who has the first pick of a row owns it, unless
// it was another's before.
func own(j *job, to []int32, parts []*job) {
	for d, part := range parts {
		if part == nil {
			continue
		}
		r, adds := 0, 0
		part.places = slices.Grow(part.places[:0], len(part.rows))[:len(part.rows)]
		part.adds = slices.Grow(part.adds[:0], len(part.rows))[:len(part.rows)]
		for i, row := range part.rows {
			for j.row(r) != row {
				r++
			}
			mine := int(to[j.batch.First[r]]) == d+Nobody && (j.rows == nil || j.places[r] >= 0)
			part.adds[adds], part.places[i] = int32(i), row
			if !mine {
				part.places[i] = ^int32(adds)
				adds++
			}
		}
		part.adds = part.adds[:adds]
	}
}
