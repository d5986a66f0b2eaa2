package model

import (
	"math"

	"kvasir/kernels/ref"
)

// The backbone's scalar functions. Every multiplication stands inside a conversion, so that no compiler
// fuses it with an addition: the bits are the same on every machine. Package math is not used for
// logarithms and angles, since its results may differ between processors.

// rmsNorm writes x / sqrt(mean(x^2) + eps) * weight.
func (w *work) rmsNorm(dst, x, weight []float32) {
	mean := float32(float64(w.ops.SumSquares(x) / float64(len(x))))
	w.ops.ScaleMul(dst, x, weight, 1/sqrt32(mean+w.m.Eps))
}

// l2Norm scales x to length 1 in place: x / max(|x|, eps).
func (w *work) l2Norm(x []float32) {
	w.ops.Scale(x, 1/max(sqrt32(w.ops.DotF32(x, x)), w.m.Eps))
}

// sqrt32 is the correctly rounded binary32 square root: a binary64 root has more than twice the digits,
// so rounding twice does no harm.
func sqrt32(x float32) float32 { return float32(math.Sqrt(float64(x))) }

// sigmoid is 1 / (1 + exp(-x)); 0 below -88, where exp(-x) leaves its range.
func sigmoid(x float32) float32 {
	if x < -88 {
		return 0
	}
	return 1 / (1 + ref.Exp(-x))
}

// softplus is log(1 + exp(x)), and x itself above 20.
func softplus(x float32) float32 {
	if x > 20 {
		return x
	}
	y := float64(ref.Exp(min(x, -x)))
	// log(1+y) = 2 artanh(y/(2+y)); the argument is at most 1/3, so 16 terms reach binary64.
	return float32(float64(max(x, 0)) + artanh2(float64(y/(2+y))))
}

// artanh2 is 2 artanh(s) for |s| <= 1/3, by its series.
func artanh2(s float64) float64 {
	s2 := float64(s * s)
	sum := 0.0
	for n := 31; n >= 1; n -= 2 {
		sum = float64(sum*s2) + 1/float64(n)
	}
	return float64(float64(2*s) * sum)
}

// ln is the natural logarithm of a positive normal number.
func ln(x float64) float64 {
	bits := math.Float64bits(x)
	exp := int(bits>>52) - 1023
	m := math.Float64frombits(bits&(1<<52-1) | 1023<<52) // in [1, 2)
	if m > math.Sqrt2 {
		m, exp = float64(m/2), exp+1
	}
	return float64(float64(exp)*math.Ln2) + artanh2(float64((m-1)/(m+1)))
}

// ln2Hi has zeros in its lowest 20 bits, so that n*ln2Hi is exact; ln2Hi + ln2Lo is ln 2.
const (
	ln2Hi = 6.93147180369123816490e-01
	ln2Lo = 1.90821492927058770002e-10
)

// exp64 is e^x for |x| < 700: x = n ln 2 + r, then the series of e^r.
func exp64(x float64) float64 {
	n := math.RoundToEven(float64(x / math.Ln2))
	r := x - float64(n*ln2Hi) - float64(n*ln2Lo)
	sum := 1.0
	for i := 20; i >= 1; i-- {
		sum = 1 + float64(float64(sum*r)/float64(i))
	}
	return float64(sum * math.Float64frombits(uint64(int(n)+1023)<<52))
}

// Pi/2 in three parts of 33 bits: k times a part is exact for k < 2^20.
const (
	halfPi1 = 1.57079632673412561417e+00
	halfPi2 = 6.07710050630396597660e-11
	halfPi3 = 2.02226624871116645580e-21
)

// sincos returns sine and cosine of an angle of up to 2^20 radians, below 1e-10 in error there and
// below 1e-15 for small angles.
func sincos(x float64) (sin, cos float64) {
	k := math.Floor(float64(x*(2/math.Pi)) + 0.5)
	r := x - float64(k*halfPi1) - float64(k*halfPi2) - float64(k*halfPi3)
	r2 := float64(r * r)
	// Horner's form of the two series, term by term: each factor divides by its two integers.
	s, c := 1.0, 1.0
	for n := 18.0; n >= 2; n -= 2 {
		s = 1 - float64(float64(r2*s)/float64(n*(n+1)))
		c = 1 - float64(float64(r2*c)/float64(n*(n-1)))
	}
	s = float64(r * s)
	switch int64(k) & 3 {
	case 0:
		return s, c
	case 1:
		return c, -s
	case 2:
		return -s, -c
	}
	return -c, s
}
