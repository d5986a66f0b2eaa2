// Package quant reads the block formats in which GGUF files store weights.
//
// It knows layouts and nothing of arithmetic beyond them: how many bytes a row has, what is refused
// when a file is loaded, which numbers a block stands for as floats (Dequantize), and the integers
// that the kernels compute on (BlockK, Block32), on which kernels/ref defines the dot product.
//
//	format  values  bytes  layout, in order; all fields are little-endian
//	F32          1      4  binary32
//	F16          1      2  binary16
//	BF16         1      2  upper half of a binary32
//	Q5_0        32     22  f16 d, 4 bytes of fifth bits, 16 bytes of
//	                       nibbles                                         value = d*(q - 16)
//	Q8_0        32     34  f16 d, 32 int8 q                                value = d*q
//	MXFP4       32     17  byte e, 16 bytes of nibbles                     value = 2^(e-128)*q
//	Q4_K       256    144  f16 d, f16 dmin, 12 bytes of 6-bit scales and
//	                       minimums, 128 bytes of nibbles                  value = d*sc*q - dmin*m
//	Q5_K       256    176  as Q4_K, with 32 bytes of fifth bits before
//	                       the nibbles                                     value = d*sc*q - dmin*m
//	Q6_K       256    210  128 bytes of low nibbles, 64 bytes of upper
//	                       bit pairs, 16 int8 sc, f16 d                    value = d*sc*(q - 32)
//
// A 6-bit scale and minimum belong to 32 values, an int8 scale of Q6_K to 16. Q5_0 stands in Q4_K_M
// files where rows are no multiple of 256; Kvasir computes on it as floats.
package quant

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// Format is the number of a tensor's type, as ggml numbers them and as GGUF files hold it.
type Format uint32

// The formats that Kvasir computes on.
const (
	F32   Format = 0
	F16   Format = 1
	Q5_0  Format = 6
	Q8_0  Format = 8
	Q4K   Format = 12
	Q5K   Format = 13
	Q6K   Format = 14
	BF16  Format = 30
	MXFP4 Format = 39
)

// Errors of this package; test with errors.Is.
var (
	// ErrUnsupported: the format is none of Supported.
	ErrUnsupported = errors.New("quant: unsupported format")
	// ErrLength: a number of values or bytes is not one of whole blocks.
	ErrLength = errors.New("quant: not whole blocks")
	// ErrBlock: a block holds what its format does not allow.
	ErrBlock = errors.New("quant: invalid block")
)

// names has every type that ggml has given a number, so that a message can name what a file holds
// also where Kvasir does not support it.
var names = map[Format]string{
	0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
	10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
	16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
	24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
	34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0",
}

// String returns ggml's name of the format, such as Q4_K, or "type N" for a number that has none.
func (f Format) String() string {
	if s, ok := names[f]; ok {
		return s
	}
	return fmt.Sprintf("type %d", uint32(f))
}

// Supported returns the formats that Kvasir computes on, in the order of their numbers.
func Supported() []Format {
	return []Format{F32, F16, Q5_0, Q8_0, Q4K, Q5K, Q6K, BF16, MXFP4}
}

// Supported reports whether Kvasir computes on f.
func (f Format) Supported() bool {
	values, _ := f.Block()
	return values > 0
}

// Block returns how many values a block of f holds, and in how many bytes; 0, 0 if f is
// unsupported.
func (f Format) Block() (values, bytes int) {
	switch f {
	case F32:
		return 1, 4
	case F16, BF16:
		return 1, 2
	case Q5_0:
		return 32, 22
	case Q8_0:
		return 32, 34
	case MXFP4:
		return 32, 17
	case Q4K:
		return 256, 144
	case Q5K:
		return 256, 176
	case Q6K:
		return 256, 210
	}
	return 0, 0
}

// IsK reports whether f is a K-quant: blocks of 256 values with scales of their own inside.
func (f Format) IsK() bool { return f == Q4K || f == Q5K || f == Q6K }

// IsBlock32 reports whether f has blocks of 32 values with one scale.
func (f Format) IsBlock32() bool { return f == Q8_0 || f == MXFP4 }

// IsFloat reports whether f holds floats and no blocks.
func (f Format) IsFloat() bool { return f == F32 || f == F16 || f == BF16 }

// RowBytes returns the bytes of a row of n values, or an error if n is not a number of whole
// blocks.
func (f Format) RowBytes(n int) (int, error) {
	values, bytes := f.Block()
	if values == 0 {
		return 0, f.unsupported()
	}
	if n < 0 || n%values != 0 {
		return 0, fmt.Errorf("%w: a row of %d values in %s, want a multiple of %d", ErrLength, n, f, values)
	}
	if n/values > math.MaxInt/bytes {
		return 0, fmt.Errorf("%w: a row of %d values in %s has more bytes than can be addressed", ErrLength, n, f)
	}
	return n / values * bytes, nil
}

func (f Format) unsupported() error {
	var list []string
	for _, s := range Supported() {
		list = append(list, s.String())
	}
	return fmt.Errorf("%w: %s, want one of %s", ErrUnsupported, f, strings.Join(list, ", "))
}

// maxExponent is the largest exponent byte of an MXFP4 block that is let in, minExponent the
// smallest that is not a block of zeros. Between them no product of a dot can overflow or be
// subnormal.
const (
	minExponent = 80
	maxExponent = 190
)

// Check returns an error for what is refused when weights of format f are loaded: a length that is
// not whole blocks, and an MXFP4 exponent byte above 190.
func Check(f Format, src []byte) error {
	_, bytes := f.Block()
	if bytes == 0 {
		return f.unsupported()
	}
	if len(src)%bytes != 0 {
		return fmt.Errorf("%w: %d bytes of %s, want a multiple of %d", ErrLength, len(src), f, bytes)
	}
	if f != MXFP4 {
		return nil
	}
	for i := 0; i < len(src); i += bytes {
		if src[i] > maxExponent {
			return fmt.Errorf("%w: MXFP4 block %d (byte %d) has exponent byte %d, want at most %d",
				ErrBlock, i/bytes, i, src[i], maxExponent)
		}
	}
	return nil
}
