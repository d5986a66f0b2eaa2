package ref

import "fmt"

// lanes are the 32 running sums in which floats are added up. The order is fixed: value i goes to
// lane i mod 32, ascending, and sum folds the lanes.
type lanes [32]float32

// sum folds the lanes in halves.
func (s *lanes) sum() float32 {
	for step := len(s) / 2; step > 0; step /= 2 {
		for l := range step {
			s[l] += s[l+step]
		}
	}
	return s[0]
}

// addProducts adds x_i*w_i to the lanes. Where a row comes in several pieces, all but the last are
// a multiple of 32 values long.
func (s *lanes) addProducts(x, w []float32) {
	w = w[:len(x)]
	whole := len(x) &^ 31
	for l := 0; l < len(s); l += 8 { // eight lanes at once keep their sums in registers
		s0, s1, s2, s3 := s[l], s[l+1], s[l+2], s[l+3]
		s4, s5, s6, s7 := s[l+4], s[l+5], s[l+6], s[l+7]
		for i := l; i < whole; i += 32 {
			a, b := (*[8]float32)(x[i:]), (*[8]float32)(w[i:])
			s0 += float32(a[0] * b[0])
			s1 += float32(a[1] * b[1])
			s2 += float32(a[2] * b[2])
			s3 += float32(a[3] * b[3])
			s4 += float32(a[4] * b[4])
			s5 += float32(a[5] * b[5])
			s6 += float32(a[6] * b[6])
			s7 += float32(a[7] * b[7])
		}
		s[l], s[l+1], s[l+2], s[l+3] = s0, s1, s2, s3
		s[l+4], s[l+5], s[l+6], s[l+7] = s4, s5, s6, s7
	}
	for i := whole; i < len(x); i++ {
		s[i-whole] += float32(x[i] * w[i])
	}
}

// DotF32 returns the sum of x_i*w_i in lane order.
func DotF32(x, w []float32) float32 {
	if len(x) != len(w) {
		panic(fmt.Sprintf("BUG: dot product of %d and %d values", len(x), len(w)))
	}
	var s lanes
	s.addProducts(x, w)
	return s.sum()
}

// SumSquares returns the sum of x_i*x_i in lane order, in binary64, where each square is exact. The
// backbone's RMS norms are made of it; with binary32 sums they lie measurably farther from
// llama.cpp's (docs/decisions/0002).
func SumSquares(x []float32) float64 {
	var s [32]float64
	for ; len(x) >= len(s); x = x[len(s):] {
		for l, v := range (*lanes)(x) {
			s[l] += float64(float64(v) * float64(v))
		}
	}
	for l, v := range x {
		s[l] += float64(float64(v) * float64(v))
	}
	for step := len(s) / 2; step > 0; step /= 2 {
		for l := range step {
			s[l] += s[l+step]
		}
	}
	return s[0]
}

// SumF32 returns the sum of x in lane order.
func SumF32(x []float32) float32 {
	var s lanes
	for ; len(x) >= len(s); x = x[len(s):] {
		for l, v := range (*lanes)(x) {
			s[l] += v
		}
	}
	for l, v := range x {
		s[l] += v
	}
	return s.sum()
}
