package quant

import "fmt"

// Synthetic fills dst with blocks of format f whose values look like the weights of a trained
// model: about zero on average, with a standard deviation of 0.02 to 0.05. The same seed gives the
// same bytes on every machine. The length of dst is whole blocks: the caller's promise.
//
// All bits are random, and then the few that carry magnitude (scales, exponents) are narrowed.
func Synthetic(dst []byte, f Format, seed uint64) {
	if err := Check(f, dst[:0]); err != nil {
		panic("BUG: " + err.Error())
	}
	_, bytes := f.Block()
	if len(dst)%bytes != 0 {
		panic(fmt.Sprintf("BUG: %d bytes are not whole blocks of %s", len(dst), f))
	}
	fillRandom(dst, seed)
	if f == F32 || f == F16 || f == BF16 {
		narrowFloats(dst, f)
		return
	}
	for ; len(dst) > 0; dst = dst[bytes:] {
		narrowBlock(dst[:bytes:bytes], f)
	}
}

// fillRandom fills dst from the splitmix64 sequence of the seed.
func fillRandom(dst []byte, seed uint64) {
	next := func() uint64 {
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return z ^ z>>31
	}
	for ; len(dst) >= 8; dst = dst[8:] {
		le.PutUint64(dst, next())
	}
	if len(dst) > 0 {
		var last [8]byte
		le.PutUint64(last[:], next())
		copy(dst, last[:])
	}
}

// narrowFloats keeps each sign and mantissa, and leaves one bit of the exponent random: magnitudes
// are between 2^-6 and 2^-4.
func narrowFloats(dst []byte, f Format) {
	if f == F32 {
		for ; len(dst) > 0; dst = dst[4:] {
			le.PutUint32(dst, le.Uint32(dst)&0x80ffffff+0x3c800000)
		}
		return
	}
	random, base := uint16(0x87ff), uint16(0x2400)
	if f == BF16 {
		random, base = 0x80ff, 0x3c80
	}
	for ; len(dst) > 0; dst = dst[2:] {
		le.PutUint16(dst, le.Uint16(dst)&random+base)
	}
}

// narrowBlock sets the scales of one block so that its values have the promised spread. The
// constants are binary16 with the low bits left random.
func narrowBlock(b []byte, f Format) {
	narrow := func(at int, random, base uint16) {
		h := le.Uint16(b[at:])
		le.PutUint16(b[at:], h&random+base)
	}
	switch f {
	case Q8_0:
		narrow(0, 0x1ff, 0x0e80) // d about 4.4e-4; q has a deviation of 74
	case Q5_0:
		narrow(0, 0x1ff, 0x1b00) // d about 3.9e-3; q has a deviation of 9.2
	case MXFP4:
		b[0] = 120 + b[0]&1
	case Q4_0:
		narrow(0, 0x1ff, 0x1d00) // d about 5.9e-3; q has a deviation of 4.6
	case Q4_1:
		narrow(0, 0x1ff, 0x1d00)
		narrow(2, 0xff, 0xa920) // m about -7.5 d: it takes off the mean of q
	case Q5_1:
		narrow(0, 0x1ff, 0x1b00)
		narrow(2, 0xff, 0xab45) // m about -15.5 d
	case IQ4NL:
		narrow(0, 0x1ff, 0x0e80) // the table has a deviation of 68
	case IQ4XS:
		narrow(0, 0x7f, 0x0180) // d about 2.7e-5; table and scales together 1,260
	case Q2K:
		narrow(80, 0x1ff, 0x1800) // d about 2.4e-3
		narrow(82, 0xff, 0x1b00)  // dmin about 1.5 d
		for i := range 16 {
			b[i] |= 0x88 // scales and minimums of 8 to 15
		}
	case Q3K:
		narrow(108, 0x1ff, 0x1100) // d about 6.7e-4; q and scales together have a deviation of 43
	case Q4K:
		narrow(0, 0x1ff, 0x0800) // d about 1.5e-4
		narrow(2, 0xff, 0x1480)  // dmin about 7.5 d: the minimum takes off the mean of q
		widenScales(b[4:12])
	case Q5K:
		narrow(0, 0x1ff, 0x0400) // d about 7.6e-5
		narrow(2, 0xff, 0x1480)  // dmin about 15.5 d
		widenScales(b[4:12])
	case Q6K:
		narrow(208, 0x7f, 0x0180) // d about 2.6e-5, subnormal as in real files
	}
}

// widenScales sets the top bit of all 6-bit scales and minimums, so that they are 32 to 63.
func widenScales(p []byte) {
	for i := range p {
		p[i] |= 0xa0
	}
}
