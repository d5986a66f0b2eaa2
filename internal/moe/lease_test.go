package moe

import (
	"errors"
	"slices"
	"testing"
)

// numbered returns a batch of rows whose values are their numbers, with one pick each.
func numbered(t *testing.T, format RowFormat, rows int) *Batch {
	t.Helper()
	b, err := NewBatch(Shape{Layer: 1, Hidden: 40, Format: format}, rows, rows)
	if err != nil {
		t.Fatal(err)
	}
	for r := range rows {
		row := b.Row(b.Grow([]uint16{uint16(r)}, []float32{float32(r)}))
		for i := range row.Q {
			row.Q[i] = int8(r)
		}
		for i := range row.F {
			row.F[i] = float32(r)
		}
	}
	return b
}

func TestBorrowedRowsLieWhereTheyWere(t *testing.T) {
	b := numbered(t, RowQ8, 6)
	var half, part Batch
	half.Borrow(b.Shape)
	half.BorrowRows(b, 2, 5, nil) // 2, 3, 4
	part.Borrow(b.Shape)
	part.Expert, part.Weight = []uint16{7, 9, 7, 9}, []float32{0.5, 0.25, 0.5, 0.25}
	part.First = []int32{0, 2, 4}
	part.BorrowSome(&half, []int32{2, 0}) // 4, 2
	for _, v := range []*Batch{&half, &part} {
		if err := v.Validate(MaxExperts); err != nil || !v.Borrowed() || len(v.Q) > 0 {
			t.Errorf("%d rows: %v", v.Rows, err)
		}
	}
	if expert, weight := half.Picks(1); !slices.Equal(expert, []uint16{3}) || weight[0] != 3 {
		t.Errorf("picks %v %v", expert, weight)
	}
	if expert, _ := part.Picks(1); !slices.Equal(expert, []uint16{7, 9}) {
		t.Errorf("picks %v", expert)
	}
	for i, r := range []int{4, 2} {
		if &part.Row(i).Q[0] != &b.Row(r).Q[0] {
			t.Errorf("row %d of the part is not row %d", i, r)
		}
	}
	var again Batch
	again.Borrow(b.Shape)
	again.BorrowRows(&part, 0, 1, nil)
	if &again.Row(0).Q[0] != &b.Row(4).Q[0] {
		t.Error("a row that was borrowed twice is another")
	}
	b.Row(4).Q[3] = -128
	if err := part.Validate(MaxExperts); !errors.Is(err, ErrInvalid) {
		t.Errorf("-128 passes: %v", err)
	}
	part.Reset(3)
	if part.Rows != 0 || part.Layer != 3 || !part.Borrowed() || part.Validate(MaxExperts) == nil {
		t.Error("Reset leaves rows")
	}
}

func TestAnEndedLeaseHidesARow(t *testing.T) {
	b, rows := numbered(t, RowF32, 4), Batch{}
	var out, sums Partials
	out.Reset(4, 40)
	var first, second Lease
	rows.Borrow(b.Shape)
	rows.BorrowRows(b, 0, 2, &first)
	rows.BorrowRows(b, 2, 4, &second)
	sums.Borrow(40)
	sums.BorrowRows(&out, 0, 2, &first)
	sums.BorrowRows(&out, 2, 4, &second)
	first.End()
	sums.Reset(4, 40)
	for r := range 4 {
		row, ok := rows.Hold(r)
		if ok != (r >= 2) || ok && row.F[0] != float32(r) {
			t.Errorf("row %d: %v, %v", r, row.F, ok)
		}
		if ok {
			rows.Let(r)
		}
		sum := sums.Hold(r)
		for i := range sum {
			sum[i] = 5
		}
		sums.Let(r)
	}
	if !sums.Fit(4, 40) || sums.Fit(3, 40) {
		t.Error("Fit")
	}
	if want := slices.Concat(make([]int64, 80), slices.Repeat([]int64{5}, 80)); !slices.Equal(out.Sum, want) {
		t.Errorf("got %v", out.Sum)
	}
}

// An answer of another shape than was borrowed goes nowhere, and does not fit; the next may.
func TestAStrayAnswerHasMemoryOfItsOwn(t *testing.T) {
	var out, sums Partials
	out.Reset(3, 8)
	sums.Borrow(8)
	sums.BorrowRows(&out, 0, 3, nil)
	for _, shape := range [][2]int{{4, 8}, {3, 9}, {2, 8}} {
		sums.Reset(shape[0], shape[1])
		for r := range shape[0] {
			if len(sums.Row(r)) != shape[1] {
				t.Errorf("%v: a row of %d", shape, len(sums.Row(r)))
			}
		}
		if sums.Fit(3, 8) {
			t.Errorf("an answer of %v fits", shape)
		}
	}
	sums.Reset(0, 0)
	sums.Reset(3, 8)
	if !sums.Fit(3, 8) || &sums.Row(2)[0] != &out.Row(2)[0] {
		t.Error("the rows are lost")
	}
	sums.Row(1)[0] = 3
	sums.Fault(1, Range)
	if out.Row(1)[0] != 0 {
		t.Error("a fault leaves values")
	}
}

func TestBorrowedSumsLieInTwoPlaces(t *testing.T) {
	var to, own, sums Partials
	to.Reset(5, 8)
	own.Reset(2, 8)
	sums.Borrow(8)
	sums.BorrowSome(&to, &own, []int32{4, ^0, 2, ^1})
	sums.Size(4, 8)
	for r := range 4 {
		sums.Row(r)[0] = int64(r + 1)
		sums.Hold(r)[1] = 7
		sums.Let(r)
	}
	if to.Row(4)[0] != 1 || to.Row(2)[0] != 3 || own.Row(0)[0] != 2 || own.Row(1)[0] != 4 || own.Row(1)[1] != 7 {
		t.Errorf("got %v and %v", to.Sum, own.Sum)
	}
	sums.Reset(4, 8)
	for i, v := range append(to.Sum, own.Sum...) {
		if v != 0 {
			t.Errorf("value %d is %d after Reset", i, v)
		}
	}
	if sums.Reset(5, 8); sums.Fit(4, 8) {
		t.Error("five rows fit four")
	}
}

// TestADivertedLeaseKeepsTheWorkAndLeavesTheRows has a caller leave whose answer is wanted all the same.
func TestADivertedLeaseKeepsTheWorkAndLeavesTheRows(t *testing.T) {
	b, copied := numbered(t, RowQ8, 5), numbered(t, RowQ8, 5)
	out, other := &Partials{}, &Partials{}
	out.Reset(5, 40)
	var part, view Batch
	var lease Lease
	part.Borrow(b.Shape)
	part.BorrowRows(b, 0, 5, nil) // so that rows lie one further
	view.Borrow(b.Shape)
	view.BorrowRows(&part, 1, 5, &lease)
	var sums Partials
	sums.Borrow(40)
	sums.BorrowRows(out, 1, 5, &lease)
	sums.Size(4, 40)
	write := func(r int, v int64) {
		row := sums.Hold(r)
		for i := range row {
			row[i] = v
		}
		sums.Let(r)
	}
	write(0, 7) // before
	lease.Divert(&part, out, copied, other)
	for i := range b.Q {
		b.Q[i] = -1
	}
	clear(out.Sum)
	for r := range 4 {
		row, ok := view.Hold(r)
		if !ok || row.Q[0] != int8(r+1) {
			t.Errorf("row %d is %v, %v", r, row.Q, ok)
		}
		view.Let(r)
		if r > 0 {
			write(r, int64(r))
		}
	}
	for r, want := range []int64{0, 7, 1, 2, 3} {
		if got := other.Row(r); got[0] != want || got[39] != want {
			t.Errorf("row %d has %d, want %d", r, got[0], want)
		}
	}
	for _, v := range out.Sum {
		if v != 0 {
			t.Fatal("the caller's partials were touched")
		}
	}
}
