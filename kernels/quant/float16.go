package quant

import "math"

// F16ToF32 returns the value of a binary16, exactly. A NaN keeps its payload.
func F16ToF32(h uint16) float32 {
	if exp := h & 0x7c00; exp == 0 || exp == 0x7c00 {
		return rareF16(h)
	}
	return math.Float32frombits(uint32(h&0x8000)<<16 | (uint32(h&0x7fff)<<13 + (127-15)<<23))
}

// rareF16 returns the value of a binary16 that is zero, subnormal, infinite or NaN, by integers
// alone.
func rareF16(h uint16) float32 {
	sign, frac := uint32(h&0x8000)<<16, uint32(h&0x3ff)
	if h&0x7c00 != 0 {
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	if frac == 0 {
		return math.Float32frombits(sign)
	}
	exp := uint32(127 - 14)
	for frac&0x400 == 0 {
		frac <<= 1
		exp--
	}
	return math.Float32frombits(sign | exp<<23 | frac&0x3ff<<13)
}

// F32ToF16 returns the binary16 nearest to v, ties to even; beyond 65519 that is infinity. A NaN
// stays one and is made quiet.
func F32ToF16(v float32) uint16 {
	bits := math.Float32bits(v)
	sign := uint16(bits >> 16 & 0x8000)
	bits &= 0x7fffffff
	switch {
	case bits > 0xff<<23:
		return sign | 0x7e00 | uint16(bits>>13&0x3ff)
	case bits >= 0x477ff000: // 65520, half way between the largest binary16 and the next power of two
		return sign | 0x7c00
	case bits < 0x33000001: // up to 2^-25: half of the smallest subnormal goes to zero
		return sign
	case bits < 0x38800000: // below 2^-14: count units of 2^-24
		shift := 126 - bits>>23
		return sign | uint16(roundShift(bits&0x7fffff|0x800000, shift))
	}
	return sign | uint16(roundShift(bits, 13)-(127-15)<<10)
}

// roundShift returns v / 2^shift to the nearest integer, ties to even.
func roundShift(v, shift uint32) uint32 {
	half := uint32(1)<<(shift-1) - 1
	return (v + half + v>>shift&1) >> shift
}

// BF16ToF32 returns the value of a bfloat16, exactly.
func BF16ToF32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F32ToBF16 returns the bfloat16 nearest to v, ties to even. A NaN stays one and is made quiet.
func F32ToBF16(v float32) uint16 {
	bits := math.Float32bits(v)
	if bits&0x7fffffff > 0xff<<23 {
		return uint16(bits>>16) | 0x40
	}
	return uint16(roundShift(bits, 16))
}
