package vector

import (
	"encoding/binary"
	"fmt"
	"math"

	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// halfMax is the magnitude of 65504, the largest binary16; q8Max is that of 127 times as much, beyond
// which a block of Q8_0 has no scale.
const (
	halfMax = 0x477FE000
	q8Max   = 0x4AFDE040
)

// inv127 is the binary32 nearest to 1/127, as in kernels/ref.
const inv127 = float32(0x1.020408p-7)

// ToF16 sets dst to src as binary16, little-endian, rounded to nearest even. What is beyond 65504,
// infinity too, becomes that with its sign; a NaN stays one.
func (o *Ops) ToF16(dst []byte, src []float32) {
	room(dst, quant.F16, len(src))
	n := o.whole(len(src))
	if n > 0 {
		vecToF16(&dst[0], &src[0], n)
	}
	for i, v := range src[n:] {
		binary.LittleEndian.PutUint16(dst[2*(n+i):], toHalf(v))
	}
}

func toHalf(v float32) uint16 {
	if m := magnitude(v); m > halfMax && m <= infinity {
		return 0x7bff | uint16(math.Float32bits(v)>>16&0x8000)
	}
	return quant.F32ToF16(v)
}

// ToQ8 sets dst to src as blocks of Q8_0: 32 values are a binary16 d and 32 int8, q. Of amax, their
// largest magnitude, d is amax * (1/127), and q is x * (127 * ref.Recip(amax)), rounded to nearest even
// and clamped to -127 and 127. A block whose d is 0 as binary16 is all zeros, which all are whose amax
// is below 2^-40. An amax beyond 127*65504 counts as that, so that larger values end as it does.
//
// Callers have looked for infinities and NaNs, for a block is of no use with one. An infinity counts
// as any value beyond the limit, and a NaN as plus infinity.
func (o *Ops) ToQ8(dst []byte, src []float32) {
	room(dst, quant.Q8_0, len(src))
	if len(src) > 0 && o.simd() {
		vecToQ8(&dst[0], &src[0], len(src)/32)
		return
	}
	for ; len(src) > 0; dst, src = dst[34:], src[32:] {
		toQ8((*[34]byte)(dst), (*[32]float32)(src))
	}
}

func toQ8(dst *[34]byte, src *[32]float32) {
	largest := uint32(0)
	for _, v := range src {
		largest = max(largest, magnitude(v))
	}
	amax := math.Float32frombits(min(largest, q8Max))
	d := quant.F32ToF16(float32(amax * inv127))
	if d == 0 {
		*dst = [34]byte{}
		return
	}
	binary.LittleEndian.PutUint16(dst[:], d)
	inv := float32(127 * ref.Recip(amax))
	for i, v := range src {
		x := float32(v * inv)
		if !(x < 127) { // also a NaN
			x = 127
		}
		dst[2+i] = byte(int8(math.RoundToEven(float64(max(x, -127)))))
	}
}

// room panics unless dst has the bytes of n values.
func room(dst []byte, f quant.Format, n int) {
	if bytes, err := f.RowBytes(n); err != nil || bytes != len(dst) {
		panic(fmt.Sprintf("BUG: %d values of %s into %d bytes", n, f, len(dst)))
	}
}
