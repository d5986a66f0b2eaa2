package ref

import (
	"fmt"
	"math"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

// Limits of a row's values, as magnitudes.
var (
	amaxMin = magnitude(pow2(-40)) // below it a block is all zeros
	amaxMax = magnitude(pow2(40))  // above it the row is faulted

	scaleMin = magnitude(float32(pow2(-40) * inv127))
	scaleMax = magnitude(float32(pow2(40) * inv127))
)

const inv127 = float32(0x1.020408p-7) // 0x3C010204, the binary32 nearest to 1/127

// RowFormat returns the format of the rows that an expert with these weights takes.
func RowFormat(gate, up quant.Format) moe.RowFormat {
	switch {
	case gate.IsK() && up.IsK():
		return moe.RowQ8K
	case gate.IsBlock32() && up.IsBlock32():
		return moe.RowQ8
	}
	return moe.RowF32
}

// HiddenFormat returns the format in which the hidden values h are kept before down.
func HiddenFormat(down quant.Format) moe.RowFormat { return RowFormat(down, down) }

// QuantizeRow fills dst, whose arrays have the lengths that its format asks for, with the row x. It
// returns moe.OK and -1, or the status of the row and the index of the first value that has it; dst
// is all zeros then.
func QuantizeRow(dst moe.Row, x []float32) (moe.Status, int) {
	checkRowShape(dst, len(x))
	if st, i := checkValues(x); st != moe.OK {
		clear(dst.Q)
		clear(dst.Scales)
		clear(dst.F)
		return st, i
	}
	if dst.Format == moe.RowF32 {
		copy(dst.F, x)
		return moe.OK, -1
	}
	n := dst.Format.Block()
	for k := range dst.Scales {
		hi := min((k+1)*n, len(x))
		dst.Scales[k] = quantizeBlock(dst.Q[k*n:hi], x[k*n:hi])
	}
	return moe.OK, -1
}

// quantizeBlock fills q and returns the scale. No value of x is above the limit.
func quantizeBlock(q []int8, x []float32) float32 {
	amax := uint32(0)
	for _, v := range x {
		amax = max(amax, magnitude(v))
	}
	if amax < amaxMin {
		clear(q)
		return 0
	}
	a := math.Float32frombits(amax)
	inv := float32(127 * Recip(a))
	for i, v := range x {
		// Adding magic rounds to the nearest integer, ties to even, and leaves it in the low bits.
		z := float32(v*inv) + magic
		q[i] = int8(max(-127, min(127, int32(math.Float32bits(z)-magicB))))
	}
	return float32(a * inv127)
}

// checkValues returns the largest status among the values x, and the index of the first that has
// it.
func checkValues(x []float32) (moe.Status, int) {
	worst, at := moe.OK, -1
	for i, v := range x {
		m := magnitude(v)
		if m <= amaxMax {
			continue
		}
		if m >= infinity {
			return moe.NonFinite, i
		}
		if worst == moe.OK {
			worst, at = moe.Range, i
		}
	}
	return worst, at
}

// CheckRow returns the status of a row as it came from elsewhere: what QuantizeRow would not have
// made is a fault. The index is that of the first value, or of the first value of the first block,
// at fault; -1 when there is none.
func CheckRow(x moe.Row) (moe.Status, int) {
	if x.Format == moe.RowF32 {
		return checkValues(x.F)
	}
	worst, at := moe.OK, -1
	for k, s := range x.Scales {
		m := magnitude(s)
		switch {
		case m >= infinity:
			return moe.NonFinite, k * x.Format.Block()
		case worst == moe.OK && m != 0 && (s < 0 || m < scaleMin || m > scaleMax):
			worst, at = moe.Range, k*x.Format.Block()
		}
	}
	return worst, at
}

// checkRowShape panics unless the arrays of x are those of a row of n values.
func checkRowShape(x moe.Row, n int) {
	q, f := n, 0
	if x.Format == moe.RowF32 {
		q, f = 0, n
	}
	if len(x.Q) != q || len(x.Scales) != x.Format.Scales(n) || len(x.F) != f {
		panic(fmt.Sprintf("BUG: a %s row of %d int8, %d scales and %d floats for %d values",
			x.Format, len(x.Q), len(x.Scales), len(x.F), n))
	}
}
