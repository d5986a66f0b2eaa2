package ref

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrMeasure: measurements from which no exponent can be chosen.
var ErrMeasure = errors.New("ref: no exponent from these measurements")

// MinRows is how many rows a profile must have been measured over.
const MinRows = 2000

// Exponent chooses the exponent of a layer from what its partials look like: the median magnitude
// of each row's partial, in real units, and the largest |w*y| of any pick.
//
//  1. s is the 5th percentile of the medians that are not zero, by nearest rank: of n values in
//     ascending order the one of rank ceil(n/20), counted from 1.
//  2. E = ceil(log2(256/s)): a row as small as s still has 8 bits.
//  3. E is lowered until 8 picks as large as the largest fit 32 bits: 8*rne(largest * 2^E) < 2^31.
//  4. E is brought into MinExponent to MaxExponent.
func Exponent(medians []float32, largest float32) (int, error) {
	if len(medians) < MinRows {
		return 0, fmt.Errorf("%w: %d rows, want at least %d", ErrMeasure, len(medians), MinRows)
	}
	if !finite(largest) || largest <= 0 {
		return 0, fmt.Errorf("%w: largest pick %g, want a number above 0", ErrMeasure, largest)
	}
	var s []float32
	for r, m := range medians {
		if !finite(m) || m < 0 {
			return 0, fmt.Errorf("%w: median %g of row %d, want a number, at least 0", ErrMeasure, m, r)
		}
		if m > 0 {
			s = append(s, m)
		}
	}
	if len(s) == 0 {
		return 0, fmt.Errorf("%w: the medians of all %d rows are 0", ErrMeasure, len(medians))
	}
	slices.Sort(s)
	rank := (len(s) + 19) / 20
	// 256/s lies in (2^(7-l), 2^(8-l)] where l is the floor of log2(s): the ceiling needs no
	// logarithm.
	e := 8 - floorLog2(s[rank-1])
	// The product with 2^E is exact and below 2^28 exactly when its integer is: there are no
	// integers of binary32 between.
	e = min(e, 27-floorLog2(largest))
	return max(MinExponent, min(MaxExponent, e)), nil
}

// floorLog2 returns the exponent of x > 0: 2^floorLog2(x) <= x < 2^(floorLog2(x)+1).
func floorLog2(x float32) int {
	b := math.Float32bits(x)
	if b < 1<<23 { // subnormal: the position of its highest bit above 2^-149
		n := -149
		for ; b > 1; b >>= 1 {
			n++
		}
		return n
	}
	return int(b>>23) - 127
}
