package vector

import (
	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// rowMax is the magnitude of 2^40: a row with a value above it is a fault.
const rowMax = (127 + 40) << 23

// infinity is the magnitude of infinity; what is below it is a number.
const infinity = 0xff << 23

// QuantizeRow does what ref.QuantizeRow does.
func (o *Ops) QuantizeRow(dst moe.Row, x []float32) (moe.Status, int) {
	if !o.simd() || !fits(dst, len(x)) {
		return ref.QuantizeRow(dst, x) // which panics if the shape is wrong
	}
	var largest uint32
	if dst.Format == moe.RowF32 {
		if largest = o.largest(x, 1, 1); largest <= rowMax {
			copy(dst.F, x)
		}
	} else {
		largest = quantize(dst, x)
	}
	if largest > rowMax {
		return ref.QuantizeRow(dst, x) // which says what is wrong and where
	}
	return moe.OK, -1
}

// fits reports whether the arrays of dst are those of a row of n values.
func fits(dst moe.Row, n int) bool {
	if dst.Format == moe.RowF32 {
		return len(dst.F) == n && len(dst.Q) == 0 && len(dst.Scales) == 0
	}
	return len(dst.Q) == n && len(dst.Scales) == dst.Format.Scales(n) && len(dst.F) == 0
}

// quantize fills a row of blocks and returns the largest magnitude in x.
func quantize(dst moe.Row, x []float32) (largest uint32) {
	n := dst.Format.Block()
	blocks := len(x) / n
	if blocks > 0 {
		largest = vecQuantize(&dst.Q[0], &dst.Scales[0], &x[0], blocks, n)
	}
	if at := blocks * n; at < len(x) {
		largest = max(largest, quantizeShort(dst.Q[at:], &dst.Scales[blocks], x[at:]))
	}
	return largest
}

// quantizeShort quantises a block of fewer values than its format's, padded with zeros to whole
// vectors: they change no maximum.
func quantizeShort(q []int8, scale *float32, x []float32) uint32 {
	if len(x)%32 == 0 {
		return vecQuantize(&q[0], scale, &x[0], 1, len(x))
	}
	var padded [256]float32
	var out [256]int8
	copy(padded[:], x)
	largest := vecQuantize(&out[0], scale, &padded[0], 1, (len(x)+31)&^31)
	copy(q, out[:])
	return largest
}

// Finite reports whether no x is NaN or infinite.
func (o *Ops) Finite(x []float32) bool { return o.largest(x, 1, 1) < infinity }

// largest returns the largest magnitude of (w*y)*scale.
func (o *Ops) largest(y []float32, w, scale float32) uint32 {
	n := o.whole(len(y))
	var m uint32
	if n > 0 {
		m = vecScaledMax(&y[0], n, w, scale)
	}
	for _, v := range y[n:] {
		p := float32(w * v)
		m = max(m, magnitude(float32(p*scale)))
	}
	return m
}
