package ref

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// A partial travels packed, in blocks of 256 sums of which the last may be shorter. A block is
//
//	byte 0       w, the width: the smallest number of bits that holds every sum of the block in two's
//	             complement; 0 if all are zero; at most 52
//	then         the sums in order, w bits each, the least significant bit first, from the least
//	             significant bit of the byte on; unused upper bits of the last byte are 0
//
// So a partial has one encoding only, and ParsePartial takes no other.
const (
	partialBlock = 256
	partialWidth = 52
)

// ErrPartial: bytes that are not the packing of a partial.
var ErrPartial = errors.New("ref: damaged partial")

// MaxPartialBytes returns the most bytes that n sums can take.
func MaxPartialBytes(n int) int {
	last := n % partialBlock
	size := n / partialBlock * (1 + partialBlock*partialWidth/8)
	if last > 0 {
		size += 1 + packedBytes(last, partialWidth)
	}
	return size
}

// packedBytes returns the bytes of n values of w bits.
func packedBytes(n, w int) int { return (n*w + 7) / 8 }

// width returns the smallest w for these sums. A value v needs the bits of v, or of ^v where it is
// negative, and one for the sign.
func width(sum []int64) int {
	var any, magnitude uint64
	for _, v := range sum {
		any |= uint64(v)
		magnitude |= uint64(v ^ v>>63)
	}
	if any == 0 {
		return 0
	}
	return bits.Len64(magnitude) + 1
}

// AppendPartial appends the packing of sum to dst. Sums are within 52 bits, |v| < 2^51: the
// caller's promise, which 2,048 picks of a row keep.
func AppendPartial(dst []byte, sum []int64) []byte {
	for len(sum) > 0 {
		n := min(len(sum), partialBlock)
		dst = appendBlock(dst, sum[:n])
		sum = sum[n:]
	}
	return dst
}

func appendBlock(dst []byte, sum []int64) []byte {
	w := width(sum)
	if w > partialWidth {
		panic(fmt.Sprintf("BUG: a partial needs %d bits a value, at most %d are allowed", w, partialWidth))
	}
	dst = append(dst, byte(w))
	if w == 0 {
		return dst
	}
	mask := uint64(1)<<w - 1
	var acc uint64 // bits not yet written
	fill := 0      // how many, below 64
	for _, v := range sum {
		u := uint64(v) & mask
		acc |= u << (fill & 63)
		fill += w
		if fill >= 64 {
			dst = binary.LittleEndian.AppendUint64(dst, acc)
			fill -= 64
			acc = u >> ((w - fill) & 63)
		}
	}
	for ; fill > 0; fill -= 8 {
		dst = append(dst, byte(acc))
		acc >>= 8
	}
	return dst
}

// ParsePartial fills sum from the packing at the beginning of src and returns how many bytes it
// took. It returns an error, wrapping ErrPartial, for anything that AppendPartial does not write.
func ParsePartial(sum []int64, src []byte) (n int, err error) {
	for at := 0; at < len(sum); at += partialBlock {
		block := sum[at:min(at+partialBlock, len(sum))]
		used, err := parseBlock(block, src[n:])
		if err != nil {
			return n, fmt.Errorf("%w: values %d to %d: %w", ErrPartial, at, at+len(block)-1, err)
		}
		n += used
	}
	return n, nil
}

func parseBlock(sum []int64, src []byte) (int, error) {
	if len(src) == 0 {
		return 0, errors.New("the bytes end before the width")
	}
	w := int(src[0])
	if w > partialWidth {
		return 0, fmt.Errorf("width %d, want at most %d", w, partialWidth)
	}
	size := packedBytes(len(sum), w)
	if len(src)-1 < size {
		return 0, fmt.Errorf("%d bytes for %d values of %d bits, want %d", len(src)-1, len(sum), w, size)
	}
	unpack(sum, src[1:1+size], w)
	if pad := 8*size - len(sum)*w; pad > 0 && src[size]>>(8-pad) != 0 {
		return 0, fmt.Errorf("padding of %d bits is not zero", pad)
	}
	if need := width(sum); need != w {
		return 0, fmt.Errorf("width %d where %d is enough", w, need)
	}
	return 1 + size, nil
}

// unpack reads each value out of the eight bytes that begin at its first.
func unpack(sum []int64, src []byte, w int) {
	if w == 0 {
		clear(sum)
		return
	}
	at := uint(0)            // in bits; a value and the bits before it in its first byte are at most 7 + 52
	shift := uint(64-w) & 63 // the mask tells the compiler that no shift is too far
	for i := range sum {
		var v uint64
		if b := src[at/8:]; len(b) >= 8 {
			v = binary.LittleEndian.Uint64(b)
		} else {
			v = loadShort(b)
		}
		sum[i] = int64(v>>(at%8)<<shift) >> shift
		at += uint(w)
	}
}

// loadShort returns up to seven bytes as an integer.
func loadShort(src []byte) uint64 {
	var v uint64
	for i, b := range src {
		v |= uint64(b) << (8 * i)
	}
	return v
}
