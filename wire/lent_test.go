package wire

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"kvasir/internal/moe"
)

// lent returns a batch that borrows the rows of several, and how it would be if they were its own.
func lent(t *testing.T, rng *rand.Rand, s moe.Shape, lease *moe.Lease) (b, own *moe.Batch) {
	b = &moe.Batch{}
	b.Borrow(s)
	own, err := moe.NewBatch(s, 64, 64*moe.MaxTopK)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1 + rng.IntN(4) {
		from := randomBatch(t, rng, s, 1+rng.IntN(9))
		lo := rng.IntN(from.Rows)
		hi := lo + 1 + rng.IntN(from.Rows-lo)
		if i != 1 {
			b.BorrowRows(from, lo, hi, nil)
		} else {
			b.BorrowRows(from, lo, hi, lease)
		}
		for r := lo; r < hi; r++ {
			to, row := own.Row(own.Grow(from.Picks(r))), from.Row(r)
			if i == 1 && lease != nil {
				continue // its caller has left: zeros
			}
			copy(to.Q, row.Q)
			copy(to.Scales, row.Scales)
			copy(to.F, row.F)
		}
	}
	return b, own
}

// TestABatchOfLentRowsTravelsAsOneOfItsOwn has rows gathered as they are written, in pieces of any size. The
// rows of a caller who has left are zeros.
func TestABatchOfLentRowsTravelsAsOneOfItsOwn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		s := moe.Shape{
			Hidden: rapid.IntRange(1, 700).Draw(rt, "hidden"),
			Format: moe.RowFormat(rapid.IntRange(0, int(moe.RowQ8)).Draw(rt, "format")),
		}
		var lease *moe.Lease
		if rapid.Bool().Draw(rt, "left") {
			lease = &moe.Lease{}
			lease.End()
		}
		b, own := lent(t, rng, s, lease)
		if err := CheckBatch(b); err != nil {
			rt.Fatal(err)
		}
		want, got := AppendDispatch(nil, 3, own), []byte(nil)
		for len(got) < len(want) {
			n := min(4*rapid.IntRange(1, 900).Draw(rt, "piece"), len(want)-len(got))
			got = append(got, make([]byte, n)...)
			CopyDispatch(got[len(got)-n:], len(got)-n, 3, b)
		}
		if !bytes.Equal(got, want) {
			rt.Fatal("the bytes differ")
		}
	})
}

// TestPartialsGoWhereTheRowsBelong has an answer parsed into the memory of two callers, of whom one may leave.
func TestPartialsGoWhereTheRowsBelong(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		rng := rand.New(rand.NewPCG(4, 4))
		want := randomPartials(rng, 9, 300)
		var a, b, out moe.Partials
		var lease moe.Lease
		a.Reset(4, 300)
		b.Reset(6, 300)
		out.Borrow(300)
		out.BorrowRows(&a, 0, 4, nil)
		out.BorrowRows(&b, 1, 6, &lease)
		if leaves {
			lease.End()
		}
		payload := AppendPartials(nil, want)
		if err := ParsePartials(&out, payload, 9, 300); err != nil {
			t.Fatal(err)
		}
		if !out.Fit(9, 300) || !reflect.DeepEqual(out.Status, want.Status) {
			t.Error("the answer does not fit")
		}
		second := want.Sum[4*300:]
		if leaves {
			second = make([]int64, 5*300)
		}
		if !slices.Equal(a.Sum, want.Sum[:4*300]) || !slices.Equal(b.Sum, append(make([]int64, 300), second...)) {
			t.Errorf("leaves %v: the sums are not where they belong", leaves)
		}
		allocates(t, "ParsePartials of lent rows", func() {
			if err := ParsePartials(&out, payload, 9, 300); err != nil {
				t.Fatal(err)
			}
		})
	}
}
