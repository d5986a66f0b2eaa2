package moe

import (
	"fmt"

	"kvasir/internal/slab"
)

// Partials is the answer to a batch: for each row a status and the gated sum over the picks that the
// executor holds, as integers in units of 2^-E, where E is the exponent of the layer in the model's
// arithmetic profile. Sums of several executors are added as integers, in any order.
//
// Invariants:
//
//  1. Sum holds Rows x Hidden values, Status one a row (Reset, Fit).
//  2. The values of a row whose status is not OK are zero (Fault).
//
// Of partials that borrow their rows (Borrow) Sum is empty. So who fills partials asks Row for a row, or Hold.
type Partials struct {
	Rows, Hidden int
	Sum          []int64  // Rows x Hidden
	Status       []Status // one a row

	pinned bool // memory is to be page-locked
	slab   *slab.Slab
	stray  bool    // the sums are the partials' own, for they are no answer to what was borrowed
	spare  []int64 // see Hold

	// Where rows lie that the partials have borrowed: some of to by index (BorrowSome), or one by one. nil
	// places: the sums are their own.
	to     [2]*Partials
	index  []int32
	places []place
}

// NewPartials returns partials with room for rows rows of hidden values.
func NewPartials(rows, hidden int) (*Partials, error) {
	if rows < 1 || rows > MaxRows || hidden < 1 || hidden > MaxHidden {
		return nil, fmt.Errorf("%w: partials of %d rows of %d, want up to %d of %d", ErrInvalid, rows, hidden, MaxRows, MaxHidden)
	}
	p := &Partials{}
	p.room(rows, hidden)
	p.Reset(0, hidden)
	return p, nil
}

// Pin makes p, which is empty, take its memory from the page-locked slabs, as far as there are some left.
// Its owner calls Release when nothing uses p, or a view of it, any more.
func (p *Partials) Pin() { p.pinned = true }

// Release gives the memory of pinned partials back, and empties them.
func (p *Partials) Release() {
	s := p.slab
	*p = Partials{pinned: p.pinned}
	s.Release()
}

// room makes p's arrays new ones, of zeros.
func (p *Partials) room(rows, hidden int) {
	p.slab.Release()
	c := carver{pinned: p.pinned}
	for range 2 {
		p.Sum = carve[int64](&c, rows*hidden)
		p.Status = carve[Status](&c, rows)
		c.allocate()
	}
	p.slab = c.slab
}

// Reset makes p the sum of nothing: rows rows of zeros with status OK. It allocates only when p has
// less room than asked for.
func (p *Partials) Reset(rows, hidden int) {
	if !p.Size(rows, hidden) {
		clear(p.Sum)
		clear(p.Status)
		for r := range min(rows, p.borrowed()) { // lent, or it would be zero
			clear(p.Hold(r))
			p.Let(r)
		}
	}
}

// Size is Reset for who writes every status, and every value of every row, himself: what they hold is left
// as it is, for to clear them costs as much as to write them. It reports whether they are zero all the
// same, because the memory is new.
func (p *Partials) Size(rows, hidden int) (zero bool) {
	if p.places != nil {
		return p.sizeBorrowed(rows, hidden)
	}
	p.Rows, p.Hidden = rows, hidden
	if cap(p.Sum) < rows*hidden || cap(p.Status) < rows {
		p.room(rows, hidden)
		return true
	}
	p.Sum, p.Status = p.Sum[:rows*hidden], p.Status[:rows]
	return false
}

// sizeBorrowed is Size where rows lie elsewhere: as many as were borrowed, or fewer. An answer of another shape,
// which is wrong, has memory of its own: Fit tells.
func (p *Partials) sizeBorrowed(rows, hidden int) (zero bool) {
	p.stray = false
	p.stray = rows > p.borrowed() || rows > 0 && hidden != len(p.Row(0))
	p.Rows, p.Hidden, p.Sum = rows, hidden, nil
	p.Status = append(p.Status[:0], make([]Status, rows)...)
	if p.stray {
		p.Sum = make([]int64, rows*hidden)
	}
	return p.stray
}

// lent reports whether rows lie elsewhere.
func (p *Partials) lent() bool { return p.places != nil && !p.stray }

// Fit reports whether p has the shape of an answer: so many rows of so many values.
func (p *Partials) Fit(rows, hidden int) bool {
	sums := rows * hidden
	if p.places != nil {
		sums = 0
	}
	return !p.stray && p.Rows == rows && p.Hidden == hidden && len(p.Sum) == sums && len(p.Status) == rows
}

// Row returns a view of the values of row r.
func (p *Partials) Row(r int) []int64 {
	if p.lent() {
		if p.index != nil {
			of, row := p.at(r)
			return of.Row(row)
		}
		return p.places[r].sum
	}
	return p.Sum[r*p.Hidden : (r+1)*p.Hidden : (r+1)*p.Hidden]
}

// Fault gives row r status s if that is worse than what it has, and zeroes its values.
func (p *Partials) Fault(r int, s Status) {
	if s == OK {
		return
	}
	p.Status[r] = max(p.Status[r], s)
	clear(p.Row(r))
}

// AddRow adds row i of o to row r: integers, so the order in which parts arrive does not matter. A fault
// on either side faults the row.
func (p *Partials) AddRow(r int, o *Partials, i int) { p.AddSums(r, o.Status[i], o.Row(i)) }

// AddSums is AddRow for a row of status s with the given values.
func (p *Partials) AddSums(r int, s Status, sums []int64) {
	if s = max(p.Status[r], s); s != OK {
		p.Fault(r, s)
		return
	}
	dst := p.Sum
	if p.places != nil {
		dst = p.Row(r)
	} else {
		dst = dst[r*p.Hidden : (r+1)*p.Hidden] // as Row, which is a call
	}
	sums = sums[:len(dst)]
	for k, v := range sums {
		dst[k] += v
	}
}
