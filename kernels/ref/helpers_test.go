package ref

import (
	"fmt"
	"math"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

// source is splitmix64: the same numbers for a seed on every machine and in every version of Go,
// since golden files are made from it.
type source uint64

func (s *source) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (s *source) intn(n int) int { return int(s.next() % uint64(n)) }

// activation is a value as hidden states have them: around 0, most within 1, a few far out.
func (s *source) activation() float32 {
	sum := float32(-6)
	for range 12 { // the sum of twelve uniform numbers is close to normal
		sum += float32(float32(s.next()>>40) * 0x1p-24)
	}
	if s.intn(400) == 0 {
		sum *= 20
	}
	return sum
}

func (s *source) activations(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = s.activation()
	}
	return x
}

// newRow returns an empty row of n values.
func newRow(f moe.RowFormat, n int) moe.Row {
	if f == moe.RowF32 {
		return moe.Row{Format: f, F: make([]float32, n)}
	}
	return moe.Row{Format: f, Q: make([]int8, n), Scales: make([]float32, f.Scales(n))}
}

// rowOf quantises x, which is without fault.
func rowOf(f moe.RowFormat, x []float32) moe.Row {
	r := newRow(f, len(x))
	if st, i := QuantizeRow(r, x); st != moe.OK {
		panic(fmt.Sprintf("%s at value %d", st, i))
	}
	return r
}

func randomRows(f moe.RowFormat, rows, n int, seed uint64) []moe.Row {
	src := source(seed)
	x := make([]moe.Row, rows)
	for r := range x {
		x[r] = rowOf(f, src.activations(n))
	}
	return x
}

func syntheticMatrix(f quant.Format, in, out int, seed uint64) Matrix {
	row, err := f.RowBytes(in)
	if err != nil {
		panic(err)
	}
	data := make([]byte, out*row)
	quant.Synthetic(data, f, seed)
	m, err := NewMatrix(f, in, out, data)
	if err != nil {
		panic(err)
	}
	return m
}

func syntheticExpert(gate, up, down quant.Format, hidden, length int, seed uint64) *Expert {
	return &Expert{
		Gate: syntheticMatrix(gate, hidden, length, seed),
		Up:   syntheticMatrix(up, hidden, length, seed+1),
		Down: syntheticMatrix(down, length, hidden, seed+2),
	}
}

// sizeFor returns the smallest size above n that is whole blocks of all formats.
func sizeFor(n int, formats ...quant.Format) int {
	block := 1
	for _, f := range formats {
		values, _ := f.Block()
		block = max(block, values)
	}
	return (n + block - 1) / block * block
}

// rowFormatsOf returns the formats of rows that weights of format f can be multiplied with.
func rowFormatsOf(f quant.Format) []moe.RowFormat {
	if q := HiddenFormat(f); q != moe.RowF32 {
		return []moe.RowFormat{q, moe.RowF32}
	}
	return []moe.RowFormat{moe.RowF32}
}

func sameBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)
