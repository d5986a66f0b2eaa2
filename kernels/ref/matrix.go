package ref

import (
	"errors"
	"fmt"
	"math"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

// ErrShape: the parts of a matrix or an expert do not fit together.
var ErrShape = errors.New("ref: shapes do not fit")

// Matrix is y = W x: Out rows of In weights each, in the bytes of the model file. Data is not
// copied and must not change.
type Matrix struct {
	Format  quant.Format
	In, Out int
	Data    []byte
}

// NewMatrix returns a matrix over data, or an error if the format is unsupported or data is not
// exactly out rows of in weights. It does not look at the weights: quant.Check does.
func NewMatrix(f quant.Format, in, out int, data []byte) (Matrix, error) {
	if in < 1 || out < 1 {
		return Matrix{}, fmt.Errorf("%w: a matrix of %d rows of %d weights", ErrShape, out, in)
	}
	row, err := f.RowBytes(in)
	if err != nil {
		return Matrix{}, fmt.Errorf("matrix of %d rows: %w", out, err)
	}
	if out > math.MaxInt/row || len(data) != out*row {
		return Matrix{}, fmt.Errorf("%w: %d bytes for %d rows of %d weights in %s, want %d a row",
			ErrShape, len(data), out, in, f, row)
	}
	return Matrix{Format: f, In: in, Out: out, Data: data}, nil
}

// rows returns the bytes of output rows lo to hi-1.
func (m *Matrix) rows(lo, hi int) []byte {
	values, bytes := m.Format.Block()
	n := m.In / values * bytes
	return m.Data[lo*n : hi*n]
}

func (m *Matrix) row(o int) []byte { return m.rows(o, o+1) }

// takes panics unless x is a row that m can be multiplied with.
func (m *Matrix) takes(x moe.Row) {
	checkRowShape(x, m.In)
	if x.Format == moe.RowQ8K && !m.Format.IsK() || x.Format == moe.RowQ8 && !m.Format.IsBlock32() {
		panic(fmt.Sprintf("BUG: a %s row for weights in %s", x.Format, m.Format))
	}
}

// Dot returns value o of W x. It is the definition; MatMul gives the same bits.
func (m *Matrix) Dot(o int, x moe.Row) float32 {
	m.takes(x)
	switch x.Format {
	case moe.RowQ8K:
		return dotK(m.Format, m.row(o), x)
	case moe.RowQ8:
		return dot32(m.Format, m.row(o), x)
	}
	return dotFloat(m.Format, m.row(o), x.F)
}

func dotK(f quant.Format, w []byte, x moe.Row) float32 {
	_, bytes := f.Block()
	var acc float32
	var b quant.BlockK
	for k, da := range x.Scales {
		quant.DecodeK(&b, f, w[k*bytes:])
		i, m := sumsK(&b, (*[256]int8)(x.Q[256*k:]))
		acc += termK(&b, f, da, i, m)
	}
	return acc
}

// sumsK returns the two integers of a block of a K-quant: I, the scaled sum of products, and M, the
// sum of values times minimums.
func sumsK(b *quant.BlockK, a *[256]int8) (i, m int32) {
	for j, sc := range b.Scale {
		var products, values int32
		for k := 16 * j; k < 16*j+16; k++ {
			products += int32(b.Q[k]) * int32(a[k])
			values += int32(a[k])
		}
		i += int32(sc) * products
		m += int32(b.Min[j/2]) * values
	}
	return i, m
}

// termK turns the integers of a block into what the block adds to the dot product.
func termK(b *quant.BlockK, f quant.Format, da float32, i, m int32) float32 {
	d := float32(b.D * da)
	t := float32(d * float32(i))
	if f == quant.Q6K {
		return t
	}
	dmin := float32(b.DMin * da)
	return t - float32(dmin*float32(m))
}

func dot32(f quant.Format, w []byte, x moe.Row) float32 {
	_, bytes := f.Block()
	var acc float32
	var b quant.Block32
	for k, da := range x.Scales {
		quant.Decode32(&b, f, w[k*bytes:])
		var i int32
		for j, a := range x.Q[32*k : 32*k+32] {
			i += int32(b.Q[j]) * int32(a)
		}
		acc += term32(b.D, da, i)
	}
	return acc
}

func term32(d, da float32, i int32) float32 {
	d = float32(d * da)
	return float32(d * float32(i))
}

// dotFloat dequantises the weights piece by piece; a piece is whole blocks and whole rounds of
// lanes.
func dotFloat(f quant.Format, w []byte, x []float32) float32 {
	var s lanes
	var piece [256]float32
	for len(x) > 0 {
		n := min(len(x), len(piece))
		bytes, err := f.RowBytes(n)
		if err != nil {
			panic("BUG: " + err.Error()) // NewMatrix has let in whole blocks only
		}
		quant.Dequantize(piece[:n], f, w[:bytes])
		s.addProducts(x[:n], piece[:n])
		x, w = x[n:], w[bytes:]
	}
	return s.sum()
}
