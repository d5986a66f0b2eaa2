package quant

import (
	"fmt"
	"math"
)

// Dequantize fills dst with the values of a row of format f. The caller promises that src has
// exactly the bytes of len(dst) values.
//
// Each value is at most one rounding away from what the block stands for, and only in formats that
// add or subtract a minimum: their scale times value has at most 22 significant bits and their
// minimum 17, so both products are exact and the sum rounds once. In all other formats the product
// itself is exact.
func Dequantize(dst []float32, f Format, src []byte) {
	if n, err := f.RowBytes(len(dst)); err != nil || n != len(src) {
		panic(fmt.Sprintf("BUG: %d values of %s from %d bytes", len(dst), f, len(src)))
	}
	switch {
	case f == F32:
		for i := range dst {
			dst[i] = math.Float32frombits(le.Uint32(src[4*i:]))
		}
	case f == F16:
		for i := range dst {
			dst[i] = F16ToF32(le.Uint16(src[2*i:]))
		}
	case f == BF16:
		for i := range dst {
			dst[i] = BF16ToF32(le.Uint16(src[2*i:]))
		}
	case f.IsK():
		_, bytes := f.Block()
		var b BlockK
		for ; len(dst) > 0; dst, src = dst[256:], src[bytes:] {
			DecodeK(&b, f, src)
			dequantizeK((*[256]float32)(dst), &b, f)
		}
	case f.IsBlock32():
		_, bytes := f.Block()
		var b Block32
		for ; len(dst) > 0; dst, src = dst[32:], src[bytes:] {
			Decode32(&b, f, src)
			for i, q := range b.Q {
				dst[i] = float32(b.D * float32(q))
			}
		}
	default:
		dequantizeBlocks(dst, f, src)
	}
}

func dequantizeK(dst *[256]float32, b *BlockK, f Format) {
	for j, sc := range b.Scale {
		scale := float32(b.D * float32(sc))
		minimum := float32(b.DMin * float32(b.Min[j/2]))
		out := (*[16]float32)(dst[16*j:])
		for i, q := range (*[16]int8)(b.Q[16*j:]) {
			v := float32(scale * float32(q))
			if f != Q6K {
				v -= minimum
			}
			out[i] = v
		}
	}
}
