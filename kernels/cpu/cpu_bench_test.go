package cpu

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
)

// bigLayer is the experts of one layer of Qwen3.5-122B-A10B: 256 of hidden size 3072 and 1024 values of h.
// They are repacked from the same few, which saves time and shows nowhere.
func bigLayer(tb testing.TB) *ref.Layer {
	few := syntheticLayer(tb, [3]quant.Format{quant.Q4K, quant.Q4K, quant.Q4K}, 3072, 1024, 4)
	l := &ref.Layer{Number: few.Number, Exponent: few.Exponent}
	for i := range 256 {
		l.Experts = append(l.Experts, few.Experts[i%len(few.Experts)])
	}
	return l
}

func BenchmarkLayer(b *testing.B) {
	big := bigLayer(b)
	for _, v := range variant.Available()[1:] {
		be := New(v, runtime.GOMAXPROCS(0))
		defer be.Close()
		ly, err := be.NewLayer(NewArena(), From(big))
		if err != nil {
			b.Fatal(err)
		}
		for _, rows := range []int{1, 8, 64, 128, 512} {
			b.Run(fmt.Sprintf("%s/rows=%d", v, rows), func(b *testing.B) {
				batch := syntheticBatch(b, big, rows, 8, 1)
				var out moe.Partials
				b.ReportAllocs()
				for b.Loop() {
					if err := ly.Forward(context.Background(), batch, &out); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "rows/s")
			})
		}
	}
}
