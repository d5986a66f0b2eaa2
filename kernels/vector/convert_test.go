package vector

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"testing"

	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// narrowing is an operation that writes bytes, beside what it makes of one block.
type narrowing struct {
	format quant.Format
	run    func(o *Ops, dst []byte, src []float32)
	want   func(dst []byte, src []float32)
}

var narrowings = []narrowing{
	{quant.F16, (*Ops).ToF16, func(dst []byte, src []float32) {
		binary.LittleEndian.PutUint16(dst, nearestHalf(src[0]))
	}},
	{quant.Q8_0, (*Ops).ToQ8, blockOfQ8},
}

// halves are the numbers of binary16 from 0 on, in their order.
var halves = func() (list []float64) {
	for h := range uint16(0x7c00) {
		list = append(list, float64(quant.F16ToF32(h)))
	}
	return list
}()

// nearestHalf searches for the binary16 that ToF16 is to find.
func nearestHalf(v float32) uint16 {
	if v != v {
		return 0x7e00
	}
	sign, a := uint16(0), math.Abs(float64(v))
	if math.Signbit(float64(v)) {
		sign = 0x8000
	}
	h := sort.SearchFloat64s(halves, a) // the first that is not below a
	if h == len(halves) {
		return sign | uint16(h-1)
	}
	if h > 0 {
		up, down := halves[h]-a, a-halves[h-1]
		if down < up || down == up && h%2 != 0 {
			h--
		}
	}
	return sign | uint16(h)
}

// nearestBF16 rounds by arithmetic of binary64, in units of the last place.
func nearestBF16(v float32) uint16 {
	switch {
	case v != v:
		return 0x7fc0
	case v-v != 0:
		return uint16(math.Float32bits(v) >> 16)
	}
	unit := math.Ldexp(1, max(-126, math.Ilogb(float64(v)))-7)
	return uint16(math.Float32bits(float32(math.RoundToEven(float64(v)/unit)*unit)) >> 16)
}

// blockOfQ8 follows the words of ToQ8.
func blockOfQ8(dst []byte, src []float32) {
	const limit = 127 * 65504
	amax := float32(0)
	for _, v := range src {
		switch {
		case v != v || v > limit || v < -limit:
			amax = limit
		case v < 0:
			amax = max(amax, -v)
		default:
			amax = max(amax, v)
		}
	}
	d := nearestHalf(float32(amax * (1 / float32(127))))
	clear(dst)
	if d == 0 {
		return
	}
	binary.LittleEndian.PutUint16(dst, d)
	for i, v := range src {
		q := math.RoundToEven(float64(float32(v * float32(127*ref.Recip(amax)))))
		if q > 127 || v != v {
			q = 127
		}
		dst[2+i] = byte(int8(max(q, -127)))
	}
}

// unlikeBytes says where a and b differ. A NaN of two bytes is like any other.
func unlikeBytes(f quant.Format, a, b []byte) string {
	if bytes.Equal(a, b) {
		return ""
	}
	if f == quant.F16 || f == quant.BF16 {
		x, y := make([]float32, len(a)/2), make([]float32, len(b)/2)
		quant.Dequantize(x, f, a)
		quant.Dequantize(y, f, b)
		return unlike(x, y)
	}
	for i := range a {
		if a[i] != b[i] {
			return fmt.Sprintf("byte %d of block %d is %#02x, want %#02x", i%34, i/34, a[i], b[i])
		}
	}
	return ""
}

// narrowed runs f between the guards of two regions and says in what it was wrong.
func (f narrowing) narrowed(o *Ops, x []float32, regions []*region, where int) string {
	values, size := f.format.Block()
	src, dst := place[float32](regions[0], len(x), where), place[byte](regions[1], len(x)/values*size, where)
	copy(src, x)
	f.run(o, dst, src)
	want := make([]byte, len(dst))
	for i := range len(x) / values {
		f.want(want[i*size:][:size], x[i*values:][:values])
	}
	if !regions[0].intact() || !regions[1].intact() {
		return "wrote outside"
	}
	if d := unlike(src, x); d != "" {
		return "source: " + d
	}
	return unlikeBytes(f.format, dst, want)
}

func TestNarrowingGivesTheNearestValue(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		r, _ := newRand(t)
		regions := []*region{newRegion(t, 32<<10), newRegion(t, 32<<10)}
		for turn, n := range append([]int{1024, 2048}, lengths...) {
			for kind := range kinds + 2 {
				x := make([]float32, n)
				fillNarrow(x, kind, r)
				for _, f := range narrowings {
					if values, _ := f.format.Block(); n%values != 0 {
						continue
					}
					if d := f.narrowed(o, x, regions, (turn+kind)%places); d != "" {
						t.Errorf("%s, kind %d, %d values: %s", f.format, kind, n, d)
					}
				}
			}
		}
	})
}

// fillNarrow knows two kinds more: values of all sizes that a binary16 has, and those at half the way
// between two of them.
func fillNarrow(x []float32, kind int, r *rand.Rand) {
	fill(x, kind%kinds, r)
	if kind < kinds {
		return
	}
	scale := math.Ldexp(1, r.IntN(60)-35)
	for i := range x {
		x[i] = float32(r.NormFloat64() * scale)
		if kind == kinds+1 {
			h := r.IntN(len(halves) - 1)
			x[i] = float32((halves[h] + halves[h+1]) / 2)
			if r.IntN(2) == 0 {
				x[i] = math.Float32frombits(math.Float32bits(x[i]) ^ 1 | uint32(r.IntN(2))<<31)
			}
		}
	}
}

// TestNarrowingKnowsEveryUpperHalf has each pattern of the upper 16 bits with the lower ones at their
// ends and where a binary16 rounds.
func TestNarrowingKnowsEveryUpperHalf(t *testing.T) {
	lower := []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0xfff, 0x1000, 0x1001, 0x3000}
	eachVariant(t, func(t *testing.T, o *Ops) {
		x := make([]float32, 1<<16)
		for _, low := range lower {
			for i := range x {
				x[i] = math.Float32frombits(uint32(i)<<16 | low)
			}
			f := narrowings[0]
			got, want := make([]byte, 2<<16), make([]byte, 2<<16)
			f.run(o, got, x)
			for i := range x {
				f.want(want[2*i:], x[i:])
			}
			if d := unlikeBytes(f.format, got, want); d != "" {
				t.Errorf("%s, lower bits %#x: %s", f.format, low, d)
			}
		}
	})
}

// TestToQ8HasEveryScale has blocks with each largest value that matters, positive and negative, in each
// place of a block, and small ones and ties beside it.
func TestToQ8HasEveryScale(t *testing.T) {
	tops := []float32{
		0, 0x1p-149, 0x1p-126, 0x1p-40, 0x1.fffffep-41, 127 * 0x1p-25, 127*0x1p-25 + 0x1p-42, 127 * 0x1p-24, 1e-5, 127 * 0x1p-14,
		1, 127, 126.5, 1000, 127 * 65504, 127*65504 + 1, 127 * 65519, 127 * 65520, 127 * 65536, 1e9, 0x1p40, 0x1p64, 0x1p100, math.MaxFloat32, inf, nan,
	}
	eachVariant(t, func(t *testing.T, o *Ops) {
		r, _ := newRand(t)
		regions := []*region{newRegion(t, 4<<10), newRegion(t, 4<<10)}
		for _, top := range tops {
			for at := range 32 {
				x := make([]float32, 96)
				for i := range x {
					x[i] = float32(top * (float32(r.IntN(255)-127) + 0.5*float32(r.IntN(2))) / 128)
				}
				x[at], x[32+at], x[64+at] = top, -top, float32(top*0.99)
				if d := narrowings[1].narrowed(o, x, regions, at%places); d != "" {
					t.Errorf("largest %g at %d: %s", top, at, d)
				}
			}
		}
	})
}

// TestToQ8ComesBack looks at what a block stands for: no value is further off than half a step and what
// its scale has lost as a binary16.
func TestToQ8ComesBack(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		r, _ := newRand(t)
		x, back, packed := make([]float32, 3200), make([]float32, 3200), make([]byte, 3400)
		fill(x, outlying, r)
		o.ToQ8(packed, x)
		o.Dequantize(back, quant.Q8_0, packed)
		for b := 0; b < len(x); b += 32 {
			amax := float64(o.Max(x[b : b+32]))
			for _, v := range x[b : b+32] {
				amax = max(amax, math.Abs(float64(v)))
			}
			for i, v := range x[b : b+32] {
				if far := math.Abs(float64(v) - float64(back[b+i])); far > amax*(0.5001/127+0x1p-11) {
					t.Fatalf("value %d is %g and comes back as %g; the largest is %g", b+i, v, back[b+i], amax)
				}
			}
		}
	})
}

func TestNarrowingDoesNotAllocate(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		x := make([]float32, 96)
		for _, f := range narrowings {
			_, size := f.format.Block()
			dst := make([]byte, 96*size)
			n, err := f.format.RowBytes(len(x))
			if err != nil {
				t.Fatal(err)
			}
			if allocs := testing.AllocsPerRun(5, func() { f.run(o, dst[:n], x) }); allocs != 0 {
				t.Errorf("%s: %v allocations", f.format, allocs)
			}
		}
	})
}

// TestNarrowingRefusesOtherLengths is about bugs of the caller's.
func TestNarrowingRefusesOtherLengths(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		for name, f := range map[string]func(){
			"ToF16, short": func() { o.ToF16(make([]byte, 62), make([]float32, 32)) },
			"ToF16, long":  func() { o.ToF16(make([]byte, 66), make([]float32, 32)) },
			"ToQ8, short":  func() { o.ToQ8(make([]byte, 33), make([]float32, 32)) },
			"ToQ8, part":   func() { o.ToQ8(make([]byte, 34), make([]float32, 33)) },
		} {
			if !panics(f) {
				t.Errorf("%s did not panic", name)
			}
		}
	})
}
