package bench

import (
	"fmt"
	"math/rand/v2"

	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// picker returns the experts of a row, distinct ones, as many for every row.
type picker func(rng *rand.Rand, row int) []int

// uniform picks experts that are all equally likely.
func uniform(experts, topK int) picker {
	return func(rng *rand.Rand, _ int) []int { return rng.Perm(experts)[:topK] }
}

// oneHot lets the first rows pick expert 0, and everything else is uniform among the other experts.
func oneHot(experts, topK, rows int) picker {
	return func(rng *rand.Rand, row int) []int {
		list := rng.Perm(experts - 1)[:topK]
		for i := range list {
			list[i]++
		}
		if row < rows {
			list[0] = 0
		}
		return list
	}
}

// makeRows returns n rows of normally distributed values, quantised. The seed decides on all of it.
func makeRows(shape moe.Shape, n int, seed uint64, pick picker) (*moe.Batch, error) {
	rng := rand.New(rand.NewPCG(seed, 0))
	x := make([]float32, shape.Hidden)
	var b *moe.Batch
	for r := range n {
		list := pick(rng, r)
		topK := len(list)
		if b == nil {
			var err error
			if b, err = moe.NewBatch(shape, n, n*topK); err != nil {
				return nil, err
			}
		}
		expert, weight := make([]uint16, topK), make([]float32, topK)
		for i, e := range list {
			expert[i] = uint16(e)
			// Gate weights of a row add up to 1, the first being the largest.
			weight[i] = 2 * float32(topK-i) / float32(topK*(topK+1))
		}
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		row := b.Row(b.Grow(expert, weight))
		if status, at := ref.QuantizeRow(row, x); status != moe.OK {
			return nil, fmt.Errorf("value %d of a row is %v: %s", at, x[at], status)
		}
	}
	return b, nil
}

// copyRows makes dst rows lo to hi-1 of all.
func copyRows(dst, all *moe.Batch, lo, hi int) {
	dst.Reset(all.Layer)
	for i := lo; i < hi; i++ {
		row := dst.Row(dst.Grow(all.Picks(i)))
		copy(row.Q, all.Row(i).Q)
		copy(row.Scales, all.Row(i).Scales)
		copy(row.F, all.Row(i).F)
	}
}
