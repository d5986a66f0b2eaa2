package quant

import "testing"

// rate reports how many values a second a benchmark went through.
func rate(b *testing.B, values int) {
	b.ReportMetric(float64(values)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gvalues/s")
}

// BenchmarkDecode measures the integer view of blocks.
func BenchmarkDecode(b *testing.B) {
	const blocks = 64
	for _, f := range Supported() {
		values, bytes := f.Block()
		src := make([]byte, blocks*bytes)
		Synthetic(src, f, 1)
		switch {
		case f.IsK():
			b.Run(f.String(), func(b *testing.B) {
				var d BlockK
				for b.Loop() {
					for k := range blocks {
						DecodeK(&d, f, src[k*bytes:])
					}
				}
				rate(b, blocks*values)
			})
		case f.IsBlock32():
			b.Run(f.String(), func(b *testing.B) {
				var d Block32
				for b.Loop() {
					for k := range blocks {
						Decode32(&d, f, src[k*bytes:])
					}
				}
				rate(b, blocks*values)
			})
		}
	}
}

// BenchmarkDequantize measures the reading of weights as floats.
func BenchmarkDequantize(b *testing.B) {
	const n = 1 << 14
	for _, f := range Supported() {
		b.Run(f.String(), func(b *testing.B) {
			bytes, err := f.RowBytes(n)
			if err != nil {
				b.Fatal(err)
			}
			src, dst := make([]byte, bytes), make([]float32, n)
			Synthetic(src, f, 1)
			for b.Loop() {
				Dequantize(dst, f, src)
			}
			rate(b, n)
		})
	}
}

// BenchmarkSynthetic measures the making of weights.
func BenchmarkSynthetic(b *testing.B) {
	for _, f := range Supported() {
		b.Run(f.String(), func(b *testing.B) {
			_, bytes := f.Block()
			dst := make([]byte, 4096*bytes)
			b.SetBytes(int64(len(dst)))
			for b.Loop() {
				Synthetic(dst, f, 1)
			}
		})
	}
}
