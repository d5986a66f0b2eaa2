package batcher

import (
	"fmt"
	"math/bits"

	"kvasir/internal/moe"
)

// slab is the memory of one batch under way and of its answer, kept from one use to the next. It has one
// owner at a time.
type slab struct {
	batches [moe.RowQ8 + 1]struct { // one a row format: the layers of a model may differ in it
		batch       *moe.Batch
		rows, picks int // room
	}
	answer moe.Partials
	rows   []int32 // of a part: see Part.Rows
}

// batch returns an empty batch of the given shape with room for rows rows and picks picks. The shape has
// been checked.
func (s *slab) batch(shape moe.Shape, rows, picks int) *moe.Batch {
	k := &s.batches[shape.Format]
	if k.batch != nil && k.batch.Hidden == shape.Hidden && k.rows >= rows && k.picks >= picks {
		k.batch.Reset(shape.Layer)
		return k.batch
	}
	k.rows = min(ceilPow2(rows), moe.MaxRows)
	k.picks = min(max(ceilPow2(picks), k.rows), k.rows*moe.MaxTopK)
	b, err := moe.NewBatch(shape, k.rows, k.picks)
	if err != nil {
		panic(fmt.Sprintf("BUG: %d rows with %d picks of a checked batch have no room: %v", rows, picks, err))
	}
	k.batch = b
	return b
}

func ceilPow2(n int) int { return 1 << bits.Len(uint(n-1)) }

// size gives out its rows with whatever values they have: they will all be overwritten, and to clear them
// first would cost as much as to copy them.
func size(out *moe.Partials, rows, hidden int) {
	if cap(out.Sum) < rows*hidden || cap(out.Status) < rows {
		out.Reset(rows, hidden)
		return
	}
	out.Rows, out.Hidden, out.Sum, out.Status = rows, hidden, out.Sum[:rows*hidden], out.Status[:rows]
}

// copyRow copies the values of a row; both have the same shape.
func copyRow(dst, src moe.Row) {
	copy(dst.Q, src.Q)
	copy(dst.Scales, src.Scales)
	copy(dst.F, src.F)
}
