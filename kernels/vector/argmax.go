package vector

import "math"

// argmaxRun is how many values are looked at before it is noted whether the largest was among them, so
// that memory is read once and only one run is searched.
const argmaxRun = 4096

// Argmax returns the index of the largest x, the lower one of equals, as +0 and -0 are. It is -1 if
// there is a NaN, and of none.
func (o *Ops) Argmax(x []float32) int {
	best, at := int32(math.MinInt32), -1
	for lo := 0; lo < len(x); lo += argmaxRun {
		top, largest := o.top(x[lo:min(lo+argmaxRun, len(x))])
		if largest > infinity {
			return -1
		}
		if top > best {
			best, at = top, lo
		}
	}
	for at >= 0 && order(x[at]) != best {
		at++
	}
	return at
}

// top returns the largest order and the largest magnitude of x.
func (o *Ops) top(x []float32) (top int32, largest uint32) {
	top = math.MinInt32
	n := o.whole(len(x))
	if n > 0 {
		top, largest = vecTop(&x[0], n)
	}
	for _, v := range x[n:] {
		top, largest = max(top, order(v)), max(largest, magnitude(v))
	}
	return top, largest
}

// order returns an integer that is larger for a larger number, also a subnormal one in a mode that takes
// it for zero, and 0 for both zeros.
func order(x float32) int32 {
	bits := int32(math.Float32bits(x))
	if bits < 0 {
		return math.MinInt32 - bits
	}
	return bits
}
