package vector

import (
	"fmt"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
)

// eachBench runs f for the portable operations and for those of the best variant.
func eachBench(b *testing.B, name string, bytes int, f func(o *Ops)) {
	list := variant.Available()
	for _, v := range []variant.Variant{variant.Portable, list[len(list)-1]} {
		b.Run(fmt.Sprintf("%s/%s", name, v), func(b *testing.B) {
			o := For(v)
			b.SetBytes(int64(bytes))
			b.ReportAllocs()
			for b.Loop() {
				f(o)
			}
		})
	}
}

// BenchmarkOperations has rows of 3072 values; AddRows, Dots and the steps of DeltaNet have 128 rows of
// 128, a head's positions or state. Bytes are those of the vectors read and written.
func BenchmarkOperations(b *testing.B) {
	r, _ := newRand(b)
	const n = 3072
	a := randomArgs(n, 2, ordinary, r)
	fillSums(a.i, 22, r)
	fillSums(a.j, 22, r)
	head := randomArgs(128, 128, ordinary, r)
	head.s = 0.9
	for _, op := range []struct {
		name  string
		bytes int
		f     func(o *Ops)
	}{
		{"Gate", 12 * n, func(o *Ops) { o.Gate(a.x, a.y, a.z) }},
		{"Silu", 8 * n, func(o *Ops) { copy(a.x, a.y); o.Silu(a.x) }},
		{"Sigmoid", 8 * n, func(o *Ops) { copy(a.x, a.y); o.Sigmoid(a.x) }},
		{"Exp", 8 * n, func(o *Ops) { copy(a.x, a.y); o.Exp(a.x) }},
		{"Softmax", 8 * n, func(o *Ops) { copy(a.x, a.y); o.Softmax(a.x) }},
		{"AddPick", 20 * n, func(o *Ops) { o.AddPick(a.i, a.y, 0.1, 20) }},
		{"AddSums", 24 * n, func(o *Ops) { o.AddSums(a.i, a.j) }},
		{"Floats", 12 * n, func(o *Ops) { o.Floats(a.x, a.j, 20) }},
		{"SumF32", 4 * n, func(o *Ops) { o.SumF32(a.y) }},
		{"DotF32", 8 * n, func(o *Ops) { o.DotF32(a.y, a.z) }},
		{"SumSquares", 4 * n, func(o *Ops) { o.SumSquares(a.y) }},
		{"AddTo", 12 * n, func(o *Ops) { o.AddTo(a.x, a.y) }},
		{"ScaleMul", 12 * n, func(o *Ops) { o.ScaleMul(a.x, a.y, a.z, 1.5) }},
		{"ScaleAdd", 12 * n, func(o *Ops) { o.ScaleAdd(a.x, a.y, 1e-9) }},
		{"MulAdd", 16 * n, func(o *Ops) { o.MulAdd(a.x, a.y, a.z) }},
		{"Dots", 4 * 128 * 128, func(o *Ops) { o.Dots(head.k, head.x, head.m, 128) }},
		{"AddRows", 4 * 128 * 128, func(o *Ops) { o.AddRows(head.x, head.q, head.m, 128) }},
	} {
		eachBench(b, op.name, op.bytes, op.f)
	}
}

// BenchmarkDotsOfWeights is one row of weights with 512 rows of a batch: 6 MiB of rows a call.
func BenchmarkDotsOfWeights(b *testing.B) {
	r, _ := newRand(b)
	const n, rows = 3072, 512
	w, x, dst := make([]float32, n), make([]float32, rows*n), make([]float32, rows)
	fill(w, ordinary, r)
	fill(x, ordinary, r)
	eachBench(b, "512", 4*n*rows, func(o *Ops) { o.Dots(dst, w, x, n) })
	eachBench(b, "3", 4*n*3, func(o *Ops) { o.Dots(dst[:3], w, x, n) })
}

// BenchmarkQuantizeRow has one row of 3072 values and 512 of them.
func BenchmarkQuantizeRow(b *testing.B) {
	r, _ := newRand(b)
	const n = 3072
	x := make([]float32, 512*n)
	fill(x, ordinary, r)
	for _, f := range []moe.RowFormat{moe.RowQ8K, moe.RowQ8} {
		for _, rows := range []int{1, 512} {
			out := make([]moe.Row, rows)
			for i := range out {
				out[i] = newRow(f, n, nil, 0)
			}
			eachBench(b, fmt.Sprintf("%s/%d", f, rows), 4*n*rows, func(o *Ops) {
				for i, row := range out {
					o.QuantizeRow(row, x[i*n:(i+1)*n])
				}
			})
		}
	}
}

// BenchmarkPartial packs and unpacks the 3072 sums of a row, as wide as they usually are and wider.
func BenchmarkPartial(b *testing.B) {
	r, _ := newRand(b)
	const n = 3072
	sum := make([]int64, n)
	room := make([]byte, 0, ref.MaxPartialBytes(n))
	for _, w := range []int{20, 25, 40} {
		fillSums(sum, w, r)
		packed := ref.AppendPartial(nil, sum)
		eachBench(b, fmt.Sprintf("Append/%d", w), 8*n, func(o *Ops) { o.AppendPartial(room, sum) })
		eachBench(b, fmt.Sprintf("Parse/%d", w), 8*n, func(o *Ops) {
			if _, err := o.ParsePartial(sum, packed); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkDequantize has one row of 3072 values of each format.
func BenchmarkDequantize(b *testing.B) {
	dst := make([]float32, 3072)
	for _, f := range quant.Supported() {
		n, err := f.RowBytes(len(dst))
		if err != nil {
			b.Fatal(err)
		}
		src := make([]byte, n)
		quant.Synthetic(src, f, 1)
		eachBench(b, f.String(), 4*len(dst), func(o *Ops) { o.Dequantize(dst, f, src) })
	}
}
