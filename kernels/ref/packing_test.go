package ref

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// slowPack writes a partial bit by bit, as the format is described.
func slowPack(sum []int64) []byte {
	var out []byte
	for block := range slices.Chunk(sum, 256) {
		w := slowWidth(block)
		out = append(out, byte(w))
		var stream []bool
		for _, v := range block {
			for n := range w {
				stream = append(stream, v>>n&1 == 1)
			}
		}
		for i, bit := range stream {
			if i%8 == 0 {
				out = append(out, 0)
			}
			if bit {
				out[len(out)-1] |= 1 << (i % 8)
			}
		}
	}
	return out
}

// slowWidth tries every width.
func slowWidth(block []int64) int {
	for w := 0; ; w++ {
		fits := true
		for _, v := range block {
			if w == 0 {
				fits = fits && v == 0
			} else {
				fits = fits && v >= -1<<(w-1) && v < 1<<(w-1)
			}
		}
		if fits {
			return w
		}
	}
}

func drawSums(t *rapid.T) []int64 {
	var sum []int64
	for range rapid.IntRange(0, 3).Draw(t, "blocks") {
		limit := int64(1)<<rapid.IntRange(0, 51).Draw(t, "bits") - 1
		n := rapid.SampledFrom([]int{256, 256, 1, 31, 255}).Draw(t, "length")
		sum = append(sum, rapid.SliceOfN(rapid.Int64Range(-limit-1, limit), n, n).Draw(t, "values")...)
	}
	return sum
}

func TestPackingIsTheDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sum := drawSums(t)
		want := slowPack(sum)
		got := AppendPartial([]byte("before"), sum)
		if !bytes.Equal(got, append([]byte("before"), want...)) {
			t.Fatalf("%d is packed as %x, want %x", sum, got[6:], want)
		}
		if most := MaxPartialBytes(len(sum)); len(want) > most {
			t.Fatalf("%d values take %d bytes, at most %d were promised", len(sum), len(want), most)
		}
		back := make([]int64, len(sum))
		for i := range back {
			back[i] = 77
		}
		n, err := ParsePartial(back, append(want, 1, 2, 3))
		if err != nil || n != len(want) || !slices.Equal(back, sum) {
			t.Fatalf("%x comes back as %d, %d bytes, error %v, want %d, %d bytes", want, back, n, err, sum, len(want))
		}
	})
}

func repeat(n int, v ...int64) []int64 {
	var s []int64
	for len(s) < n {
		s = append(s, v...)
	}
	return s[:n]
}

// unspace reads hex with spaces, and "xx*N" for a byte N times.
func unspace(t *testing.T, s string) []byte {
	t.Helper()
	var out []byte
	for _, f := range strings.Fields(s) {
		n := 1
		if at := strings.IndexByte(f, '*'); at >= 0 {
			if _, err := fmt.Sscan(f[at+1:], &n); err != nil {
				t.Fatal(err)
			}
			f = f[:at]
		}
		b, err := hex.DecodeString(f)
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			out = append(out, b...)
		}
	}
	return out
}

func TestPackingGolden(t *testing.T) {
	for _, c := range []struct {
		name string
		sum  []int64
		hex  string
	}{
		{"nothing", nil, ""},
		{"one zero", []int64{0}, "00"},
		{"a block of zeros", make([]int64, 256), "00"},
		{"zeros and one more", make([]int64, 257), "00 00"},
		{"minus one", []int64{-1}, "01 01"},
		{"one", []int64{1}, "02 01"},
		{"-1 and 0 fit one bit", []int64{0, -1, -1, 0, 0, 0, 0, 0, -1}, "01 06 01"},
		{"two bits", []int64{1, 0, -1, -2}, "02 b1"},
		{"three bits", []int64{3, -4, 1}, "03 63 00"},
		{"a byte each", []int64{127, -128}, "08 7f 80"},
		{"nine bits", []int64{128, -256, 255}, "09 80 00 fe 03"},
		{"13 bits across words", repeat(6, 4095, -4096), "0d ff 0f 00 fe 3f 00 f8 ff 00 20"},
		{"52 bits", []int64{1<<51 - 1, -1 << 51}, "34 ff ff ff ff ff ff 07 00 00 00 00 00 80"},
		{"each block has its width", append(repeat(256, -1), 5), "01 ff*32 04 05"},
	} {
		want := unspace(t, c.hex)
		if got := AppendPartial(nil, c.sum); !bytes.Equal(got, want) {
			t.Errorf("%s: % x, want % x", c.name, got, want)
		}
		if slow := slowPack(c.sum); !bytes.Equal(slow, want) {
			t.Errorf("%s: bit by bit % x, want % x", c.name, slow, want)
		}
		back := make([]int64, len(c.sum))
		if n, err := ParsePartial(back, want); err != nil || n != len(want) || !slices.Equal(back, c.sum) {
			t.Errorf("%s: comes back as %d, %d bytes, error %v", c.name, back, n, err)
		}
	}
}

func TestPackingRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		values int
		hex    string
		say    string
	}{
		{"no width", 1, "", "values 0 to 0: the bytes end before the width"},
		{"no second width", 257, "00", "values 256 to 256: the bytes end before the width"},
		{"53 bits", 1, "35 00 00 00 00 00 00 10", "width 53, want at most 52"},
		{"255 bits", 1, "ff 00*32", "width 255, want at most 52"},
		{"cut short", 256, "0d 01*415", "415 bytes for 256 values of 13 bits, want 416"},
		{"cut to the width", 2, "08", "0 bytes for 2 values of 8 bits, want 2"},
		{"zeros with a width", 2, "01 00", "width 1 where 0 is enough"},
		{"one bit too many", 2, "03 09", "width 3 where 2 is enough"},
		{"52 bits of minus one", 2, "34 ff*13", "width 52 where 1 is enough"},
		{"padding", 1, "02 05", "padding of 6 bits is not zero"},
		{"the last padding bit", 1, "02 81", "padding of 6 bits is not zero"},
		{"padding of the second block", 257, "01 ff*32 04 15", "values 256 to 256: padding of 4 bits is not zero"},
	} {
		_, err := ParsePartial(make([]int64, c.values), unspace(t, c.hex))
		if !errors.Is(err, ErrPartial) || !strings.Contains(fmt.Sprint(err), c.say) {
			t.Errorf("%s: error %v, want %v with %q", c.name, err, ErrPartial, c.say)
		}
	}
	full := AppendPartial(nil, repeat(600, 4095, -4096, 17))
	for n := range full {
		if _, err := ParsePartial(make([]int64, 600), full[:n]); !errors.Is(err, ErrPartial) {
			t.Fatalf("%d of %d bytes: error %v, want %v", n, len(full), err, ErrPartial)
		}
	}
}

func TestPackingOfTooMuchPanics(t *testing.T) {
	for _, v := range []int64{1 << 51, -1<<51 - 1, math.MaxInt64, math.MinInt64} {
		if said := panics(func() { AppendPartial(nil, []int64{v}) }); !strings.HasPrefix(said, "BUG: a partial needs") {
			t.Errorf("%d: panic %q, want BUG: …", v, said)
		}
	}
}

func TestPackingDoesNotAllocate(t *testing.T) {
	sum := repeat(3072, 4095, -4096, 17)
	buf := make([]byte, 0, MaxPartialBytes(len(sum)))
	packed := AppendPartial(nil, sum)
	if n := testing.AllocsPerRun(10, func() { buf = AppendPartial(buf[:0], sum) }); n != 0 {
		t.Errorf("%g allocations to pack, want 0", n)
	}
	if n := testing.AllocsPerRun(10, func() {
		if _, err := ParsePartial(sum, packed); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%g allocations to read, want 0", n)
	}
}

// FuzzParsePartial finds no bytes that panic, and none that are read and are not the one encoding
// of what was read.
func FuzzParsePartial(f *testing.F) {
	f.Add(uint16(1), []byte{0x34, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 7})
	f.Add(uint16(257), append(AppendPartial(nil, repeat(256, 1, -2)), 4, 5))
	f.Add(uint16(600), AppendPartial(nil, repeat(600, 4095, -4096, 17)))
	f.Fuzz(func(t *testing.T, values uint16, src []byte) {
		sum := make([]int64, values)
		n, err := ParsePartial(sum, src)
		if err != nil {
			return
		}
		if got := AppendPartial(nil, sum); !bytes.Equal(got, src[:n]) {
			t.Fatalf("%x is read as %d, which is packed as %x", src[:n], sum, got)
		}
	})
}

func BenchmarkPacking(b *testing.B) {
	src := source(1)
	sum := make([]int64, 3072)
	for i := range sum {
		sum[i] = int64(src.intn(8192)) - 4096 // 13 bits, as at exponent 11
	}
	packed := AppendPartial(nil, sum)
	b.Run("append", func(b *testing.B) {
		b.SetBytes(int64(8 * len(sum)))
		for b.Loop() {
			packed = AppendPartial(packed[:0], sum)
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.SetBytes(int64(8 * len(sum)))
		for b.Loop() {
			if _, err := ParsePartial(sum, packed); err != nil {
				b.Fatal(err)
			}
		}
	})
}
