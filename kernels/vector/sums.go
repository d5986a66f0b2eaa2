package vector

import (
	"fmt"

	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// valueLimit is the magnitude of 2^40: every v of a gated sum is below it.
const valueLimit = (127 + 40) << 23

// AddPick does what ref.AddPick does: all values are looked at before one is added.
func (o *Ops) AddPick(sum []int64, y []float32, w float32, exponent int) moe.Status {
	n := o.whole(len(y))
	if n == 0 || len(sum) != len(y) || exponent < ref.MinExponent || exponent > ref.MaxExponent {
		return ref.AddPick(sum, y, w, exponent) // which panics if something does not fit
	}
	w = ref.GateWeight(w)
	scale := pow2(exponent)
	if o.largest(y, w, scale) >= valueLimit {
		return ref.AddPick(sum, y, w, exponent) // which says what is wrong
	}
	vecAddPick(&sum[0], &y[0], n, w, scale)
	return ref.AddPick(sum[n:], y[n:], w, exponent)
}

// AddSums adds src to dst.
func (o *Ops) AddSums(dst, src []int64) {
	same("sums", len(dst), len(src))
	n := o.whole(len(dst))
	if n > 0 {
		vecAddSums(&dst[0], &src[0], n)
	}
	for i, v := range src[n:] {
		dst[n+i] += v
	}
}

// Floats sets dst to ref.Float of each sum.
func (o *Ops) Floats(dst []float32, sum []int64, exponent int) {
	same("sums", len(dst), len(sum))
	if exponent < ref.MinExponent || exponent > ref.MaxExponent {
		panic(fmt.Sprintf("BUG: sums at exponent %d", exponent))
	}
	n := o.whole(len(dst))
	if n > 0 {
		vecFloats(&dst[0], &sum[0], n, pow2(-exponent))
	}
	for i, v := range sum[n:] {
		dst[n+i] = ref.Float(v, exponent)
	}
}
