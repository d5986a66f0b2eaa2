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
	Batch *moe.Batch // its rows, with its picks of them
	Rows  []int32    // row i of Batch is row Rows[i] of the batch that was split; ascending
}

// Split divides b among n executors. Every pick of b is in exactly one part, with its weight; a part has
// a row of b once, or not at all; rows and picks keep their order. Parts come in the order of executors,
// Nobody first, and only those that have a pick. They share no memory with b.
func Split(b *moe.Batch, n int, choose Choose) ([]Part, error) {
	if err := b.ValidateShape(moe.MaxExperts); err != nil {
		return nil, err
	}
	var a assignment
	a.assign(b, n, choose)
	var parts []Part
	for dest := Nobody; dest < n; dest++ {
		if share := a.of(dest); share.picks > 0 {
			var s slab
			part := Part{To: dest, Batch: s.batch(b.Shape, share.rows, share.picks)}
			part.Rows = cut(part.Batch, nil, b, a.to, dest)
			parts = append(parts, part)
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
	shares []share // of Nobody, then of each executor
}

// share is the size of a part.
type share struct{ rows, picks int }

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
			s := &a.shares[d-Nobody]
			s.picks++
			if !contains(to[:i], d) {
				s.rows++
			}
		}
	}
}

func (a *assignment) reset(picks, n int) {
	if cap(a.to) < picks {
		a.to = make([]int32, ceilPow2(picks))
	}
	a.to = a.to[:picks]
	if cap(a.shares) < n+1 {
		a.shares = make([]share, ceilPow2(n+1))
	}
	a.shares = a.shares[:n+1]
	clear(a.shares)
}

// of returns the share of an executor or of Nobody.
func (a *assignment) of(dest int) share { return a.shares[dest-Nobody] }

// sole returns the only destination, if there is but one.
func (a *assignment) sole() (dest int, ok bool) {
	for i, s := range a.shares {
		if s.picks == len(a.to) {
			return i + Nobody, true
		}
	}
	return 0, false
}

// contains is a loop over at most moe.MaxTopK entries; slices.Contains is not inlined here.
func contains(to []int32, d int32) bool {
	for _, t := range to {
		if t == d {
			return true
		}
	}
	return false
}

// cut appends to dst the picks of b that go to dest, with their rows, and to rows the number of each row
// in b. dst has room for them.
func cut(dst *moe.Batch, rows []int32, b *moe.Batch, to []int32, dest int) []int32 {
	var experts [moe.MaxTopK]uint16
	var weights [moe.MaxTopK]float32
	for r := range b.Rows {
		expert, weight := b.Picks(r)
		n := 0
		for i, d := range to[b.First[r]:b.First[r+1]] {
			if int(d) == dest {
				experts[n], weights[n] = expert[i], weight[i]
				n++
			}
		}
		if n == 0 {
			continue
		}
		at := dst.Grow(experts[:n], weights[:n])
		copyRow(dst.Row(at), b.Row(r))
		rows = append(rows, int32(r))
	}
	return rows
}
