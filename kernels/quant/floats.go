package quant

import "fmt"

// The formats here have no integer view: they are only ever read as floats.

// dequantizeBlocks is Dequantize for them.
func dequantizeBlocks(dst []float32, f Format, src []byte) {
	values, bytes := f.Block()
	for ; len(dst) > 0; dst, src = dst[values:], src[bytes:] {
		switch f {
		case Q4_0:
			dequantizeQ40((*[32]float32)(dst), (*[18]byte)(src))
		case Q4_1:
			dequantizeQ41((*[32]float32)(dst), (*[20]byte)(src))
		case Q5_0:
			dequantizeQ50((*[32]float32)(dst), (*[22]byte)(src))
		case Q5_1:
			dequantizeQ51((*[32]float32)(dst), (*[24]byte)(src))
		case Q2K:
			dequantizeQ2((*[256]float32)(dst), (*[84]byte)(src))
		case Q3K:
			dequantizeQ3((*[256]float32)(dst), (*[110]byte)(src))
		case IQ4NL:
			dequantizeTable((*[32]float32)(dst), F16ToF32(le.Uint16(src)), (*[16]byte)(src[2:]))
		case IQ4XS:
			dequantizeIQ4XS((*[256]float32)(dst), (*[136]byte)(src))
		default:
			panic(fmt.Sprintf("BUG: no reader of %s", f))
		}
	}
}

// In all blocks of 32, byte i of the nibbles holds values i and i + 16, low half first.

func dequantizeQ40(dst *[32]float32, src *[18]byte) {
	d := F16ToF32(le.Uint16(src[0:]))
	for i, b := range src[2:] {
		dst[i] = float32(d * float32(int32(b&15)-8))
		dst[i+16] = float32(d * float32(int32(b>>4)-8))
	}
}

func dequantizeQ41(dst *[32]float32, src *[20]byte) {
	d, m := F16ToF32(le.Uint16(src[0:])), F16ToF32(le.Uint16(src[2:]))
	for i, b := range src[4:] {
		dst[i] = float32(d*float32(b&15)) + m
		dst[i+16] = float32(d*float32(b>>4)) + m
	}
}

// Bit i of the fifth bits of Q5_0 and Q5_1 belongs to value i.

func dequantizeQ50(dst *[32]float32, src *[22]byte) {
	d := F16ToF32(le.Uint16(src[0:]))
	fifth := le.Uint32(src[2:])
	for i, b := range src[6:] {
		lo := int32(b&15) | int32(fifth>>i&1)<<4
		hi := int32(b>>4) | int32(fifth>>(i+16)&1)<<4
		dst[i] = float32(d * float32(lo-16))
		dst[i+16] = float32(d * float32(hi-16))
	}
}

func dequantizeQ51(dst *[32]float32, src *[24]byte) {
	d, m := F16ToF32(le.Uint16(src[0:])), F16ToF32(le.Uint16(src[2:]))
	fifth := le.Uint32(src[4:])
	for i, b := range src[8:] {
		lo := int32(b&15) | int32(fifth>>i&1)<<4
		hi := int32(b>>4) | int32(fifth>>(i+16)&1)<<4
		dst[i] = float32(d*float32(lo)) + m
		dst[i+16] = float32(d*float32(hi)) + m
	}
}

// A block of Q2_K or Q3_K is two halves of 128 values, each 8 runs of 16. Run j of a half has its bit
// pairs in bytes 16*(j&1) to 16*(j&1) + 15 of the half's 32, pair j/2 of each.

func dequantizeQ2(dst *[256]float32, src *[84]byte) {
	d, dmin := F16ToF32(le.Uint16(src[80:])), F16ToF32(le.Uint16(src[82:]))
	for j, sc := range src[:16] {
		scale, minimum := float32(d*float32(sc&15)), float32(dmin*float32(sc>>4))
		pairs, shift := (*[16]byte)(src[16+j>>3*32+j&1*16:]), j>>1&3*2
		out := (*[16]float32)(dst[16*j:])
		for i, b := range pairs {
			out[i] = float32(scale*float32(b>>shift&3)) - minimum
		}
	}
}

// dequantizeQ3 has its third bits like the bit pairs, with both halves in the same bytes: those of
// runs 2*n and 2*n + 1 of all 16 are bits n. A 6-bit scale has its low nibble in bytes 0 to 7, the
// first eight in the lower half of the byte, and its upper pair in bytes 8 to 11: pair n of them
// belongs to scales 4*n to 4*n + 3.
func dequantizeQ3(dst *[256]float32, src *[110]byte) {
	d := F16ToF32(le.Uint16(src[108:]))
	scales := src[96:108]
	for j := range 16 {
		sc := int32(scales[j&7]>>(j>>3*4)&15) | int32(scales[8+j&3]>>(j>>2*2)&3)<<4
		scale := float32(d * float32(sc-32))
		third, bit := (*[16]byte)(src[j&1*16:]), j>>1
		pairs, shift := (*[16]byte)(src[32+j>>3*32+j&1*16:]), j>>1&3*2
		out := (*[16]float32)(dst[16*j:])
		for i, b := range pairs {
			q := int32(b>>shift&3) | int32(third[i]>>bit&1)<<2
			out[i] = float32(scale * float32(q-4))
		}
	}
}

// table has the values that the nibbles of IQ4_NL and IQ4_XS stand for.
var table = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

func dequantizeTable(dst *[32]float32, d float32, nibbles *[16]byte) {
	for i, b := range nibbles {
		dst[i] = float32(d * table[b&15])
		dst[i+16] = float32(d * table[b>>4])
	}
}

func dequantizeIQ4XS(dst *[256]float32, src *[136]byte) {
	d, upper := F16ToF32(le.Uint16(src[0:])), le.Uint16(src[2:])
	for j := range 8 {
		sc := int32(src[4+j>>1]>>(j&1*4)&15) | int32(upper>>(2*j)&3)<<4
		scale := float32(d * float32(sc-32))
		dequantizeTable((*[32]float32)(dst[32*j:]), scale, (*[16]byte)(src[8+16*j:]))
	}
}
