package vector

import "testing"

// BenchmarkNarrow has 4096 values; bytes are those read.
func BenchmarkNarrow(b *testing.B) {
	r, _ := newRand(b)
	x, dst := make([]float32, 4096), make([]byte, 8192)
	fill(x, ordinary, r)
	eachBench(b, "ToF16", 4*4096, func(o *Ops) { o.ToF16(dst, x) })
	eachBench(b, "ToQ8", 4*4096, func(o *Ops) { o.ToQ8(dst[:4352], x) })
}

// BenchmarkArgmax has a vocabulary of 248320.
func BenchmarkArgmax(b *testing.B) {
	r, _ := newRand(b)
	x := make([]float32, 248320)
	fill(x, ordinary, r)
	eachBench(b, "248320", 4*248320, func(o *Ops) { o.Argmax(x) })
}
