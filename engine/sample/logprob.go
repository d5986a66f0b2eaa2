package sample

import "math"

// measure finds the sum and the likeliest tokens of the model's distribution.
func (s *Sampler) measure() {
	s.top = s.top[:0]
	if !s.p.Logprobs || math.IsInf(float64(s.scan.top), -1) {
		return
	}
	s.rawTop = s.scan.top
	sum := 0.0
	var buf [chunk]float32
	for c, m := range s.scan.maxima {
		if m-s.rawTop < expMin {
			continue // all are 0
		}
		x, _ := s.scan.part(c)
		e := buf[:copy(buf[:], x)]
		s.scan.ops.ExpLess(e, s.rawTop)
		sum += float64(s.scan.ops.SumF32(e))
	}
	s.lnSum = ln(sum)
	if s.p.Top == 0 {
		return
	}
	s.best = s.scan.largest(s.best[:0], s.p.Top)
	for _, key := range s.best {
		s.top = append(s.top, Candidate{idOf(key), s.logprob(logitOf(key))})
	}
}

// expMin is where the exponential of the kernels becomes 0.
const expMin = -87

// logprob returns the log probability of a logit, in the distribution that was measured last.
func (s *Sampler) logprob(x float32) float32 {
	return float32(max(-math.MaxFloat32, float64(x)-float64(s.rawTop)-s.lnSum))
}

// ln is the natural logarithm of a positive normal number: x = m * 2^k with m near 1, and ln m =
// 2 artanh((m-1)/(m+1)) by its series. Package math has other bits on other machines.
func ln(x float64) float64 {
	b := math.Float64bits(x)
	k := int(b>>52) - 1023
	m := math.Float64frombits(b&(1<<52-1) | 1023<<52)
	if m > math.Sqrt2 {
		m, k = float64(m/2), k+1
	}
	z := float64((m - 1) / (m + 1)) // below 0.172: the first term left out is below 1e-18
	zz := float64(z * z)
	sum := 0.0
	for n := 21; n >= 1; n -= 2 {
		sum = float64(sum*zz) + 1/float64(n)
	}
	return float64(float64(k)*math.Ln2) + float64(2*float64(z*sum))
}
