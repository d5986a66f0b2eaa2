package cpu

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
)

// bigLayer is the experts of one layer of Qwen3.5-122B-A10B: 256 of hidden size 3072 and 1024 values of h.
// They are repacked from the same few, which saves time and shows nowhere.
func bigLayer(tb testing.TB, f quant.Format) *ref.Layer {
	few := syntheticLayer(tb, [3]quant.Format{f, f, f}, 3072, 1024, 4)
	l := &ref.Layer{Number: few.Number, Exponent: few.Exponent}
	for i := range 256 {
		l.Experts = append(l.Experts, few.Experts[i%len(few.Experts)])
	}
	return l
}

// best is the variant that is taken where nothing forces another.
func best() variant.Variant {
	list := variant.Available()
	return list[len(list)-1]
}

// BenchmarkLayer has every variant with assembly in Q4_K, and the best one in the other formats.
func BenchmarkLayer(b *testing.B) {
	if best() == variant.Portable {
		b.Skip("the portable kernels take many seconds for a layer; kernels/ref has a benchmark of them")
	}
	for _, v := range variant.Available()[1:] {
		benchmarkLayer(b, v, quant.Q4K, 1, 8, 64, 128, 512)
	}
	for _, f := range []quant.Format{quant.Q5K, quant.Q6K, quant.Q8_0, quant.MXFP4, quant.BF16} {
		benchmarkLayer(b, best(), f, 8, 512)
	}
}

func benchmarkLayer(b *testing.B, v variant.Variant, f quant.Format, rows ...int) {
	b.Run(fmt.Sprintf("%s/%s", v, f), func(b *testing.B) {
		big := bigLayer(b, f)
		be := New(v, runtime.GOMAXPROCS(0))
		defer be.Close()
		ly, err := be.NewLayer(NewArena(), From(big))
		if err != nil {
			b.Fatal(err)
		}
		for _, n := range rows {
			b.Run(fmt.Sprintf("rows=%d", n), func(b *testing.B) {
				batch := syntheticBatch(b, big, n, 8, 1)
				var out moe.Partials
				if err := ly.Forward(context.Background(), batch, &out); err != nil {
					b.Fatal(err) // memory has grown to the batch now
				}
				b.ReportAllocs()
				for b.Loop() {
					if err := ly.Forward(context.Background(), batch, &out); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "rows/s")
			})
		}
	})
	runtime.GC() // gives the arena back before the next layer is made
}

// BenchmarkMatMul is a dense product of a backbone, 3072 values to 4096, with the best variant. Products
// are counted, not operations.
func BenchmarkMatMul(b *testing.B) {
	const in, out = 3072, 4096
	be := New(best(), runtime.GOMAXPROCS(0))
	defer be.Close()
	for _, f := range []quant.Format{quant.Q4K, quant.Q8_0, quant.BF16, quant.F32} {
		takes := ref.HiddenFormat(f)
		size, err := f.RowBytes(in)
		if err != nil {
			b.Fatal(err)
		}
		data := make([]byte, out*size)
		quant.Synthetic(data, f, 1)
		from, err := ref.NewMatrix(f, in, out, data)
		if err != nil {
			b.Fatal(err)
		}
		m, err := be.NewMatrix(NewArena(), &from, takes)
		if err != nil {
			b.Fatal(err)
		}
		for _, rows := range []int{1, 16, 64, 512} {
			b.Run(fmt.Sprintf("%s/%s/rows=%d", be.Variant(), f, rows), func(b *testing.B) {
				x, dst := denseInput(b, takes, rows, in), make([]float32, rows*out)
				be.MatMul(dst, m, x) // memory grows to the rows
				b.ReportAllocs()
				for b.Loop() {
					be.MatMul(dst, m, x)
				}
				b.ReportMetric(float64(rows)*in*out*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
			})
		}
	}
}

// denseInput is rows of normal values.
func denseInput(tb testing.TB, f moe.RowFormat, rows, n int) []moe.Row {
	tb.Helper()
	rng := rand.New(rand.NewPCG(1, 3))
	x, list := make([]float32, n), make([]moe.Row, rows)
	for r := range list {
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		row := moe.Row{Format: f}
		if f == moe.RowF32 {
			row.F = make([]float32, n)
		} else {
			row.Q, row.Scales = make([]int8, n), make([]float32, f.Scales(n))
		}
		if s, at := ref.QuantizeRow(row, x); s != moe.OK {
			tb.Fatal(s, at)
		}
		list[r] = row
	}
	return list
}
