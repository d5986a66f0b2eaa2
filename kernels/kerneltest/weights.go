package kerneltest

import (
	"encoding/binary"
	"fmt"

	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// weights is what the weights of a matrix are like: their digits, which is everything but the float
// scales, and those. The zero value is weights as trained models have them.
type weights struct {
	digits digits
	scales scales
}

type digits uint8

const (
	synthetic  digits = iota // of quant.Synthetic, with its scales
	anyDigits                // all bits random
	topDigits                // everything at its largest
	lowDigits                // everything at its smallest, integer scales and minimums at their largest
	endDigits                // each byte of the largest or the smallest
	digitKinds               // how many there are
)

type scales uint8

const (
	calm       scales = iota // small, of both signs: experts stay within range
	anyScale                 // all that is a number
	largest                  // of both signs
	subnormal                // of binary16, where the format has those
	zeroScales               // half of the blocks are zero, the rest calm
	scaleKinds               // how many there are
)

var (
	digitNames = [digitKinds]string{"synthetic", "any digits", "top digits", "low digits", "digits at the ends"}
	scaleNames = [scaleKinds]string{"calm", "any scale", "largest scales", "subnormal scales", "zero blocks"}
)

func (w weights) String() string {
	if w.digits == synthetic {
		return digitNames[synthetic]
	}
	return digitNames[w.digits] + ", " + scaleNames[w.scales]
}

// extremes returns all combinations of digits and scales.
func extremes() []weights {
	list := []weights{{}}
	for d := anyDigits; d < digitKinds; d++ {
		for c := calm; c < scaleKinds; c++ {
			list = append(list, weights{d, c})
		}
	}
	return list
}

// fill makes dst whole blocks of format f. quant.Check lets them pass.
func (w weights) fill(dst []byte, f quant.Format, s *source) {
	if w.digits == synthetic {
		quant.Synthetic(dst, f, s.next())
		return
	}
	_, size := f.Block()
	for ; len(dst) > 0; dst = dst[size:] {
		b := dst[:size:size]
		for i := range b {
			b[i] = w.digit(f, i, s)
		}
		w.fillScale(b, f, s)
	}
}

func (w weights) digit(f quant.Format, i int, s *source) byte {
	switch w.digits {
	case topDigits:
		return topByte(f, i)
	case lowDigits:
		return lowByte(f, i)
	case endDigits:
		if s.oneIn(2) {
			return topByte(f, i)
		}
		return lowByte(f, i)
	}
	return byte(s.next())
}

// topByte is byte i of a block whose values and integer scales are the largest. Floats get their
// exponent later.
func topByte(f quant.Format, i int) byte {
	switch {
	case f == quant.Q6K && i >= 192, f == quant.Q8_0: // int8
		return 127
	case f == quant.Q2K && i < 16: // scale 15, minimum 0
		return 0x0f
	case f == quant.MXFP4:
		return 0x77
	case f == quant.F32 && i == 3, (f == quant.F16 || f == quant.BF16) && i == 1: // no sign
		return 0x7f
	}
	return 0xff
}

// lowByte is byte i of a block whose values are the smallest.
func lowByte(f quant.Format, i int) byte {
	switch {
	case f == quant.Q6K && i >= 192, f == quant.Q8_0:
		return 0x80
	case f == quant.Q6K, f == quant.Q4_0, f == quant.Q5_0, f == quant.Q4_1, f == quant.Q5_1:
		return 0
	case f == quant.IQ4NL, f == quant.IQ4XS && i >= 8, f == quant.Q3K && i < 96, f == quant.Q2K && i >= 16:
		return 0
	case (f == quant.Q4K || f == quant.Q5K) && i >= 16:
		return 0
	}
	return 0xff
}

var le = binary.LittleEndian

// fillScale sets the float scales of one block, or the exponents of floats.
func (w weights) fillScale(b []byte, f quant.Format, s *source) {
	switch f {
	case quant.F32:
		le.PutUint32(b, w.float(le.Uint32(b), s))
	case quant.BF16:
		le.PutUint16(b, uint16(w.float(uint32(le.Uint16(b))<<16, s)>>16))
	case quant.F16:
		le.PutUint16(b, w.float16(le.Uint16(b), s))
	case quant.MXFP4:
		b[0] = w.exponentByte(s)
	case quant.Q6K:
		le.PutUint16(b[208:], w.half(s))
	case quant.Q3K:
		le.PutUint16(b[108:], w.half(s))
	case quant.Q2K:
		le.PutUint16(b[80:], w.half(s))
		le.PutUint16(b[82:], w.half(s))
	case quant.Q4K, quant.Q5K, quant.Q4_1, quant.Q5_1:
		le.PutUint16(b, w.half(s))
		le.PutUint16(b[2:], w.half(s))
	default:
		le.PutUint16(b, w.half(s))
	}
}

// half returns a binary16 scale.
func (w weights) half(s *source) uint16 {
	random := uint16(s.next())
	switch w.scales {
	case anyScale:
		if random>>10&31 == 31 {
			random &^= 1 << 10 // a number
		}
		return random
	case largest:
		return random&0x8000 | 0x7bff
	case subnormal:
		switch s.intn(4) {
		case 0:
			return random&0x8000 | 1
		case 1:
			return random&0x8000 | 0x3ff
		}
		return random & 0x83ff
	case zeroScales:
		if s.oneIn(2) {
			return random & 0x8000 // 0 or -0
		}
	}
	return random&0x83ff | uint16(s.intn(7))<<10
}

// exponentByte returns the scale of a block of MXFP4.
func (w weights) exponentByte(s *source) byte {
	switch w.scales {
	case anyScale:
		return byte(s.intn(191))
	case largest:
		return 190
	case subnormal: // there are none: the smallest
		return byte(80 + s.intn(2))
	case zeroScales:
		switch s.intn(4) {
		case 0:
			return 0
		case 1:
			return 79
		}
	}
	return byte(116 + s.intn(6))
}

// float returns the binary32 bits with another exponent.
func (w weights) float(bits uint32, s *source) uint32 {
	e := 127 - 12 + s.intn(10)
	switch w.scales {
	case anyScale:
		e = s.intn(200)
	case largest:
		e = 254
	case subnormal:
		e = 0
	case zeroScales:
		if s.oneIn(2) {
			return bits & (1 << 31)
		}
	}
	return bits&0x807fffff | uint32(e)<<23
}

// float16 is float for binary16.
func (w weights) float16(bits uint16, s *source) uint16 {
	e := 5 + s.intn(8)
	switch w.scales {
	case anyScale:
		e = s.intn(31)
	case largest:
		e = 30
	case subnormal:
		e = 0
	case zeroScales:
		if s.oneIn(2) {
			return bits & 0x8000
		}
	}
	return bits&0x83ff | uint16(e)<<10
}

// matrix returns a matrix over fresh weights.
func (w weights) matrix(f quant.Format, in, out int, s *source) *ref.Matrix {
	row, err := f.RowBytes(in)
	if err != nil {
		panic(fmt.Sprintf("BUG: %d weights a row: %v", in, err))
	}
	data := make([]byte, out*row)
	w.fill(data, f, s)
	m, err := ref.NewMatrix(f, in, out, data)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return &m
}

// triple is the formats of an expert.
type triple struct{ gate, up, down quant.Format }

func (t triple) String() string { return fmt.Sprintf("%s-%s-%s", t.gate, t.up, t.down) }

// expert returns an expert over fresh weights.
func (w weights) expert(t triple, hidden, ffn int, s *source) *ref.Expert {
	return &ref.Expert{
		Gate: *w.matrix(t.gate, hidden, ffn, s),
		Up:   *w.matrix(t.up, hidden, ffn, s),
		Down: *w.matrix(t.down, ffn, hidden, s),
	}
}
