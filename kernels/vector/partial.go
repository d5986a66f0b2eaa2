package vector

import (
	"math/bits"
	"slices"
	"unsafe"

	"kvasir/kernels/ref"
)

// Eight values of w bits are w bytes, so a block is groups of eight that begin at whole bytes. Up to
// 32 bits a value, half a group fits 16 bytes and assembly moves it at once; wider blocks go the way
// of kernels/ref.
const (
	partialBlock = 256
	widthMax     = 32
)

// packing is what assembly needs to know of a width. It stores and loads 16 bytes at the beginning of
// a group and 16 at its middle, so it reaches beyond the group's end.
type packing struct {
	shuffle  [2][32]uint8 // for each half of a group, which byte goes where: 8 a value
	left     [2][4]uint64 // how far a value then is from the top of its eight bytes
	carry    [16]uint8    // takes the byte that both halves share from the end of the first
	width    int          // bits a value, and bytes a group
	right    uint64       // 64 - width
	sign     uint64       // the upper bit of a value
	mask     uint64       // all its bits
	double   uint64       // twice the width
	rest     uint64       // 64 - double
	nibble   uint64       // 4 if the second half begins within a byte, else 0
	unnibble uint64       // 64 - nibble
	middle   int          // the byte in which the second half begins
}

// The offsets that the assembly has as numbers.
var (
	_ [unsafe.Offsetof(packing{}.width) - 144]struct{}
	_ [unsafe.Offsetof(packing{}.middle) - 208]struct{}
	_ [216 - unsafe.Sizeof(packing{})]struct{}
)

var packings = func() (list [widthMax + 1]packing) {
	for w := 1; w <= widthMax; w++ {
		list[w] = newPacking(w)
	}
	return list
}()

func newPacking(w int) packing {
	p := packing{
		width:  w,
		right:  uint64(64 - w),
		sign:   1 << (w - 1),
		mask:   1<<w - 1,
		double: uint64(2 * w),
		rest:   uint64(64 - 2*w),
		nibble: uint64(4 * (w & 1)),
		middle: w / 2,
	}
	p.unnibble = 64 - p.nibble
	const none = 0x80 // no byte goes here
	for half := range 2 {
		for i := range 4 {
			bit := i*w + half*int(p.nibble)
			p.left[half][i] = uint64(64 - w - bit%8)
			for b := range 8 {
				from := bit/8 + b
				if from >= 16 {
					from = none
				}
				p.shuffle[half][8*i+b] = uint8(from)
			}
		}
	}
	for i := range p.carry {
		p.carry[i] = none
	}
	if w%2 == 1 {
		p.carry[0] = uint8(p.middle)
	}
	return p
}

// direct returns how many of the groups at the beginning of size bytes assembly may store or load in
// place: those from which it does not reach beyond the end.
func (p *packing) direct(groups, size int) int {
	if room := size - p.middle - 16; room >= 0 {
		return min(groups, room/p.width+1)
	}
	return 0
}

// AppendPartial does what ref.AppendPartial does.
func (o *Ops) AppendPartial(dst []byte, sum []int64) []byte {
	if !o.simd() {
		return ref.AppendPartial(dst, sum)
	}
	for len(sum) > 0 {
		n := min(len(sum), partialBlock)
		dst = appendBlock(dst, sum[:n])
		sum = sum[n:]
	}
	return dst
}

func appendBlock(dst []byte, sum []int64) []byte {
	w := widthOf(sum)
	if w == 0 || w > widthMax {
		return ref.AppendPartial(dst, sum)
	}
	size := (len(sum)*w + 7) / 8
	dst = append(dst, byte(w))
	at := len(dst)
	dst = slices.Grow(dst, size)[:at+size]
	pack(dst[at:], sum, &packings[w])
	return dst
}

// widthOf returns the width of a block, as kernels/ref defines it.
func widthOf(sum []int64) int {
	var any, magnitude uint64
	n := len(sum) &^ 7
	if n > 0 {
		any, magnitude = vecBits(&sum[0], n)
	}
	for _, v := range sum[n:] {
		any |= uint64(v)
		magnitude |= uint64(v ^ v>>63)
	}
	if any == 0 {
		return 0
	}
	return bits.Len64(magnitude) + 1
}

// pack fills dst, which has exactly the bytes of sum.
func pack(dst []byte, sum []int64, p *packing) {
	n := p.direct(len(sum)/8, len(dst))
	if n > 0 {
		vecPack(&dst[0], &sum[0], n, p)
	}
	if 8*n < len(sum) {
		packEnd(dst[n*p.width:], sum[8*n:], p)
	}
}

// packEnd packs the last groups, of which one may be short, by way of a buffer with room beyond its
// end: they are at most middle + 16 + 2*width bytes.
func packEnd(dst []byte, sum []int64, p *packing) {
	var out [128]byte
	var last [8]int64
	n := len(sum) / 8
	if n > 0 {
		vecPack(&out[0], &sum[0], n, p)
	}
	if copy(last[:], sum[8*n:]) > 0 {
		vecPack(&out[n*p.width], &last[0], 1, p)
	}
	copy(dst, out[:])
}

// ParsePartial does what ref.ParsePartial does.
func (o *Ops) ParsePartial(sum []int64, src []byte) (n int, err error) {
	if !o.simd() {
		return ref.ParsePartial(sum, src)
	}
	for at := 0; at < len(sum); at += partialBlock {
		used, ok := parseBlock(sum[at:min(at+partialBlock, len(sum))], src[n:])
		if !ok {
			return ref.ParsePartial(sum, src) // which says what is wrong and where
		}
		n += used
	}
	return n, nil
}

// parseBlock reads one block from the beginning of src, and reports whether it is sound.
func parseBlock(sum []int64, src []byte) (used int, ok bool) {
	if len(src) == 0 {
		return 0, false
	}
	w := int(src[0])
	if w > widthMax {
		used, err := ref.ParsePartial(sum, src)
		return used, err == nil
	}
	if w == 0 {
		clear(sum)
		return 1, true
	}
	size := (len(sum)*w + 7) / 8
	if len(src)-1 < size {
		return 0, false
	}
	if pad := 8*size - len(sum)*w; pad > 0 && src[size]>>(8-pad) != 0 {
		return 0, false
	}
	p := &packings[w]
	// The width is the smallest if some value's sign differs from the bit below it; a value of one
	// bit has a zero below it.
	return 1 + size, unpack(sum, src[1:], size, p)&p.sign != 0
}

// unpack fills sum from the size bytes at the beginning of src, and returns the bits that differ, in
// any of the values, from the bit below them.
func unpack(sum []int64, src []byte, size int, p *packing) (differ uint64) {
	n := p.direct(len(sum)/8, len(src))
	if n > 0 {
		differ = vecUnpack(&sum[0], &src[0], n, p)
	}
	if 8*n < len(sum) {
		differ |= unpackEnd(sum[8*n:], src[n*p.width:size], p)
	}
	return differ
}

// unpackEnd is to unpack what packEnd is to pack.
func unpackEnd(sum []int64, src []byte, p *packing) (differ uint64) {
	var in [128]byte
	var last [8]int64
	copy(in[:], src)
	n := len(sum) / 8
	if n > 0 {
		differ = vecUnpack(&sum[0], &in[0], n, p)
	}
	if 8*n < len(sum) {
		differ |= vecUnpack(&last[0], &in[n*p.width], 1, p)
		copy(sum[8*n:], last[:])
	}
	return differ
}
