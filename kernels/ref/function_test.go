package ref

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"testing"
)

// crc is the CRC-32/IEEE of the little-endian bits of f(at(0)), f(at(1)), … f(at(n-1)).
func crc(n int, at func(int) float32, f func(float32) float32) uint32 {
	var sum uint32
	buf := make([]byte, 0, 4<<12)
	for i := range n {
		buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(f(at(i))))
		if len(buf) == cap(buf) || i == n-1 {
			sum = crc32.Update(sum, crc32.IEEETable, buf)
			buf = buf[:0]
		}
	}
	return sum
}

func TestFunctionsGiveTheBitsOfTheDefinition(t *testing.T) {
	grid := func(from int) func(int) float32 {
		return func(i int) float32 { return float32(from+i) / 1024 }
	}
	for _, c := range []struct {
		name string
		n    int
		at   func(int) float32
		f    func(float32) float32
		want uint32
	}{
		{"recip of every mantissa", 1 << 23, func(i int) float32 { return math.Float32frombits(0x3F800000 + uint32(i)) }, Recip, 0xb318045d},
		{"exp from -87 to 88", 90112 + 89088 + 1, grid(-89088), Exp, 0x0cbe354c},
		{"silu from -44 to 88", 90112 + 45056 + 1, grid(-45056), Silu, 0xdf68c3cd},
	} {
		if got := crc(c.n, c.at, c.f); got != c.want {
			t.Errorf("%s: CRC %08x, want %08x", c.name, got, c.want)
		}
	}
}

func TestConstantsAreTheBitsOfTheDefinition(t *testing.T) {
	for _, c := range []struct {
		name string
		got  float32
		want uint32
	}{
		{"log2e", log2e, 0x3FB8AA3B}, {"ln2Hi", ln2Hi, 0x3F317200}, {"ln2Lo", ln2Lo, 0x35BFBE8E},
		{"magic", magic, 0x4B400000}, {"exp7", exp7, 0x39506967}, {"exp6", exp6, 0x3AB743CE},
		{"exp5", exp5, 0x3C088908}, {"exp4", exp4, 0x3D2AA9C1}, {"exp3", exp3, 0x3E2AAAAA},
		{"exp2", exp2, 0x3F000000}, {"1/127", inv127, 0x3C010204}, {"1/127 rounded", 1.0 / 127, 0x3C010204},
	} {
		if got := math.Float32bits(c.got); got != c.want {
			t.Errorf("%s: %08X, want %08X", c.name, got, c.want)
		}
	}
}

// ulps returns how far got is from want, in units of the last place of want.
func ulps(got float32, want float64) float64 {
	_, e := math.Frexp(want)
	return math.Abs(float64(got)-want) / math.Ldexp(1, e-24)
}

func TestRecipIsWithin1155Milliulp(t *testing.T) {
	worst := 0.0
	for i := range 1 << 23 { // every mantissa; a power of two changes nothing but the exponent
		x := math.Float32frombits(0x3F800000 + uint32(i))
		worst = max(worst, ulps(Recip(x), 1/float64(x)))
	}
	if worst > 1.155 {
		t.Errorf("off by %.4f ulp, want at most 1.155", worst)
	}
	for _, e := range []int{-64, -40, -1, 1, 40, 63} {
		x := float32(math.Ldexp(1.37, e))
		if got, want := Recip(x), float32(math.Ldexp(float64(Recip(1.37)), -e)); got != want {
			t.Errorf("recip(1.37 * 2^%d) is %g, want %g", e, got, want)
		}
	}
	for _, e := range []int{-64, 0, 64} {
		if got, want := Recip(pow2(e)), pow2(-e); got != want {
			t.Errorf("recip(2^%d) is %g, want %g", e, got, want)
		}
	}
}

// The 2.2e9 floats of the domain take minutes: a prime stride visits all binades and mantissas
// evenly, and a dense stretch lies around each place where n changes, at odd multiples of ln(2)/2.
func TestExpIsWithin987MilliulpAndMonotone(t *testing.T) {
	stride := uint32(997)
	if testing.Short() {
		stride = 99991
	}
	worst := 0.0
	check := func(x, before float32) float32 {
		got := Exp(x)
		worst = max(worst, ulps(got, math.Exp(float64(x))))
		if got < before {
			t.Fatalf("exp(%g) is %g, less than exp of a smaller number, %g", x, got, before)
		}
		return got
	}
	ascend := func(from, to, stride uint32) { // positive floats, as bits
		last := float32(0)
		for b := from; b <= to; b += stride {
			last = check(math.Float32frombits(b), last)
		}
	}
	descend := func(from, to, stride uint32) { // negative floats, from the largest magnitude up
		last := float32(0)
		for b := from; b >= to && b >= stride; b -= stride {
			last = check(-math.Float32frombits(b), last)
		}
	}
	ascend(0, math.Float32bits(88), stride)
	descend(math.Float32bits(87), 0, stride)
	for k := 1; k < 252; k += 2 {
		x := math.Float32bits(float32(float64(k) * math.Ln2 / 2))
		if math.Float32frombits(x+300) < 88 {
			ascend(x-300, x+300, 1)
		}
		if math.Float32frombits(x+300) < 87 {
			descend(x+300, x-300, 1)
		}
	}
	if worst > 0.987 {
		t.Errorf("off by %.4f ulp, want at most 0.987", worst)
	}
}

func TestSiluIsWithin3220Milliulp(t *testing.T) {
	stride := uint32(9973)
	if testing.Short() {
		stride = 199999
	}
	worst := 0.0
	for _, sign := range []uint32{0, 1 << 31} {
		limit := math.Float32bits(120)
		if sign != 0 {
			limit = math.Float32bits(44)
		}
		for b := uint32(1 << 23); b <= limit; b += stride { // from the smallest normal float on
			g := math.Float32frombits(b | sign)
			worst = max(worst, ulps(Silu(g), float64(g)/(1+math.Exp(-float64(g)))))
		}
	}
	if worst > 3.22 {
		t.Errorf("off by %.4f ulp, want at most 3.22", worst)
	}
}

func TestFunctionsOutsideTheirNumbers(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want float32
	}{
		{"exp(0)", Exp(0), 1},
		{"exp(-0)", Exp(float32(math.Copysign(0, -1))), 1},
		{"exp below -87", Exp(math.Nextafter32(-87, -88)), 0},
		{"exp(-inf)", Exp(-inf), 0},
		{"silu(0)", Silu(0), 0},
		{"silu below -44", Silu(math.Nextafter32(-44, -45)), 0},
		{"silu of much", Silu(3e38), 3e38},
		{"silu(inf)", Silu(inf), inf},
		{"silu(-inf)", Silu(-inf), 0},
		{"gated", gated(2, 3), float32(Silu(2) * 3)},
		{"gated of a small g", gated(-50, 3e38), 0},
	} {
		if c.got != c.want {
			t.Errorf("%s is %g, want %g", c.name, c.got, c.want)
		}
	}
	for _, v := range []float32{Silu(nan), gated(-inf, 1), gated(inf, 0), gated(nan, 1), gated(-50, inf), gated(1, nan), gated(-50, nan)} {
		if v == v {
			t.Errorf("a function of NaN or infinity is %g, want NaN", v)
		}
	}
	if e := Exp(-87); e < 0x1p-126 {
		t.Errorf("exp(-87) is %g: subnormal", e)
	}
	if s := 1 + Exp(44); s > 0x1p64 {
		t.Errorf("1 + exp(44) is %g: beyond the domain of recip", s)
	}
}
