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
	at     []int32 // how many picks before it go to the same
	shares []int   // picks of Nobody, then of each executor
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
			a.count(int(b.First[r])+i, d)
		}
	}
}

func (a *assignment) count(pick int, d int32) {
	a.at[pick] = int32(a.shares[d-Nobody])
	a.shares[d-Nobody]++
}

// look is assign where there is no choice: holder tells the destination of each expert, and nobody that of the
// rest.
func (a *assignment) look(b *moe.Batch, n int, holder []int32, nobody int32) {
	a.reset(len(b.Expert), n)
	to, at, shares := a.to, a.at, a.shares
	for i, e := range b.Expert {
		d := nobody
		if int(e) < len(holder) {
			d = holder[e]
		}
		n := &shares[d-Nobody]
		to[i], at[i] = d, int32(*n)
		*n++
	}
}

func (a *assignment) reset(picks, n int) {
	a.to, a.at, a.shares = sized(a.to, picks), sized(a.at, picks), sized(a.shares, n+1)
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

// cuts is room for cutting a batch.
type cuts struct {
	begin []int32 // of each part in picks, by destination
	picks []pick  // of all parts, one part after the other
}

// pick is a pick of a row of the call.
type pick struct {
	weight float32
	row    int32
	expert uint16
}

// sized returns s with n elements of any value.
func sized[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }

// distribute gives each pick of j to the part of its destination, Nobody's first; a destination without picks
// has none.
func (c *cuts) distribute(j *job, a *assignment, parts []*job) {
	c.sort(j, a)
	for i, part := range parts {
		if part != nil {
			part.fill(c.picks[c.begin[i]:c.begin[i+1]])
		}
	}
	own(j, a.to, parts)
}

// sort puts each pick of j where those of its part are.
func (c *cuts) sort(j *job, a *assignment) {
	c.begin = append(c.begin[:0], 0)
	n := int32(0)
	for _, picks := range a.shares {
		n += int32(picks)
		c.begin = append(c.begin, n)
	}
	c.picks = sized(c.picks, int(n))
	b, picks, begin := j.batch, c.picks, c.begin[:len(c.begin)-1]
	lo := b.First[0]
	for r, hi := range b.First[1:] {
		row := j.row(r)
		to, at, weight := a.to[lo:hi], a.at[lo:hi], b.Weight[lo:hi]
		for i, e := range b.Expert[lo:hi] {
			picks[begin[to[i]-Nobody]+at[i]] = pick{weight[i], row, e}
		}
		lo = hi
	}
}

// fill makes a part of its picks. It writes without asking whether a row is new, since that is what a processor
// cannot guess.
func (j *job) fill(picks []pick) {
	b := j.batch
	rows, first := sized(j.rows, len(picks)), sized(b.First, len(picks)+1)
	expert, weight := sized(b.Expert, len(picks)), sized(b.Weight, len(picks))
	first[0] = 0
	n, last := 0, int32(-1)
	for i := range picks {
		k := &picks[i]
		expert[i], weight[i] = k.expert, k.weight
		n += int(uint32(last-k.row) >> 31) // 1 if the row is new, for rows ascend
		rows[n-1], first[n] = k.row, int32(i+1)
		last = k.row
	}
	j.rows, b.First, b.Expert, b.Weight = rows[:n], first[:n+1], expert, weight
}

// own finds a place for the answer to each row of each part. Who has the first pick of a row owns it, unless
// it was another's before.
func own(j *job, to []int32, parts []*job) {
	first := j.batch.First
	for d, part := range parts {
		if part == nil {
			continue
		}
		places, adds := sized(part.places, len(part.rows)), sized(part.adds, len(part.rows))
		r, added := 0, int32(0)
		for i, row := range part.rows {
			if j.rows == nil {
				r = int(row)
			}
			for j.rows != nil && j.rows[r] != row {
				r++
			}
			place, more := row, int32(0)
			if int(to[first[r]]) != d+Nobody || j.rows != nil && j.places[r] < 0 {
				place, more = ^added, 1
			}
			places[i], adds[added] = place, int32(i)
			added += more
		}
		part.places, part.adds = places, adds[:added]
	}
}
