package quant

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

// slowValue returns value i of a block, the parts of its value one by one: scale*q - minimum. It
// looks each bit up by itself, as the layouts are described, and shares nothing with the decoder.
func slowValue(f Format, b []byte, i int) (scale, q, minimum *big.Float) {
	half := func(at int) *big.Float { return num(slowF16(uint16(b[at]) | uint16(b[at+1])<<8)) }
	nibble := func(at, upper int) int { return int(b[at]) >> (4 * upper) & 15 }
	bit := func(at, n int) int { return int(b[at]) >> n & 1 }
	zero := num(0)
	switch f {
	case Q8_0:
		return half(0), num(float64(int8(b[2+i]))), zero
	case Q5_0:
		return half(0), num(float64(nibble(6+i%16, i/16) + 16*bit(2+i/8, i%8) - 16)), zero
	case Q4_0:
		return half(0), num(float64(nibble(2+i%16, i/16) - 8)), zero
	case Q4_1:
		return half(0), num(float64(nibble(4+i%16, i/16))), minus(zero, half(2))
	case Q5_1:
		return half(0), num(float64(nibble(8+i%16, i/16) + 16*bit(4+i/8, i%8))), minus(zero, half(2))
	case IQ4NL:
		return half(0), num(slowTable[nibble(2+i%16, i/16)]), zero
	case IQ4XS:
		sc := nibble(4+i/64, i/32%2) + 16*bit(2+i/128, i/32%4*2) + 32*bit(2+i/128, i/32%4*2+1)
		return mul(half(0), num(float64(sc-32))), num(slowTable[nibble(8+i/32*16+i%16, i%32/16)]), zero
	case Q2K:
		at, n := 16+i/128*32+i%32, i%128/32*2
		return mul(half(80), num(float64(nibble(i/16, 0)))), num(float64(bit(at, n) + 2*bit(at, n+1))),
			mul(half(82), num(float64(nibble(i/16, 1))))
	case Q3K:
		at, n, run := 32+i/128*32+i%32, i%128/32*2, i/16
		sc := nibble(96+run%8, run/8) + 16*bit(104+run%4, run/4*2) + 32*bit(104+run%4, run/4*2+1)
		q := bit(at, n) + 2*bit(at, n+1) + 4*bit(i%32, i/32)
		return mul(half(108), num(float64(sc-32))), num(float64(q - 4)), zero
	case MXFP4:
		code := nibble(1+i%16, i/16)
		value := []float64{0, 0.5, 1, 1.5, 2, 3, 4, 6}[code&7]
		if code&8 != 0 {
			value = -value
		}
		if b[0] < 80 {
			value = 0
		}
		return num(math.Ldexp(1, int(b[0])-127)), num(value), zero
	case Q6K:
		run, at := i/32, i%32 // 8 runs of 32
		lowByte := run/4*64 + run%2*32 + at
		q := nibble(lowByte, run%4/2) + 16*bit(128+run/4*32+at, run%4*2) + 32*bit(128+run/4*32+at, run%4*2+1)
		return mul(half(208), num(float64(int8(b[192+i/16])))), num(float64(q - 32)), zero
	}
	sub := i / 32
	sc, m := 0, 0
	for n := range 6 { // bit by bit: the first four hold their six bits together
		if sub < 4 {
			sc |= bit(4+sub, n) << n
			m |= bit(8+sub, n) << n
		} else if n < 4 {
			sc |= bit(8+sub, n) << n
			m |= bit(8+sub, n+4) << n
		} else {
			sc |= bit(sub, n+2) << n
			m |= bit(4+sub, n+2) << n
		}
	}
	nibbles := 16
	if f == Q5K {
		nibbles = 48
	}
	v := nibble(nibbles+sub/2*32+i%32, sub%2)
	if f == Q5K {
		v += 16 * bit(16+i%32, sub)
	}
	return mul(half(0), num(float64(sc))), num(float64(v)), mul(half(2), num(float64(m)))
}

// slowTable has the values of IQ4_NL and IQ4_XS.
var slowTable = [16]float64{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

func num(v float64) *big.Float         { return big.NewFloat(v).SetPrec(200) }
func mul(a, b *big.Float) *big.Float   { return new(big.Float).SetPrec(200).Mul(a, b) }
func minus(a, b *big.Float) *big.Float { return new(big.Float).SetPrec(200).Sub(a, b) }

func blockFormats() []Format {
	var list []Format
	for _, f := range Supported() {
		if !f.IsFloat() {
			list = append(list, f)
		}
	}
	return list
}

// halvesOf is where the binary16 scales and minimums of a block stand.
var halvesOf = map[Format][]int{
	Q4_0: {0}, Q4_1: {0, 2}, Q5_0: {0}, Q5_1: {0, 2}, Q8_0: {0}, Q2K: {80, 82}, Q3K: {108},
	Q4K: {0, 2}, Q5K: {0, 2}, Q6K: {208}, IQ4NL: {0}, IQ4XS: {0},
}

// randomBlock returns a block of random bits whose scales are finite and whose exponent is allowed.
func randomBlock(rng *rand.Rand, f Format) []byte {
	_, bytes := f.Block()
	b := make([]byte, bytes)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	for _, at := range halvesOf[f] {
		if b[at+1]&0x7c == 0x7c {
			b[at+1] ^= 4
		}
	}
	if f == MXFP4 {
		b[0] = byte(70 + rng.IntN(121))
	}
	return b
}

func TestDequantizeGivesTheNearestFloat(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, f := range blockFormats() {
		values, _ := f.Block()
		got := make([]float32, values)
		for range 24 {
			src := randomBlock(rng, f)
			Dequantize(got, f, src)
			for i, v := range got {
				scale, q, m := slowValue(f, src, i)
				if want, _ := minus(mul(scale, q), m).Float32(); v != want {
					t.Fatalf("%s value %d of %x is %g, want %g", f, i, src, v, want)
				}
			}
		}
	}
}

func TestDequantizeReadsFloats(t *testing.T) {
	one, minusTwo := []byte{0, 0, 0x80, 0x3f}, []byte{0, 0, 0, 0xc0}
	for _, c := range []struct {
		f   Format
		src []byte
	}{
		{F32, append(append([]byte{}, one...), minusTwo...)},
		{BF16, append(append([]byte{}, one[2:]...), minusTwo[2:]...)},
		{F16, []byte{0, 0x3c, 0, 0xc0}},
	} {
		got := make([]float32, 2)
		if Dequantize(got, c.f, c.src); got[0] != 1 || got[1] != -2 {
			t.Errorf("%s %x is %g, want 1 and -2", c.f, c.src, got)
		}
	}
}

// The integers and scales of the view, put together, are the values; nothing is lost or out of
// range.
func TestIntegerViewIsTheBlock(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, f := range blockFormats() {
		values, _ := f.Block()
		if !f.IsK() && !f.IsBlock32() {
			continue // has no integer view: rows stay float
		}
		for range 24 {
			src := randomBlock(rng, f)
			view := viewOf(f, src)
			for i := range values {
				scale, q, m := slowValue(f, src, i)
				if want := minus(mul(scale, q), m); view(i).Cmp(want) != 0 {
					t.Fatalf("%s value %d of %x: the view gives %v, want %v", f, i, src, view(i), want)
				}
			}
		}
	}
}

func viewOf(f Format, src []byte) func(i int) *big.Float {
	if f.IsK() {
		b := BlockK{DMin: -1, Min: [8]uint8{9, 9, 9, 9, 9, 9, 9, 9}} // stale values must not stay
		DecodeK(&b, f, src)
		return func(i int) *big.Float {
			scale := mul(num(float64(b.D)), num(float64(b.Scale[i/16])))
			return minus(mul(scale, num(float64(b.Q[i]))), mul(num(float64(b.DMin)), num(float64(b.Min[i/32]))))
		}
	}
	b := Block32{D: -1, Q: [32]int8{9, 9, 9}}
	Decode32(&b, f, src)
	return func(i int) *big.Float { return mul(num(float64(b.D)), num(float64(b.Q[i]))) }
}

func TestExtremeIntegers(t *testing.T) {
	full := make([]byte, 256)
	for i := range full {
		full[i] = 0xff
	}
	var b BlockK
	for _, c := range []struct {
		f          Format
		q, sc, min int
	}{{Q4K, 15, 63, 63}, {Q5K, 31, 63, 63}, {Q6K, 31, -1, 0}} {
		DecodeK(&b, c.f, full)
		for i := range b.Q {
			if int(b.Q[i]) != c.q || int(b.Scale[i/16]) != c.sc || int(b.Min[i/32]) != c.min {
				t.Fatalf("%s of ones, value %d: q %d, scale %d, minimum %d, want %d, %d, %d",
					c.f, i, b.Q[i], b.Scale[i/16], b.Min[i/32], c.q, c.sc, c.min)
			}
		}
	}
	DecodeK(&b, Q6K, make([]byte, 210))
	if b.Q[0] != -32 || b.Q[255] != -32 {
		t.Errorf("Q6_K of zeros has q %d and %d, want -32", b.Q[0], b.Q[255])
	}
}

func TestMXFP4ScaleLimits(t *testing.T) {
	for _, c := range []struct {
		exponent byte
		d        float32
	}{{0, 0}, {79, 0}, {80, 0x1p-48}, {127, 0.5}, {128, 1}, {190, 0x1p62}} {
		src := make([]byte, 17)
		src[0], src[1], src[16] = c.exponent, 0xf7, 0x2c
		var b Block32
		Decode32(&b, MXFP4, src)
		if b.D != c.d {
			t.Errorf("exponent byte %d: half scale %g, want %g", c.exponent, b.D, c.d)
		}
		want := [4]int8{12, -12, -4, 2} // values 0 and 16, 15 and 31
		if c.d == 0 {
			want = [4]int8{}
		}
		if got := [4]int8{b.Q[0], b.Q[16], b.Q[15], b.Q[31]}; got != want {
			t.Errorf("exponent byte %d: values %d, want %d", c.exponent, got, want)
		}
	}
	for e := 191; e <= 255; e++ {
		var b Block32
		Decode32(&b, MXFP4, append([]byte{byte(e)}, make([]byte, 16)...))
		if b.D == b.D {
			t.Errorf("exponent byte %d: half scale %g, want NaN", e, b.D)
		}
	}
}

func TestCheckRefuses(t *testing.T) {
	mx := make([]byte, 3*17)
	mx[17] = 190
	if err := Check(MXFP4, mx); err != nil {
		t.Errorf("exponent byte 190: %v", err)
	}
	mx[17] = 191
	for _, c := range []struct {
		name string
		f    Format
		src  []byte
		want error
		say  string
	}{
		{"exponent", MXFP4, mx, ErrBlock, "block 1 (byte 17) has exponent byte 191, want at most 190"},
		{"half a block", Q4K, make([]byte, 143), ErrLength, "143 bytes of Q4_K, want a multiple of 144"},
		{"half a float", F32, make([]byte, 6), ErrLength, "6 bytes of F32"},
		{"unsupported", 17, nil, ErrUnsupported, "IQ2_XS, want one of F32, F16, "},
		{"unknown", 12345, nil, ErrUnsupported, "type 12345"},
	} {
		if err := Check(c.f, c.src); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: error %q, want %q with %q", c.name, err, c.want, c.say)
		}
	}
	for _, f := range Supported() {
		_, bytes := f.Block()
		if err := Check(f, make([]byte, 2*bytes)); err != nil {
			t.Errorf("two blocks of %s: %v", f, err)
		}
	}
}

func TestRowBytes(t *testing.T) {
	for _, c := range []struct {
		f       Format
		n, want int
		err     error
	}{
		{F32, 7, 28, nil}, {F16, 7, 14, nil}, {BF16, 0, 0, nil}, {Q8_0, 64, 68, nil}, {MXFP4, 64, 34, nil},
		{Q5_0, 128, 88, nil}, {Q4K, 3072, 1728, nil}, {Q5K, 256, 176, nil}, {Q6K, 512, 420, nil},
		{Q4K, 128, 0, ErrLength}, {Q8_0, 33, 0, ErrLength}, {Q8_0, -32, 0, ErrLength},
		{F32, math.MaxInt, 0, ErrLength}, {16, 256, 0, ErrUnsupported},
		{Q4_0, 96, 54, nil}, {Q4_1, 96, 60, nil}, {Q5_1, 96, 72, nil}, {IQ4NL, 96, 54, nil},
		{Q2K, 768, 252, nil}, {Q3K, 768, 330, nil}, {IQ4XS, 768, 408, nil}, {Q2K, 32, 0, ErrLength}, {IQ4NL, 16, 0, ErrLength},
	} {
		if got, err := c.f.RowBytes(c.n); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("a row of %d values in %s: %d bytes, error %v, want %d, %v", c.n, c.f, got, err, c.want, c.err)
		}
	}
}

func TestFormatsAreNamed(t *testing.T) {
	for f, want := range map[Format]string{0: "F32", 12: "Q4_K", 39: "MXFP4", 17: "IQ2_XS", 4: "type 4", 1 << 31: "type 2147483648"} {
		if got := fmt.Sprint(f); got != want {
			t.Errorf("format %d is named %q, want %q", uint32(f), got, want)
		}
	}
	for f := range Format(64) {
		supported := false
		for _, s := range Supported() {
			supported = supported || s == f
		}
		if f.Supported() != supported {
			t.Errorf("%s: supported is %v, in the list %v", f, f.Supported(), supported)
		}
	}
}

func TestWrongLengthsPanic(t *testing.T) {
	for name, f := range map[string]func(){
		"dequantize":    func() { Dequantize(make([]float32, 256), Q4K, make([]byte, 143)) },
		"decode K":      func() { DecodeK(new(BlockK), Q8_0, make([]byte, 210)) },
		"decode 32":     func() { Decode32(new(Block32), Q4K, make([]byte, 144)) },
		"synthetic":     func() { Synthetic(make([]byte, 145), Q4K, 1) },
		"synthetic IQ2": func() { Synthetic(nil, 16, 1) },
		"decode Q2_K":   func() { DecodeK(new(BlockK), Q2K, make([]byte, 84)) },
		"decode Q4_0":   func() { Decode32(new(Block32), Q4_0, make([]byte, 18)) },
	} {
		func() {
			defer func() {
				if p, ok := recover().(string); !ok || !strings.HasPrefix(p, "BUG: ") {
					t.Errorf("%s: panic %v, want BUG: …", name, p)
				}
			}()
			f()
		}()
	}
}

// FuzzDequantize finds no bytes of whole blocks that panic or, allowed by Check and with finite
// scales, differ from the slow reading.
func FuzzDequantize(f *testing.F) {
	rng := rand.New(rand.NewPCG(5, 6))
	for i, format := range blockFormats() {
		f.Add(uint8(i), randomBlock(rng, format))
	}
	f.Fuzz(func(t *testing.T, pick uint8, src []byte) {
		format := blockFormats()[int(pick)%len(blockFormats())]
		values, bytes := format.Block()
		if len(src) < bytes {
			return
		}
		src = src[:bytes]
		got := make([]float32, values)
		Dequantize(got, format, src)
		for i, v := range got {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) || Check(format, src) != nil {
				return
			}
			scale, q, m := slowValue(format, src, i)
			if want, _ := minus(mul(scale, q), m).Float32(); v != want {
				t.Fatalf("%s value %d of %x is %g, want %g", format, i, src, v, want)
			}
		}
	})
}
