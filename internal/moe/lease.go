package moe

import (
	"fmt"
	"sync"
)

// Lease is for how long an executor may touch rows that lie in their caller's memory. A caller who leaves
// while his rows are under way beside those of others ends it, and has his memory back at once; the others
// go on. The zero value is a lease that runs.
type Lease struct {
	mu    sync.Mutex // held while a row is read or written; a leaf
	ended bool
	to    *diversion // once it has ended; nil: what is read and written is of no matter
}

// End ends the lease. When it returns nobody touches the rows, and nobody will.
func (l *Lease) End() {
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
}

// diversion is where rows lie that an executor still uses when the lease of the caller's own has ended.
type diversion struct {
	b    *Batch
	rows map[borrowed]int   // of b, by where they lay
	sums map[*int64][]int64 // by the first value of where they lay
}

// Divert ends the lease, by which b and out were lent, for a caller whose work is to be done all the same: who
// uses the rows reads them in a copy of b from then on, and writes the sums into other partials, in which are
// those that have come already. When it returns nobody touches the caller's rows, and nobody will.
func (l *Lease) Divert(b *Batch, out *Partials, copied *Batch, other *Partials) {
	d := &diversion{b: copied, rows: make(map[borrowed]int, b.Rows), sums: make(map[*int64][]int64, b.Rows)}
	other.Reset(b.Rows, b.Hidden)
	l.mu.Lock()
	defer l.mu.Unlock()
	for r := range b.Rows {
		at := b.origin(r)
		at.lease = l
		d.rows[at] = r
		sum := out.Row(r)
		copy(other.Row(r), sum)
		d.sums[&sum[0]] = other.Row(r)
	}
	l.ended, l.to = true, d
}

// Borrower is an executor that touches rows of a batch and of partials only between Hold and Let, however
// it was given them. So it can be lent the rows of many callers, each of whom may leave at any moment.
type Borrower interface {
	Experts
	// Borrows does nothing; to have it is the promise.
	Borrows()
}

// borrowed is a row of a batch that lies in another.
type borrowed struct {
	from  *Batch
	row   int32
	lease *Lease // nil: it is as long as the batch's own
}

// Borrow makes b, which has no memory of its own, an empty batch of rows that lie in other batches of the
// same shape. Their picks are b's own.
func (b *Batch) Borrow(s Shape) {
	if b.maxRows > 0 {
		panic("BUG: a batch with rows of its own borrows others")
	}
	if b.rows == nil {
		b.rows = make([]borrowed, 0, 16)
	}
	b.Shape = s
	b.Reset(s.Layer)
}

// Borrowed reports whether the rows lie in other batches: Q, Scales and F are empty, and Row, or Hold, finds
// them.
func (b *Batch) Borrowed() bool { return b.rows != nil }

// borrows returns how many rows lie in other batches.
func (b *Batch) borrows() int {
	if b.from != nil {
		return len(b.index)
	}
	return len(b.rows)
}

// BorrowSome makes b, to which Borrow and the user have given picks, the rows of from that index names. They stay
// where they are, and both are used as long as b is.
func (b *Batch) BorrowSome(from *Batch, index []int32) {
	if from.Format != b.Format || from.Hidden != b.Hidden || len(b.First) != len(index)+1 {
		panic(fmt.Sprintf("BUG: %d %s rows of %d borrowed for the picks of %d %s rows of %d",
			len(index), from.Format, from.Hidden, len(b.First)-1, b.Format, b.Hidden))
	}
	b.Rows, b.from, b.index = len(index), from, index
}

// BorrowRows appends rows lo up to hi of from with all their picks, which are copied. The rows stay where
// they are, and are used as long as b is; or until lease ends, if it is not nil.
func (b *Batch) BorrowRows(from *Batch, lo, hi int, lease *Lease) {
	for r := lo; r < hi; r++ {
		b.refer(from, r, lease)
	}
	first, last := from.First[lo], from.First[hi]
	at := int32(len(b.Expert)) - first
	b.Rows += hi - lo
	b.Expert = append(b.Expert, from.Expert[first:last]...)
	b.Weight = append(b.Weight, from.Weight[first:last]...)
	for _, f := range from.First[lo+1 : hi+1] {
		b.First = append(b.First, at+f)
	}
}

// origin returns where a row lies: never in a batch that has only borrowed it.
func (b *Batch) origin(r int) borrowed {
	for b.from != nil {
		b, r = b.from, int(b.index[r])
	}
	if b.rows != nil {
		return b.rows[r]
	}
	return borrowed{b, int32(r), nil}
}

// refer appends where a row lies.
func (b *Batch) refer(from *Batch, r int, lease *Lease) {
	at := from.origin(r)
	if lease != nil {
		if at.lease != nil {
			panic("BUG: a row is lent twice")
		}
		at.lease = lease
	}
	if at.from.Format != b.Format || at.from.Hidden != b.Hidden {
		panic(fmt.Sprintf("BUG: %s rows of %d borrowed for a batch of %s rows of %d",
			at.from.Format, at.from.Hidden, b.Format, b.Hidden))
	}
	b.rows = append(b.rows, at)
}

// Hold returns row r for reading until Let, which is to come soon; or false, and then no Let, when its
// caller has left. What stands for it in a dispatch is then of no matter, for the answer is dropped.
func (b *Batch) Hold(r int) (Row, bool) {
	if b.from != nil {
		return b.from.Hold(int(b.index[r]))
	}
	if b.rows == nil {
		return b.Row(r), true
	}
	at := &b.rows[r]
	if l := at.lease; l != nil {
		l.mu.Lock()
		if l.ended {
			if l.to != nil {
				return l.to.b.Row(l.to.rows[*at]), true
			}
			l.mu.Unlock()
			return Row{}, false
		}
	}
	return at.from.Row(int(at.row)), true
}

// Let ends what Hold began.
func (b *Batch) Let(r int) {
	if b.from != nil {
		b.from.Let(int(b.index[r]))
	} else if b.rows != nil && b.rows[r].lease != nil {
		b.rows[r].lease.mu.Unlock()
	}
}

// place is where the sums of a row of partials lie.
type place struct {
	sum   []int64
	lease *Lease // nil: it is as long as the partials' own
}

// Borrow makes p, which has no memory of its own for sums, partials of no rows that lie elsewhere.
func (p *Partials) Borrow(hidden int) {
	if p.stray {
		p.Sum, p.stray = nil, false
	}
	if cap(p.Sum) > 0 {
		panic("BUG: partials with sums of their own borrow others")
	}
	if p.places == nil {
		p.places = make([]place, 0, 16)
	}
	p.Rows, p.Hidden, p.places, p.Status = 0, hidden, p.places[:0], p.Status[:0]
	p.to, p.index = [2]*Partials{}, nil
}

// BorrowSome makes p rows that lie in to, and in own: place i is row i of to, and place ^i row i of own. All are
// used as long as p is.
func (p *Partials) BorrowSome(to, own *Partials, places []int32) {
	p.to, p.index = [2]*Partials{to, own}, places
}

// at returns whose row r is that lies elsewhere.
func (p *Partials) at(r int) (of *Partials, row int) {
	i := p.index[r]
	return p.to[uint32(i)>>31], int(i ^ i>>31)
}

// borrowed returns how many rows lie elsewhere.
func (p *Partials) borrowed() int {
	if p.index != nil {
		return len(p.index)
	}
	return len(p.places)
}

// BorrowRows appends places for rows: rows lo up to hi of to, which has that many. Who computes writes there
// as long as p is used; or until lease ends, if it is not nil.
func (p *Partials) BorrowRows(to *Partials, lo, hi int, lease *Lease) {
	for r := lo; r < hi; r++ {
		at := place{to.Row(r), lease}
		if to.leased(r) {
			panic("BUG: a row is lent twice")
		}
		if len(at.sum) != p.Hidden {
			panic(fmt.Sprintf("BUG: a row of %d borrowed for partials of %d", len(at.sum), p.Hidden))
		}
		p.places = append(p.places, at)
	}
}

// leased reports whether row r is another's, who may leave.
func (p *Partials) leased(r int) bool {
	if !p.lent() {
		return false
	}
	if p.index != nil {
		of, row := p.at(r)
		return of.leased(row)
	}
	return p.places[r].lease != nil
}

// Hold returns the sums of row r for writing until Let, which is to come soon. When the row's caller has left
// it returns room that nobody looks at.
func (p *Partials) Hold(r int) []int64 {
	if !p.lent() {
		return p.Row(r)
	}
	if p.index != nil {
		of, row := p.at(r)
		return of.Hold(row)
	}
	at := &p.places[r]
	if l := at.lease; l != nil {
		l.mu.Lock()
		if l.ended {
			if l.to != nil {
				return l.to.sums[&at.sum[0]]
			}
			if cap(p.spare) < p.Hidden {
				p.spare = make([]int64, p.Hidden)
			}
			return p.spare[:p.Hidden]
		}
	}
	return at.sum
}

// Let ends what Hold began.
func (p *Partials) Let(r int) {
	if !p.lent() {
		return
	}
	if p.index != nil {
		of, row := p.at(r)
		of.Let(row)
		return
	}
	if p.places[r].lease != nil {
		p.places[r].lease.mu.Unlock()
	}
}
