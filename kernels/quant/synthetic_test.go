package quant

import (
	"bytes"
	"hash/crc32"
	"math"
	"testing"
)

func TestSyntheticLooksLikeWeights(t *testing.T) {
	for _, f := range Supported() {
		const n = 1 << 16
		size, err := f.RowBytes(n)
		if err != nil {
			t.Fatal(err)
		}
		src, values := make([]byte, size), make([]float32, n)
		Synthetic(src, f, 42)
		if err := Check(f, src); err != nil {
			t.Errorf("%s: %v", f, err)
		}
		Dequantize(values, f, src)
		var sum, squares, largest float64
		for _, v := range values {
			sum += float64(v)
			squares += float64(v) * float64(v)
			largest = max(largest, math.Abs(float64(v)))
		}
		mean, deviation := sum/n, math.Sqrt(squares/n)
		if !(math.Abs(mean) < 0.004) || !(deviation > 0.02 && deviation < 0.05) || !(largest < 0.5) {
			t.Errorf("%s: mean %.4f, deviation %.4f, largest %.3f, want 0, 0.02 to 0.05, below 0.5", f, mean, deviation, largest)
		}
	}
}

// The bytes of a seed are the same on every machine and in every version: benchmarks rely on it.
func TestSyntheticIsItsSeed(t *testing.T) {
	want := map[Format]uint32{
		F32: 0x98327ecf, F16: 0x8a2215ef, BF16: 0xd7b31eac, Q5_0: 0xc81506ab, Q8_0: 0x87439204,
		Q4_0: 0x0275c0f3, Q4_1: 0x84894b10, Q5_1: 0xc381ebfb, Q2K: 0xe6b4149c, Q3K: 0x904e71a7,
		IQ4NL: 0x1fc0e07f, IQ4XS: 0x35d595fb,
		Q4K: 0xbb4a9d14, Q5K: 0x511e1951, Q6K: 0x9cc2ec65, MXFP4: 0x28ef056b,
	}
	for _, f := range Supported() {
		_, size := f.Block()
		a, b, c := make([]byte, 3*size), make([]byte, 3*size), make([]byte, 3*size)
		Synthetic(a, f, 7)
		Synthetic(b, f, 7)
		Synthetic(c, f, 8)
		if !bytes.Equal(a, b) {
			t.Errorf("%s: one seed gave two results", f)
		}
		if bytes.Equal(a, c) {
			t.Errorf("%s: two seeds gave one result", f)
		}
		if got := crc32.ChecksumIEEE(a); got != want[f] {
			t.Errorf("%s: CRC %#08x, want %#08x", f, got, want[f])
		}
	}
}
