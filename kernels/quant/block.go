package quant

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"
)

// le reads and writes words; values and words are little-endian alike, so the order of bytes in
// memory does not matter.
var le = binary.LittleEndian

// BlockK is the integer view of one block of a K-quant. Value i of the block is
//
//	D*Scale[i/16]*Q[i] - DMin*Min[i/32]
//
// Q4_K and Q5_K have one scale every 32 values: it stands here twice. Q6_K has no minimums: DMin
// and Min are zero, and Q has the offset of 32 taken off.
//
// Ranges: Q4_K 0 <= Q <= 15, Q5_K 0 <= Q <= 31, Q6_K -32 <= Q <= 31; Scale 0 to 63, in Q6_K -128 to
// 127; Min 0 to 63.
type BlockK struct {
	Q       [256]int8
	Scale   [16]int8
	Min     [8]uint8
	D, DMin float32
}

// Block32 is the integer view of one block of Q8_0 or MXFP4: value i is D*Q[i].
//
// MXFP4 stands here doubled, with half the scale, so that its halves are integers: |Q| <= 12. A
// block whose exponent byte is below 80 is all zeros. An exponent byte above 190 does not pass
// Check; here its D is NaN, so that whatever is computed with it ends as a fault and never as a
// number.
type Block32 struct {
	Q [32]int8
	D float32
}

// DecodeK fills b from the block of format f at the beginning of src.
func DecodeK(b *BlockK, f Format, src []byte) {
	switch f {
	case Q4K:
		decodeScales(b, src[:16:16])
		decodeNibbles(&b.Q, src[16:144:144])
	case Q5K:
		decodeScales(b, src[:16:16])
		decodeNibbles(&b.Q, src[48:176:176])
		addFifthBits(&b.Q, src[16:48:48])
	case Q6K:
		decodeQ6(b, src[:210:210])
	default:
		panic(fmt.Sprintf("BUG: %s is not a K-quant", f))
	}
}

// decodeScales reads the head of a Q4_K or Q5_K block: d, dmin, and eight scales and minimums of 6
// bits in 12 bytes. The first four of each are the low 6 bits of bytes 0-3 and 4-7; the last four
// have their low 4 bits in bytes 8-11 and their upper 2 in the upper bits of the first four.
func decodeScales(b *BlockK, head []byte) {
	b.D = F16ToF32(le.Uint16(head))
	b.DMin = F16ToF32(le.Uint16(head[2:]))
	p := head[4:16]
	for j := range 4 {
		low, high := j, j+4
		setScale(b, low, p[j]&63, p[j+4]&63)
		setScale(b, high, p[j+8]&15|p[j]>>6<<4, p[j+8]>>4|p[j+4]>>6<<4)
	}
}

func setScale(b *BlockK, j int, scale, minimum uint8) {
	b.Scale[2*j], b.Scale[2*j+1] = int8(scale), int8(scale)
	b.Min[j] = minimum
}

// Eight values are decoded at a time, as the bytes of a word.
const (
	ones    = 0x0101010101010101
	nibbles = 15 * ones
	crumbs  = 3 * ones
)

// decodeNibbles spreads four runs of 32 bytes: the low nibbles of a run are 32 values, the high
// nibbles the next 32.
func decodeNibbles(q *[256]int8, src []byte) {
	out := octets(q)
	for i := 0; i < 128; i += 8 {
		v := le.Uint64(src[i:])
		at := i + i&^31
		le.PutUint64(out[at:], v&nibbles)
		le.PutUint64(out[at+32:], v>>4&nibbles)
	}
}

// addFifthBits adds 16 to the values whose fifth bit is set: bit j of byte i belongs to value 32*j
// + i.
func addFifthBits(q *[256]int8, src []byte) {
	out := octets(q)
	for i := 0; i < 32; i += 8 {
		v := le.Uint64(src[i:])
		for j := 0; j < 8; j++ {
			at := out[32*j+i:]
			le.PutUint64(at, le.Uint64(at)|v>>j&ones<<4)
		}
	}
}

// decodeQ6 reads a Q6_K block: two halves of 128 values. Within a half, value 32*j + i has its low
// nibble in byte 32*(j&1) + i of that half's nibbles, the low one for j < 2, and its upper two bits
// in byte i of the bit pairs, pair j.
func decodeQ6(b *BlockK, src []byte) {
	q := octets(&b.Q)
	for half := 0; half < 2; half++ {
		low, high, out := src[64*half:], src[128+32*half:], q[128*half:]
		for i := 0; i < 32; i += 8 {
			l0, l1, h := le.Uint64(low[i:]), le.Uint64(low[i+32:]), le.Uint64(high[i:])
			le.PutUint64(out[i:], minus32(l0&nibbles|h&crumbs<<4))
			le.PutUint64(out[i+32:], minus32(l1&nibbles|h>>2&crumbs<<4))
			le.PutUint64(out[i+64:], minus32(l0>>4&nibbles|h>>4&crumbs<<4))
			le.PutUint64(out[i+96:], minus32(l1>>4&nibbles|h>>6&crumbs<<4))
		}
	}
	for j := range b.Scale {
		b.Scale[j] = int8(src[192+j])
	}
	b.Min = [8]uint8{}
	b.D, b.DMin = F16ToF32(le.Uint16(src[208:])), 0
}

// minus32 takes 32 off each byte of v, which are 0 to 63: turning bit 5 round leaves the result in
// 6 bits, and the sign is copied up.
func minus32(v uint64) uint64 {
	v ^= 0x20 * ones
	sign := v & (0x20 * ones)
	return v | sign<<1 | sign<<2
}

// octets views values as bytes.
func octets(q *[256]int8) *[256]byte { return (*[256]byte)(unsafe.Pointer(q)) }

// Decode32 fills b from the block of format f at the beginning of src.
func Decode32(b *Block32, f Format, src []byte) {
	switch f {
	case Q8_0:
		b.D = F16ToF32(le.Uint16(src))
		copy((*[32]byte)(unsafe.Pointer(&b.Q))[:], src[2:34])
	case MXFP4:
		b.D = halfScale(src[0])
		if b.D == 0 {
			b.Q = [32]int8{}
			return
		}
		for i, v := range src[1:17:17] {
			b.Q[i] = doubled[v&15]
			b.Q[i+16] = doubled[v>>4]
		}
	default:
		panic(fmt.Sprintf("BUG: %s has no blocks of 32", f))
	}
}

// doubled is twice the value of each FP4 (E2M1) code.
var doubled = [16]int8{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}

// halfScale returns half the scale that the exponent byte e of an MXFP4 block stands for,
// 2^(e-128).
func halfScale(e byte) float32 {
	switch {
	case e < minExponent:
		return 0
	case e > maxExponent:
		return float32(math.NaN())
	}
	return math.Float32frombits(uint32(e-1) << 23)
}
