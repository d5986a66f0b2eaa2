package kerneltest

import (
	"fmt"
	"math"

	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// source is splitmix64: the same numbers for a seed on every machine.
type source uint64

func (s *source) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (s *source) intn(n int) int { return int(s.next() % uint64(n)) }

// oneIn is true once in n times.
func (s *source) oneIn(n int) bool { return s.intn(n) == 0 }

// sign returns 1 or -1.
func (s *source) sign() float32 { return float32(1 - 2*s.intn(2)) }

// permutation returns the numbers below n in random order.
func (s *source) permutation(n int) []int {
	p := make([]int, n)
	for i := range p {
		j := s.intn(i + 1)
		p[i], p[j] = p[j], i
	}
	return p
}

// activation is a value as hidden states have them: around 0, most within 1, a few far out.
func (s *source) activation() float32 {
	sum := float32(-2)
	for range 4 {
		sum += float32(float32(s.next()>>40) * 0x1p-24)
	}
	if s.oneIn(400) {
		return float32(sum * 30)
	}
	return float32(sum * 2)
}

// rowKind is what a row is like.
type rowKind uint8

const (
	activations rowKind = iota
	outliers            // activations, some of them 1e4
	allMax              // 127
	allMin              // -127
	mixedEnds           // 127 and -127
	anyValues           // all values, scales of many sizes
	tinyScales          // the smallest that a row may have
	hugeScales          // the largest
	zeroBlocks          // some scales 0, also -0, with values that are none
	allZero
	rowKinds
)

var rowKindNames = [rowKinds]string{"activations", "outliers", "all 127", "all -127", "127 and -127", "any values",
	"tiny scales", "huge scales", "zero blocks", "all zero"}

func (k rowKind) String() string { return rowKindNames[k] }

// The scales of rows with the smallest and the largest amax.
var (
	scaleMin = float32(0x1p-40 * float32(0x1.020408p-7))
	scaleMax = float32(0x1p40 * float32(0x1.020408p-7))
)

var minusZero = math.Float32frombits(1 << 31)

// fillRow makes x a row of kind k. Its arrays have their lengths; no value is a fault.
func fillRow(x moe.Row, k rowKind, s *source) {
	n := max(len(x.Q), len(x.F))
	switch {
	case k == activations || k == outliers:
		values := make([]float32, n)
		for i := range values {
			values[i] = s.activation()
			if k == outliers && s.oneIn(50) {
				values[i] = float32(1e4 * s.sign())
			}
		}
		if st, i := ref.QuantizeRow(x, values); st != moe.OK {
			panic(fmt.Sprintf("BUG: activation %d is %s", i, st))
		}
	case x.Format == moe.RowF32:
		for i := range x.F {
			x.F[i] = floatOf(k, s)
		}
	default:
		for i := range x.Q {
			x.Q[i] = int8Of(k, s)
		}
		for i := range x.Scales {
			x.Scales[i] = scaleOf(k, s)
		}
	}
}

func int8Of(k rowKind, s *source) int8 {
	switch k {
	case allMax:
		return 127
	case allMin:
		return -127
	case allZero:
		return 0
	case anyValues, zeroBlocks:
		return int8(s.intn(255) - 127)
	}
	return int8(127 - 254*s.intn(2))
}

func scaleOf(k rowKind, s *source) float32 {
	switch k {
	case anyValues:
		return float32(power(s.intn(16)-20) * float32(1+s.intn(1000)))
	case tinyScales:
		return scaleMin
	case hugeScales:
		return scaleMax
	case zeroBlocks:
		switch s.intn(4) {
		case 0:
			return 0
		case 1:
			return minusZero
		}
	case allZero:
		return 0
	}
	return 0x1.8p-7
}

func floatOf(k rowKind, s *source) float32 {
	switch k {
	case allMax:
		return 3
	case allMin:
		return -3
	case allZero:
		return 0
	case anyValues:
		return float32(s.sign() * float32(power(s.intn(24)-32)*float32(1+s.intn(1<<24))))
	case tinyScales:
		return math.Float32frombits(uint32(s.next()) & 0x803fffff) // subnormal
	case hugeScales:
		return float32(s.sign() * 0x1p40)
	case zeroBlocks:
		switch s.intn(4) {
		case 0:
			return 0
		case 1:
			return minusZero
		}
		return s.activation()
	}
	return float32(3 * s.sign())
}

// power returns 2^e, for e from -126 to 127.
func power(e int) float32 { return math.Float32frombits(uint32(127+e) << 23) }

// newRow returns a row of n zeros.
func newRow(f moe.RowFormat, n int) moe.Row {
	if f == moe.RowF32 {
		return moe.Row{Format: f, F: make([]float32, n)}
	}
	return moe.Row{Format: f, Q: make([]int8, n), Scales: make([]float32, f.Scales(n))}
}

// rowsOf returns rows of the given kinds, over and over.
func rowsOf(f moe.RowFormat, rows, n int, s *source, kinds ...rowKind) []moe.Row {
	x := make([]moe.Row, rows)
	for r := range x {
		x[r] = newRow(f, n)
		fillRow(x[r], kinds[r%len(kinds)], s)
	}
	return x
}

// allKinds returns every kind of row.
func allKinds() []rowKind {
	kinds := make([]rowKind, rowKinds)
	for i := range kinds {
		kinds[i] = rowKind(i)
	}
	return kinds
}
