package vector

import (
	"fmt"

	"kvasir/kernels/ref"
)

// What is left over after whole rounds of 32 lanes is padded with zeros. That changes nothing: a lane
// starts from +0 and so is never -0, and +0 added to anything else leaves it.

// SumF32 does what ref.SumF32 does.
func (o *Ops) SumF32(x []float32) float32 {
	n := o.tiles(len(x))
	switch {
	case !o.simd() || len(x) == 0:
		return ref.SumF32(x)
	case n == len(x):
		return vecSum(&x[0], n, nil)
	}
	var tail [32]float32
	copy(tail[:], x[n:])
	return vecSum(&x[0], n, &tail[0])
}

// SumSquares does what ref.SumSquares does.
func (o *Ops) SumSquares(x []float32) float64 {
	n := o.tiles(len(x))
	switch {
	case !o.simd() || len(x) == 0:
		return ref.SumSquares(x)
	case n == len(x):
		return vecSumSquares(&x[0], n, nil)
	}
	var tail [32]float32
	copy(tail[:], x[n:])
	return vecSumSquares(&x[0], n, &tail[0])
}

// DotF32 does what ref.DotF32 does.
func (o *Ops) DotF32(x, w []float32) float32 {
	same("dot product", len(x), len(w))
	n := o.tiles(len(x))
	switch {
	case !o.simd() || len(x) == 0:
		return ref.DotF32(x, w)
	case n == len(x):
		return vecDot(&x[0], &w[0], n, nil, nil)
	}
	var tail [2][32]float32
	copy(tail[0][:], x[n:])
	copy(tail[1][:], w[n:])
	return vecDot(&x[0], &w[0], n, &tail[0][0], &tail[1][0])
}

// Dots sets dst[r] to the dot product of w and the len(w) values at x[r*stride], for each r: weights
// with the rows of a batch, or a query with the keys of a cache. Three rows at a time share what is
// loaded of w, if len(w) is a multiple of 32.
func (o *Ops) Dots(dst, w, x []float32, stride int) {
	rows(len(dst), len(w), len(x), stride)
	n := len(w)
	if n == 0 || len(dst) == 0 || o.tiles(n) != n {
		for r := range dst {
			dst[r] = o.DotF32(x[r*stride:][:n], w)
		}
		return
	}
	vecDots(&dst[0], &w[0], &x[0], n, stride, len(dst))
}

// rows panics unless have values hold the given number of rows of n, stride apart.
func rows(number, n, have, stride int) {
	if number > 0 && (stride < 0 || (number-1)*stride+n > have) {
		panic(fmt.Sprintf("BUG: %d rows of %d values, %d apart, in %d", number, n, stride, have))
	}
}
