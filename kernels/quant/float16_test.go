package quant

import (
	"math"
	"testing"
)

// slowF16 reads a binary16 as the standard writes it.
func slowF16(h uint16) float64 {
	sign := 1.0
	if h>>15 == 1 {
		sign = -1
	}
	exp, frac := int(h>>10&31), float64(h&1023)
	switch {
	case exp == 31 && frac != 0:
		return math.NaN()
	case exp == 31:
		return sign * math.Inf(1)
	case exp == 0:
		return sign * math.Ldexp(frac, -24)
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

func TestF16ToF32IsExact(t *testing.T) {
	for h := range 1 << 16 {
		got, want := float64(F16ToF32(uint16(h))), slowF16(uint16(h))
		if math.Float64bits(got) != math.Float64bits(want) && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Fatalf("%04x is %g, want %g", h, got, want)
		}
	}
}

func TestHalvesComeBackUnchanged(t *testing.T) {
	for h := range 1 << 16 {
		if v := F16ToF32(uint16(h)); v == v {
			if got := F32ToF16(v); got != uint16(h) {
				t.Fatalf("binary16 %04x is %g and comes back as %04x", h, v, got)
			}
		} else if got := F16ToF32(F32ToF16(v)); got == got {
			t.Fatalf("NaN %04x comes back as %g", h, got)
		}
		if v := BF16ToF32(uint16(h)); v == v {
			if got := F32ToBF16(v); got != uint16(h) {
				t.Fatalf("bfloat16 %04x is %g and comes back as %04x", h, v, got)
			}
		} else if got := BF16ToF32(F32ToBF16(v)); got == got {
			t.Fatalf("NaN %04x comes back as %g", h, got)
		}
	}
}

// Between two neighbours, everything goes to the nearer one, and the middle to the even one.
func TestHalvesRoundToNearestEven(t *testing.T) {
	for _, c := range []struct {
		name      string
		to        func(float32) uint16
		from      func(uint16) float32
		last      uint16
		afterLast float64
	}{
		{"binary16", F32ToF16, F16ToF32, 0x7bff, 65536},
		{"bfloat16", F32ToBF16, BF16ToF32, 0x7f7f, 0x1p128},
	} {
		for h := uint16(0); h <= c.last; h++ {
			low, high := float64(c.from(h)), float64(c.from(h+1))
			if h == c.last {
				high = c.afterLast
			}
			middle := float32((low + high) / 2)
			if float64(middle) != (low+high)/2 {
				continue // a subnormal bfloat16 has no binary32 half way to the next
			}
			if got, want := c.to(middle), h+h&1; got != want {
				t.Fatalf("%s: %g, half way after %04x, becomes %04x, want %04x", c.name, middle, h, got, want)
			}
			below, above := math.Nextafter32(middle, 0), math.Nextafter32(middle, 2*middle)
			if got := c.to(below); got != h {
				t.Fatalf("%s: %g becomes %04x, want %04x", c.name, below, got, h)
			}
			if got := c.to(above); got != h+1 {
				t.Fatalf("%s: %g becomes %04x, want %04x", c.name, above, got, h+1)
			}
			if got := c.to(-above); got != (h+1)|0x8000 {
				t.Fatalf("%s: %g becomes %04x, want %04x", c.name, -above, got, (h+1)|0x8000)
			}
		}
	}
}
