package ref

import (
	"fmt"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

// tile is how many weight rows are decoded at a time: they stay in the cache while all rows of the
// batch run over them. In Q4_K with 512 rows, 4 measured 3.4 Gproducts/s on one core of an EPYC, 1
// measured 2.7, and 16 no more than 4.
const tile = 4

// Scratch is the memory that MatMul and Forward work in. The zero value is ready; what it grows to
// is kept for the next call. One goroutine at a time uses it.
type Scratch struct {
	weightsK  []quant.BlockK  // tile decoded rows
	weights32 []quant.Block32 // tile decoded rows
	weightsF  []float32       // one decoded row
	pairsK    []pairK
	pairs32   []pair32

	g, u, h []float32 // ForwardRows
	rows    hiddenRows
}

// Grow makes room for products of up to rows rows of up to in values, so that MatMul allocates nothing.
func (s *Scratch) Grow(rows, in int) {
	pairs := (rows + 1) / 2
	s.weightsK, s.weights32 = grown(s.weightsK, tile*(in/256)), grown(s.weights32, tile*(in/32))
	s.pairsK, s.pairs32 = grown(s.pairsK, pairs*(in/256)), grown(s.pairs32, pairs*(in/32))
	s.weightsF = grown(s.weightsF, in)
}

// grown returns s with length n; its values are stale.
func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// MatMul sets dst[r*Out + o] to value o of W x[r], for o from lo to hi-1 and all rows. All rows
// have one format. The bits are those of Dot; each weight row is decoded once and used for all
// rows.
func (m *Matrix) MatMul(dst []float32, x []moe.Row, lo, hi int, s *Scratch) {
	if lo < 0 || hi < lo || hi > m.Out || len(dst) < len(x)*m.Out {
		panic(fmt.Sprintf("BUG: rows %d to %d of %d into %d values for %d rows", lo, hi, m.Out, len(dst), len(x)))
	}
	if len(x) == 0 {
		return
	}
	for _, r := range x {
		m.takes(r)
		if r.Format != x[0].Format {
			panic(fmt.Sprintf("BUG: rows of %s and %s in one product", x[0].Format, r.Format))
		}
	}
	switch x[0].Format {
	case moe.RowQ8K:
		m.matMulK(dst, x, lo, hi, s)
	case moe.RowQ8:
		m.matMul32(dst, x, lo, hi, s)
	default:
		m.matMulFloat(dst, x, lo, hi, s)
	}
}

// Two rows ride in one int64: the first in the low half, the second added in 2^32 times. Sums and
// products with a weight do to both halves what they would do to each alone, as long as each stays
// within 32 bits, which the package comment promises; one multiplication does the work of two.
// Against plain int32 sums this measured 2.6 times as fast.

// pair packs the values a and b.
func pair(a, b int8) int64 { return int64(a) + int64(b)<<32 }

// halves unpacks a sum of pairs. A negative low half has borrowed from the upper one: taking it off
// gives that back.
func halves(v int64) (a, b int32) {
	a = int32(v)
	return a, int32((v - int64(a)) >> 32)
}

// pairK is one block of two Q8K rows.
type pairK struct {
	a   [256]int64
	sum [8]int64 // of each 32 values, for the minimums
	da  [2]float32
}

// pair32 is one block of two Q8 rows.
type pair32 struct {
	a  [32]int64
	da [2]float32
}

// pairOf returns rows 2*p and 2*p+1, or the last row twice where their number is odd.
func pairOf(x []moe.Row, p int) (moe.Row, moe.Row) { return x[2*p], x[min(2*p+1, len(x)-1)] }

func (s *Scratch) packK(x []moe.Row, blocks int) int {
	pairs := (len(x) + 1) / 2
	s.pairsK = grown(s.pairsK, pairs*blocks)
	for p := range pairs {
		first, second := pairOf(x, p)
		for k := range blocks {
			d := &s.pairsK[p*blocks+k]
			a, b := (*[256]int8)(first.Q[256*k:]), (*[256]int8)(second.Q[256*k:])
			d.sum = [8]int64{}
			for i := range a {
				v := pair(a[i], b[i])
				d.a[i] = v
				d.sum[i/32] += v
			}
			d.da = [2]float32{first.Scales[k], second.Scales[k]}
		}
	}
	return pairs
}

func (m *Matrix) matMulK(dst []float32, x []moe.Row, lo, hi int, s *Scratch) {
	_, bytes := m.Format.Block()
	blocks := m.In / 256
	pairs := s.packK(x, blocks)
	s.weightsK = grown(s.weightsK, tile*blocks)
	for ; lo < hi; lo += tile {
		n := min(tile, hi-lo)
		w, src := s.weightsK[:n*blocks], m.rows(lo, lo+n)
		for k := range w {
			quant.DecodeK(&w[k], m.Format, src[k*bytes:])
		}
		for p := range pairs {
			a := s.pairsK[p*blocks : (p+1)*blocks]
			for o := range n {
				y0, y1 := dotPairK(w[o*blocks:(o+1)*blocks], m.Format, a)
				dst[2*p*m.Out+lo+o] = y0
				if 2*p+1 < len(x) {
					dst[(2*p+1)*m.Out+lo+o] = y1
				}
			}
		}
	}
}

func dotPairK(w []quant.BlockK, f quant.Format, a []pairK) (acc0, acc1 float32) {
	for k := range w {
		b, x := &w[k], &a[k]
		i0, i1 := halves(productsK(b, &x.a))
		m0, m1 := int32(0), int32(0)
		if f != quant.Q6K {
			m0, m1 = halves(minimumsK(b, &x.sum))
		}
		acc0 += termK(b, f, x.da[0], i0, m0)
		acc1 += termK(b, f, x.da[1], i1, m1)
	}
	return acc0, acc1
}

// productsK returns the scaled sum of products of a block, for two rows.
func productsK(b *quant.BlockK, a *[256]int64) (sum int64) {
	for j, sc := range b.Scale {
		sum += int64(sc) * products16((*[16]int8)(b.Q[16*j:]), (*[16]int64)(a[16*j:]))
	}
	return sum
}

// products16 is unrolled because the compiler does not do it: as a loop it measured a third slower.
func products16(q *[16]int8, a *[16]int64) int64 {
	return int64(q[0])*a[0] + int64(q[1])*a[1] + int64(q[2])*a[2] + int64(q[3])*a[3] +
		int64(q[4])*a[4] + int64(q[5])*a[5] + int64(q[6])*a[6] + int64(q[7])*a[7] +
		int64(q[8])*a[8] + int64(q[9])*a[9] + int64(q[10])*a[10] + int64(q[11])*a[11] +
		int64(q[12])*a[12] + int64(q[13])*a[13] + int64(q[14])*a[14] + int64(q[15])*a[15]
}

func minimumsK(b *quant.BlockK, sums *[8]int64) (sum int64) {
	for j, m := range b.Min {
		sum += int64(m) * sums[j]
	}
	return sum
}

func (s *Scratch) pack32(x []moe.Row, blocks int) int {
	pairs := (len(x) + 1) / 2
	s.pairs32 = grown(s.pairs32, pairs*blocks)
	for p := range pairs {
		first, second := pairOf(x, p)
		for k := range blocks {
			d := &s.pairs32[p*blocks+k]
			a, b := (*[32]int8)(first.Q[32*k:]), (*[32]int8)(second.Q[32*k:])
			for i := range a {
				d.a[i] = pair(a[i], b[i])
			}
			d.da = [2]float32{first.Scales[k], second.Scales[k]}
		}
	}
	return pairs
}

func (m *Matrix) matMul32(dst []float32, x []moe.Row, lo, hi int, s *Scratch) {
	_, bytes := m.Format.Block()
	blocks := m.In / 32
	pairs := s.pack32(x, blocks)
	s.weights32 = grown(s.weights32, tile*blocks)
	for ; lo < hi; lo += tile {
		n := min(tile, hi-lo)
		w, src := s.weights32[:n*blocks], m.rows(lo, lo+n)
		for k := range w {
			quant.Decode32(&w[k], m.Format, src[k*bytes:])
		}
		for p := range pairs {
			a := s.pairs32[p*blocks : (p+1)*blocks]
			for o := range n {
				y0, y1 := dotPair32(w[o*blocks:(o+1)*blocks], a)
				dst[2*p*m.Out+lo+o] = y0
				if 2*p+1 < len(x) {
					dst[(2*p+1)*m.Out+lo+o] = y1
				}
			}
		}
	}
}

func dotPair32(w []quant.Block32, a []pair32) (acc0, acc1 float32) {
	for k := range w {
		b, x := &w[k], &a[k]
		i0, i1 := halves(products16((*[16]int8)(b.Q[:16]), (*[16]int64)(x.a[:16])) +
			products16((*[16]int8)(b.Q[16:]), (*[16]int64)(x.a[16:])))
		acc0 += term32(b.D, x.da[0], i0)
		acc1 += term32(b.D, x.da[1], i1)
	}
	return acc0, acc1
}

func (m *Matrix) matMulFloat(dst []float32, x []moe.Row, lo, hi int, s *Scratch) {
	s.weightsF = grown(s.weightsF, m.In)
	for o := lo; o < hi; o++ {
		quant.Dequantize(s.weightsF, m.Format, m.row(o))
		for r := range x {
			dst[r*m.Out+o] = DotF32(x[r].F, s.weightsF)
		}
	}
}

// hiddenRows are the h of many rows, in the format that down takes.
type hiddenRows struct {
	q      []int8
	scales []float32
	f      []float32
	rows   []moe.Row
}

// reset makes room for n rows of the given length; their values are stale.
func (h *hiddenRows) reset(f moe.RowFormat, n, length int) []moe.Row {
	scales := f.Scales(length)
	h.rows = grown(h.rows, n)
	if f == moe.RowF32 {
		h.f = grown(h.f, n*length)
	} else {
		h.q, h.scales = grown(h.q, n*length), grown(h.scales, n*scales)
	}
	for r := range h.rows {
		h.rows[r] = moe.Row{Format: f}
		if f == moe.RowF32 {
			h.rows[r].F = h.f[r*length : (r+1)*length]
			continue
		}
		h.rows[r].Q = h.q[r*length : (r+1)*length]
		h.rows[r].Scales = h.scales[r*scales : (r+1)*scales]
	}
	return h.rows
}
