package vector

import (
	"fmt"
	"unsafe"

	"kvasir/kernels/quant"
)

// Where assembly finds the parts of a quant.BlockK; the arrays do not compile if they are elsewhere.
var (
	_ [unsafe.Offsetof(quant.BlockK{}.Scale) - 256]struct{}
	_ [256 - unsafe.Offsetof(quant.BlockK{}.Scale)]struct{}
	_ [unsafe.Offsetof(quant.BlockK{}.Min) - 272]struct{}
	_ [272 - unsafe.Offsetof(quant.BlockK{}.Min)]struct{}
	_ [unsafe.Offsetof(quant.BlockK{}.D) - 280]struct{}
	_ [280 - unsafe.Offsetof(quant.BlockK{}.D)]struct{}
	_ [unsafe.Offsetof(quant.BlockK{}.DMin) - 284]struct{}
	_ [284 - unsafe.Offsetof(quant.BlockK{}.DMin)]struct{}
)

// Dequantize does what quant.Dequantize does.
func (o *Ops) Dequantize(dst []float32, f quant.Format, src []byte) {
	if n, err := f.RowBytes(len(dst)); err != nil || n != len(src) {
		panic(fmt.Sprintf("BUG: %d values of %s from %d bytes", len(dst), f, len(src)))
	}
	if !o.simd() || len(dst) == 0 {
		quant.Dequantize(dst, f, src)
		return
	}
	switch f {
	case quant.F32:
		// Processors with assembly have the order of bytes that files have.
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&dst[0])), len(src)), src)
	case quant.F16, quant.BF16:
		n := o.whole(len(dst))
		if n > 0 && f == quant.F16 {
			vecF16(&dst[0], &src[0], n)
		} else if n > 0 {
			vecBF16(&dst[0], &src[0], n)
		}
		quant.Dequantize(dst[n:], f, src[2*n:])
	case quant.Q8_0:
		vecQ8(&dst[0], &src[0], len(dst)/32)
	case quant.Q5_0:
		vecQ5(&dst[0], &src[0], len(dst)/32)
	case quant.MXFP4:
		vecMXFP4(&dst[0], &src[0], len(dst)/32)
	case quant.Q4K, quant.Q5K, quant.Q6K:
		_, bytes := f.Block()
		var b quant.BlockK
		for ; len(dst) > 0; dst, src = dst[256:], src[bytes:] {
			quant.DecodeK(&b, f, src)
			vecBlockK(&dst[0], &b, f != quant.Q6K)
		}
	default: // formats that few tensors have
		quant.Dequantize(dst, f, src)
	}
}
