package ref

import "math"

// Constants of Recip, Exp and Silu, as exact binary values; the bit patterns are those of the
// package comment, and a test compares them.
const (
	recipSeed = 0x7EF311C7

	log2e  = 0x1.715476p+0  // 0x3FB8AA3B
	ln2Hi  = 0x1.62E4p-1    // 0x3F317200: 15 significant bits, so that n*ln2Hi is exact
	ln2Lo  = 0x1.7F7D1Cp-20 // 0x35BFBE8E
	magic  = 0x1.8p+23      // 0x4B400000: adding it leaves rne(x) in the low bits of the sum
	magicB = 0x4B400000     // the bits of magic
	exp7   = 0x1.A0D2CEp-13 // 0x39506967
	exp6   = 0x1.6E879Cp-10 // 0x3AB743CE
	exp5   = 0x1.11121p-7   // 0x3C088908
	exp4   = 0x1.555382p-5  // 0x3D2AA9C1
	exp3   = 0x1.555554p-3  // 0x3E2AAAAA
	exp2   = 0.5            // 0x3F000000
	expMin = -87            // below it the result is 0, so that it is never subnormal

	siluMin = -44 // below it 1 + exp(-g) would leave the domain of Recip
)

// Recip returns 1/x to 1.155 ulp, for x from 2^-64 to 2^64.
func Recip(x float32) float32 {
	y := math.Float32frombits(recipSeed - math.Float32bits(x))
	for range 2 {
		p := float32(x * y)
		e := 2 - p
		y = float32(y * e)
	}
	p := float32(x * y)
	e := 1 - p
	q := float32(y * e)
	return y + q
}

// Exp returns e^x to 0.987 ulp, for x up to 88.
func Exp(x float32) float32 {
	if x < expMin {
		return 0
	}
	z := float32(x*log2e) + magic
	n := z - magic
	k := math.Float32bits(z) - magicB
	r := x - float32(n*ln2Hi)
	r -= float32(n * ln2Lo)

	p := float32(exp7)
	p = float32(p*r) + exp6
	p = float32(p*r) + exp5
	p = float32(p*r) + exp4
	p = float32(p*r) + exp3
	p = float32(p*r) + exp2

	rr := float32(r * r)
	p = float32(p * rr)
	p += r
	p++
	return math.Float32frombits(math.Float32bits(p) + k<<23)
}

// Silu returns g / (1 + e^-g) to 3.22 ulp. A NaN gives NaN; minus infinity gives 0, which is why
// gated looks at g itself.
func Silu(g float32) float32 {
	if g < siluMin {
		return 0
	}
	return float32(g * Recip(1+Exp(-g)))
}

// gated returns silu(g)*u, or NaN if g or u is not finite.
func gated(g, u float32) float32 {
	if !finite(g) || !finite(u) {
		return float32(math.NaN())
	}
	s := Silu(g)
	return float32(s * u)
}

// Gated returns a value of h, for a backend that computes the rest otherwise: silu(g)*u, or NaN if
// g or u is not finite.
func Gated(g, u float32) float32 { return gated(g, u) }

// magnitude returns the bits of |x|. As integers they are ordered as the magnitudes are, with
// infinity above all numbers and NaN above infinity.
func magnitude(x float32) uint32 { return math.Float32bits(x) &^ (1 << 31) }

// infinity is the magnitude of infinity; what is below it is a number.
const infinity = 0xff << 23

func finite(x float32) bool { return magnitude(x) < infinity }

// pow2 returns 2^e, for e from -126 to 127.
func pow2(e int) float32 { return math.Float32frombits(uint32(127+e) << 23) }
