package model

import "kvasir/kernels/vector"

// rope turns pairs of a head's values by angles that grow with the position. Pairs are NEOX style,
// (i, i+n/2) within the first n values of a head; the rest passes through.
type rope struct {
	freq []float64 // radians a position for each pair
}

// newRope returns the rotation of n values with the given base. Sections are those of Qwen3.5's
// interleaved multi-section rope: for text its time, height and width positions are all the token's
// position and the fourth is 0, so a pair that belongs to no section does not turn. No sections: all
// pairs turn.
func newRope(n int, base float64, sections []int) *rope {
	r := &rope{freq: make([]float64, n/2)}
	lnBase := ln(base)
	for i := range r.freq {
		if turns(i, sections) {
			r.freq[i] = exp64(float64(float64(float64(-2*i)/float64(n)) * lnBase))
		}
	}
	return r
}

// turns reports whether pair i belongs to the time, height or width section: pairs are dealt out in
// threes, and a section of s pairs takes its place in the first s threes.
func turns(i int, sections []int) bool {
	total := 0
	for _, s := range sections {
		total += s
	}
	if total == 0 {
		return true
	}
	i %= total
	return i < 3*sections[i%3]
}

// angles writes cosine and sine of each pair at a position: len(freq) values each.
func (r *rope) angles(cos, sin []float32, pos int) {
	for i, f := range r.freq {
		s, c := sincos(float64(float64(pos) * f))
		cos[i], sin[i] = float32(c), float32(s)
	}
}

// apply turns one head in place.
func (r *rope) apply(ops *vector.Ops, head, cos, sin []float32) {
	half := len(r.freq)
	ops.Turn(head[:half], head[half:2*half], cos, sin)
}
