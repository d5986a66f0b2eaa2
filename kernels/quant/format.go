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
//	Q4_0        32     18  f16 d, 16 bytes of nibbles                      value = d*(q - 8)
//	Q4_1        32     20  f16 d, f16 m, 16 bytes of nibbles               value = d*q + m
//	Q5_0        32     22  f16 d, 4 bytes of fifth bits, 16 bytes of
//	                       nibbles                                         value = d*(q - 16)
//	Q5_1        32     24  f16 d, f16 m, 4 bytes of fifth bits, 16 bytes
//	                       of nibbles                                      value = d*q + m
//	Q8_0        32     34  f16 d, 32 int8 q                                value = d*q
//	MXFP4       32     17  byte e, 16 bytes of nibbles                     value = 2^(e-128)*q
//	IQ4_NL      32     18  f16 d, 16 bytes of nibbles                      value = d*t[q]
//	Q2_K       256     84  16 bytes of 4-bit scales (low) and minimums,
//	                       64 bytes of bit pairs, f16 d, f16 dmin          value = d*sc*q - dmin*m
//	Q3_K       256    110  32 bytes of third bits, 64 bytes of bit pairs,
//	                       12 bytes of 6-bit scales, f16 d                 value = d*(sc - 32)*(q - 4)
//	Q4_K       256    144  f16 d, f16 dmin, 12 bytes of 6-bit scales and
//	                       minimums, 128 bytes of nibbles                  value = d*sc*q - dmin*m
//	Q5_K       256    176  as Q4_K, with 32 bytes of fifth bits before
//	                       the nibbles                                     value = d*sc*q - dmin*m
//	Q6_K       256    210  128 bytes of low nibbles, 64 bytes of upper
//	                       bit pairs, 16 int8 sc, f16 d                    value = d*sc*(q - 32)
//	IQ4_XS     256    136  f16 d, 2 bytes of upper bit pairs and 4 bytes
//	                       of low nibbles of 6-bit scales, 128 bytes of
//	                       nibbles                                         value = d*(sc - 32)*t[q]
//
// A scale and minimum of Q4_K, Q5_K and IQ4_XS belong to 32 values, those of Q2_K, Q3_K and Q6_K to
// 16. The table t has 16 values that are no multiples of each other.
//
// Kvasir computes on integers where the weights are Q8_0, MXFP4, Q4_K, Q5_K or Q6_K. It computes on
// the others as floats: files have them in a few tensors (Q5_0 and IQ4_NL where rows are no multiple
// of 256), or are old, or small at any price.
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
	Q4_0  Format = 2
	Q4_1  Format = 3
	Q5_0  Format = 6
	Q5_1  Format = 7
	Q8_0  Format = 8
	Q2K   Format = 10
	Q3K   Format = 11
	Q4K   Format = 12
	Q5K   Format = 13
	Q6K   Format = 14
	IQ4NL Format = 20
	IQ4XS Format = 23
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
	return []Format{
		F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, IQ4NL, IQ4XS, BF16, MXFP4,
	}
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
	case Q4_0, IQ4NL:
		return 32, 18
	case Q4_1:
		return 32, 20
	case Q5_0:
		return 32, 22
	case Q5_1:
		return 32, 24
	case Q8_0:
		return 32, 34
	case MXFP4:
		return 32, 17
	case Q2K:
		return 256, 84
	case Q3K:
		return 256, 110
	case IQ4XS:
		return 256, 136
	case Q4K:
		return 256, 144
	case Q5K:
		return 256, 176
	case Q6K:
		return 256, 210
	}
	return 0, 0
}

// IsK reports whether f is a K-quant that is computed on as integers, a BlockK: Q4_K, Q5_K or Q6_K.
func (f Format) IsK() bool { return f == Q4K || f == Q5K || f == Q6K }

// IsBlock32 reports whether f is computed on as integers in blocks of 32 with one scale, a Block32:
// Q8_0 or MXFP4.
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
