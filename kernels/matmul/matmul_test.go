package matmul

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
)

var formats = []quant.Format{quant.Q4K, quant.Q5K, quant.Q6K, quant.Q8_0, quant.MXFP4}

// kernels returns the kernels that run here.
func kernels(t testing.TB) []*Kernel {
	var list []*Kernel
	for _, v := range variant.Available() {
		if k := For(v); k != nil {
			list = append(list, k)
		}
	}
	if len(list) == 0 {
		t.Skip("this build, or this processor, has no variant but portable Go")
	}
	return list
}

func TestMulEqualsReference(t *testing.T) {
	for _, k := range kernels(t) {
		for _, f := range formats {
			t.Run(fmt.Sprintf("%s/%s", k.Variant(), f), func(t *testing.T) {
				in := 512
				if f.IsBlock32() {
					in = 512 + 96
				}
				for _, rows := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 64, 70} {
					testMul(t, k, f, in, 16*3+5, rows)
				}
			})
		}
	}
}

func testMul(t *testing.T, k *Kernel, f quant.Format, in, out, rows int) {
	t.Helper()
	seed := uint64(in*1000 + out*10 + rows)
	rng := rand.New(rand.NewPCG(seed, 1))
	m := randomMatrix(t, rng, f, in, out)
	size, err := PackedBytes(f, in, out)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Pack(moe.AlignedBytes(size), &m)
	if err != nil {
		t.Fatal(err)
	}
	x := randomRows(rng, f, rows, in)
	var recs Records
	recs.Reset(x[0].Format, in, rows)
	var list Rows
	for i := range x {
		recs.Set(i, x[i])
		list.Add(&recs, i)
	}
	want := make([]float32, rows*out)
	var s ref.Scratch
	m.MatMul(want, x, 0, out, &s)
	got := make([]float32, rows*out)
	k.Mul(NewWork(), &Product{M: &p, Lo: 0, Hi: p.Panels(), X: list, Dst: got, Stride: out})
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("seed %d: row %d of %d, value %d: %g, want %g", seed, i/out, rows, i%out, got[i], want[i])
		}
	}
}

func randomMatrix(t testing.TB, rng *rand.Rand, f quant.Format, in, out int) ref.Matrix {
	t.Helper()
	n, err := f.RowBytes(in)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, n*out)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	_, size := f.Block()
	for i := 0; i < len(data); i += size {
		b := data[i : i+size]
		d := uint16(rng.Uint32N(0x7c00)) | uint16(rng.Uint32N(2))<<15 // any finite binary16
		switch f {
		case quant.Q6K:
			le.PutUint16(b[208:], d)
		case quant.MXFP4:
			b[0] = byte(rng.Uint32N(191))
		default:
			le.PutUint16(b, d)
			if f != quant.Q8_0 {
				le.PutUint16(b[2:], uint16(rng.Uint32N(0x7c00)))
			}
		}
	}
	m, err := ref.NewMatrix(f, in, out, data)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func randomRows(rng *rand.Rand, f quant.Format, rows, in int) []moe.Row {
	format := ref.HiddenFormat(f)
	list := make([]moe.Row, rows)
	for r := range list {
		x := moe.Row{Format: format, Q: make([]int8, in), Scales: make([]float32, format.Scales(in))}
		for i := range x.Q {
			x.Q[i] = int8(rng.IntN(255) - 127)
			if r%3 == 0 {
				x.Q[i] = 127
				if rng.IntN(100) == 0 || r%2 == 0 {
					x.Q[i] = -127
				}
			}
		}
		for i := range x.Scales {
			x.Scales[i] = rng.Float32()
		}
		list[r] = x
	}
	return list
}

func BenchmarkMul(b *testing.B) {
	const in, out = 3072, 1024
	for _, k := range kernels(b) {
		for _, f := range formats {
			for _, rows := range []int{1, 2, 6, 16, 64} {
				b.Run(fmt.Sprintf("%s/%s/rows=%d", k.Variant(), f, rows), func(b *testing.B) {
					rng := rand.New(rand.NewPCG(1, 1))
					m := randomMatrix(b, rng, f, in, out)
					size, _ := PackedBytes(f, in, out)
					p, _ := Pack(moe.AlignedBytes(size), &m)
					x := randomRows(rng, f, rows, in)
					var recs Records
					recs.Reset(x[0].Format, in, rows)
					var list Rows
					for i := range x {
						recs.Set(i, x[i])
						list.Add(&recs, i)
					}
					got := make([]float32, rows*out)
					w := NewWork()
					pr := &Product{M: &p, Lo: 0, Hi: p.Panels(), X: list, Dst: got, Stride: out}
					for b.Loop() {
						k.Mul(w, pr)
					}
					b.ReportMetric(float64(rows)*in*out*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
				})
			}
		}
	}
}

// BenchmarkShare measures a tile against the multiplications alone: the share is that of their shortest
// times, taken in turns, with a panel and its rows in the cache. Use -benchtime 1500x.
func BenchmarkShare(b *testing.B) {
	const in = 3072
	for _, k := range kernels(b) {
		for _, f := range formats {
			for _, rows := range []int{1, 2, 6, 16, 64} {
				b.Run(fmt.Sprintf("%s/%s/rows=%d", k.Variant(), f, rows), func(b *testing.B) {
					rng := rand.New(rand.NewPCG(1, 1))
					m := randomMatrix(b, rng, f, in, PanelRows)
					size, _ := PackedBytes(f, in, PanelRows)
					p, _ := Pack(moe.AlignedBytes(size), &m)
					x := randomRows(rng, f, rows, in)
					var recs Records
					recs.Reset(x[0].Format, in, rows)
					var list Rows
					for i := range x {
						recs.Set(i, x[i])
						list.Add(&recs, i)
					}
					product := &Product{M: &p, Hi: 1, X: list, Dst: make([]float32, rows*PanelRows), Stride: PanelRows}
					w := NewWork()
					peak, tile, products := time.Hour, time.Hour, 0
					for b.Loop() {
						start := time.Now()
						products = k.Peak(500_000)
						peak = min(peak, time.Since(start))
						start = time.Now()
						k.Mul(w, product)
						tile = min(tile, time.Since(start))
					}
					share := float64(rows*in*PanelRows) / float64(tile) / (float64(products) / float64(peak))
					b.ReportMetric(share, "of-peak")
				})
			}
		}
	}
}

func BenchmarkPack(b *testing.B) {
	const in, out = 3072, 1024
	for _, f := range formats {
		b.Run(f.String(), func(b *testing.B) {
			m := randomMatrix(b, rand.New(rand.NewPCG(1, 1)), f, in, out)
			size, _ := PackedBytes(f, in, out)
			dst := moe.AlignedBytes(size)
			b.SetBytes(int64(len(m.Data)))
			for b.Loop() {
				if _, err := Pack(dst, &m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestPeakCountsWhatItMultiplies(t *testing.T) {
	for _, k := range kernels(t) {
		least := k.Peak(0)
		if got := k.Peak(10 * least); least < 1 || got != 11*least {
			t.Errorf("%s: %d products, %d for ten times as many", k.Variant(), least, got)
		}
	}
}
