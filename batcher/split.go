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
			jobs[i] = &job{batch: &moe.Batch{}, sheet: &sheet{}}
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
	at     []int32 // how many picks before it go to the same; once cut, its place in the sheet
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
	expert, shares := b.Expert, a.shares
	to, at := a.to[:len(expert)], a.at[:len(expert)]
	for i, e := range expert {
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
	begin  []int32 // of each part in a sheet, by destination, Nobody's first
	owners []int32 // of each row: the destination that has its first pick, or notOwned
}

// notOwned is who owns a row of which another part was owner before.
const notOwned = Nobody - 1

// sheet is where the picks of all parts of a batch lie, one part after the other. The first part has it.
type sheet struct {
	expert []uint16
	weight []float32
	rows   []int32
}

// sized returns s with n elements of any value.
func sized[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }

// distribute gives each pick of j to the part of its destination, Nobody's first; a destination without picks
// has none. It finds a place for the answer to each row of each part too.
func (c *cuts) distribute(j *job, a *assignment, parts []*job) {
	var all *sheet
	c.begin = c.begin[:0]
	n := int32(0)
	for i, part := range parts {
		if c.begin = append(c.begin, n); part == nil {
			continue
		}
		if all == nil {
			all = part.sheet
			all.size(len(a.to))
		}
		hi := n + int32(a.shares[i])
		part.batch.Expert, part.batch.Weight, part.rows = all.expert[n:hi:hi], all.weight[n:hi:hi], all.rows[n:hi:hi]
		n = hi
	}
	c.sort(j, a, all)
	c.own(j, a.to)
	for i, part := range parts {
		if part != nil {
			part.fill()
			part.place(c.owners, int32(i+Nobody))
			part.locate(j)
		}
	}
}

func (s *sheet) size(picks int) {
	s.expert, s.weight, s.rows = sized(s.expert, picks), sized(s.weight, picks), sized(s.rows, picks)
}

// sort puts each pick of j where those of its part are, with the row of j that it is of. Its loops are short,
// since what they use is to fit into registers.
func (c *cuts) sort(j *job, a *assignment, s *sheet) {
	b := j.batch
	n := len(b.Expert)
	begin, at := c.begin, a.at[:n]
	for i, d := range a.to[:n] {
		at[i] += begin[d-Nobody]
	}
	s.put(at, b.Expert, b.Weight[:n])
	rows, lo := s.rows, int32(0)
	for r, hi := range b.First[1:] {
		for _, p := range at[lo:hi] {
			rows[p] = int32(r)
		}
		lo = hi
	}
}

// put puts picks at their places.
func (s *sheet) put(at []int32, from []uint16, weights []float32) {
	expert := s.expert
	weight, weights, from := s.weight[:len(expert)], weights[:len(at)], from[:len(at)]
	for i, p := range at {
		expert[p], weight[p] = from[i], weights[i]
	}
}

// own says who owns each row of j.
func (c *cuts) own(j *job, to []int32) {
	c.owners = sized(c.owners, j.batch.Rows)
	for r, first := range j.batch.First[:len(c.owners)] {
		c.owners[r] = to[first]
	}
	if j.rows == nil {
		return
	}
	for r, place := range j.places {
		if place < 0 {
			c.owners[r] = notOwned
		}
	}
}

// fill has a part, whose rows are one a pick, have each but once. It writes without asking whether a row is new,
// since that is what a processor cannot guess.
func (j *job) fill() {
	rows, first := j.rows, sized(j.batch.First, len(j.rows)+1)
	first[0] = 0
	n, last := 0, int32(-1)
	for i, r := range rows {
		n += int(uint32(last-r) >> 31) // 1 if the row is new, for rows ascend
		rows[n-1], first[n] = r, int32(i+1)
		last = r
	}
	j.rows, j.batch.First = rows[:n], first[:n+1]
}

// place finds a place for the answer to each row of a part. Who has the first pick of a row owns it, unless it was
// another's before. It does not ask either.
func (j *job) place(owners []int32, dest int32) {
	places, adds := sized(j.places, len(j.rows)), sized(j.adds, len(j.rows))
	added := int32(0)
	for i, r := range j.rows {
		place, more := r, int32(0)
		if owners[r] != dest {
			place, more = ^added, 1
		}
		places[i], adds[added] = place, int32(i)
		added += more
	}
	j.places, j.adds = places, adds[:added]
}

// locate makes the rows of a part, which are those of from, rows of the call.
func (j *job) locate(from *job) {
	if from.rows == nil {
		return // they are the same
	}
	for i, r := range j.rows {
		j.rows[i] = from.rows[r]
		if j.places[i] >= 0 {
			j.places[i] = from.rows[r]
		}
	}
}
