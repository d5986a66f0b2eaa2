package ref

import (
	"fmt"
	"testing"

	"kvasir/kernels/quant"
)

// BenchmarkMatMul measures the products of an expert of Qwen3.5-122B-A10B, hidden size 3072 to 256
// of its 1024 outputs, in products a second.
func BenchmarkMatMul(b *testing.B) {
	for _, f := range quant.Supported() {
		for _, rows := range []int{1, 64, 512} {
			b.Run(fmt.Sprintf("%s/rows=%d", f, rows), func(b *testing.B) { benchmarkMatMul(b, f, rows) })
		}
	}
}

func benchmarkMatMul(b *testing.B, f quant.Format, rows int) {
	const in, out = 3072, 256
	m := syntheticMatrix(f, in, out, 1)
	x := randomRows(HiddenFormat(f), rows, in, 2)
	dst := make([]float32, rows*out)
	var s Scratch
	b.ReportAllocs()
	for b.Loop() {
		m.MatMul(dst, x, 0, out, &s)
	}
	b.ReportMetric(float64(rows)*in*out*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
}
