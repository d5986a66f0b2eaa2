package vector

import (
	"encoding/binary"
	"testing"

	"kvasir/kernels/quant"
)

// TestDequantizeIsThatOfQuant has weights as real files have them, random bits, and every scale at the
// ends of its range.
func TestDequantizeIsThatOfQuant(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		r, seed := newRand(t)
		out, in := newRegion(t, 32<<10), newRegion(t, 32<<10)
		for _, f := range quant.Supported() {
			values, bytes := f.Block()
			for turn, n := range append([]int{768, 1024}, lengths...) {
				if n%values != 0 {
					continue
				}
				for kind := range 3 {
					where := (turn + kind) % places
					src := place[byte](in, n/values*bytes, where)
					if quant.Synthetic(src, f, r.Uint64()); kind > 0 {
						for i := range src {
							src[i] = byte(r.Uint32())
						}
					}
					for at := 0; kind == 2 && at < len(src); at += bytes {
						extremeBlock(src[at:at+bytes], f, r.IntN(256))
					}
					got, want := place[float32](out, n, where), make([]float32, n)
					o.Dequantize(got, f, src)
					quant.Dequantize(want, f, src)
					if d := unlike(got, want); d != "" {
						t.Errorf("seed %#x, %s, kind %d: %s", seed, f, kind, d)
					}
					if !out.intact() || !in.intact() {
						t.Fatalf("%s, %d values: wrote outside", f, n)
					}
				}
			}
		}
	})
}

// extremeBlock sets the scales of a block to the k-th of some odd ones.
func extremeBlock(b []byte, f quant.Format, k int) {
	halves := []uint16{0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0x3c00, 0xbc00}
	h := halves[k%len(halves)]
	switch f {
	case quant.F16, quant.Q8_0, quant.Q5_0, quant.Q4_0, quant.IQ4NL, quant.IQ4XS:
		binary.LittleEndian.PutUint16(b, h)
	case quant.Q4K, quant.Q5K, quant.Q4_1, quant.Q5_1:
		binary.LittleEndian.PutUint16(b, h)
		binary.LittleEndian.PutUint16(b[2:], halves[k/len(halves)%len(halves)])
	case quant.Q6K:
		binary.LittleEndian.PutUint16(b[208:], h)
	case quant.Q3K:
		binary.LittleEndian.PutUint16(b[108:], h)
	case quant.Q2K:
		binary.LittleEndian.PutUint16(b[80:], h)
	case quant.MXFP4:
		b[0] = byte(k)
	}
}

// TestDequantizeKnowsEveryHalf and every exponent byte.
func TestDequantizeKnowsEveryHalf(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		all := make([]byte, 2<<16)
		for h := range 1 << 16 {
			binary.LittleEndian.PutUint16(all[2*h:], uint16(h))
		}
		blocks := make([]byte, 17*256)
		for e := range 256 {
			blocks[17*e] = byte(e)
			for i := range 16 {
				blocks[17*e+1+i] = byte(17 * i)
			}
		}
		for f, src := range map[quant.Format][]byte{quant.F16: all, quant.BF16: all, quant.MXFP4: blocks} {
			values, bytes := f.Block()
			got, want := make([]float32, len(src)/bytes*values), make([]float32, len(src)/bytes*values)
			o.Dequantize(got, f, src)
			quant.Dequantize(want, f, src)
			if d := unlike(got, want); d != "" {
				t.Errorf("%s: %s", f, d)
			}
		}
	})
}

func TestDequantizeDoesNotAllocate(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		dst := make([]float32, 512)
		for _, f := range quant.Supported() {
			n, err := f.RowBytes(len(dst))
			if err != nil {
				t.Fatal(err)
			}
			src := make([]byte, n)
			quant.Synthetic(src, f, 1)
			if allocs := testing.AllocsPerRun(5, func() { o.Dequantize(dst, f, src) }); allocs != 0 {
				t.Errorf("%s: %v allocations", f, allocs)
			}
		}
	})
}
