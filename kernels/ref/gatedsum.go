package ref

import (
	"fmt"
	"math"

	"kvasir/internal/moe"
)

// Limits of the exponent E of a layer, and the exponent of a model without a profile.
const (
	MinExponent     = -8
	MaxExponent     = 40
	DefaultExponent = 20
)

// valueMax is the magnitude of 2^40: every v of a gated sum is below it.
var valueMax = magnitude(pow2(40))

// AddPick adds rne((w*y) * 2^exponent) to sum, value by value; a subnormal w counts as 0. It returns the
// pick's status; unless that is moe.OK, sum is untouched.
func AddPick(sum []int64, y []float32, w float32, exponent int) moe.Status {
	if len(sum) != len(y) || exponent < MinExponent || exponent > MaxExponent {
		panic(fmt.Sprintf("BUG: %d values added to %d sums at exponent %d", len(y), len(sum), exponent))
	}
	w = GateWeight(w)
	scale := pow2(exponent)
	status := moe.OK
	for _, v := range y {
		switch m := magnitude(scaled(v, w, scale)); {
		case m >= infinity:
			return moe.NonFinite
		case m >= valueMax:
			status = moe.Range
		}
	}
	if status != moe.OK {
		return status
	}
	for i, v := range y {
		sum[i] += int64(math.RoundToEven(float64(scaled(v, w, scale))))
	}
	return moe.OK
}

// GateWeight returns w as it is computed with: a subnormal weight is 0. Times a large y it could make an
// integer other than 0, on processors that have not flushed it to 0.
func GateWeight(w float32) float32 {
	if magnitude(w) < 1<<23 {
		return 0
	}
	return w
}

// scaled returns (w*y) * scale, each product rounded.
func scaled(y, w, scale float32) float32 {
	p := float32(w * y)
	return float32(p * scale)
}

// Float returns sum * 2^-exponent, for |sum| < 2^53.
func Float(sum int64, exponent int) float32 {
	return float32(float32(float64(sum)) * pow2(-exponent))
}
