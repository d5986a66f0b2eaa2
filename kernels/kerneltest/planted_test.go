package kerneltest

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

func dotted(k mistakes) Backend { return built(model{dot: k.dot}) }

// arithmeticMistakes are those in a dot product.
func arithmeticMistakes() []wrongBackend {
	return []wrongBackend{
		{"fused multiply and add", []string{"golden", "formats", "extreme", "ragged", "random"}, dotted(mistakes{
			term: func(acc, d, da float32, i int32) float32 {
				dda := float32(d * da)
				return float32(math.FMA(float64(dda), float64(float32(i)), float64(acc)))
			}})},
		{"another order of factors", []string{"golden", "formats", "extreme"}, dotted(mistakes{
			term: func(acc, d, da float32, i int32) float32 { return acc + float32(d*float32(da*float32(i))) }})},
		{"sums that saturate at 16 bits", []string{"extreme/matmul Q4_K", "extreme/matmul Q5_K", "extreme/matmul Q8_0", "extreme/Q4_K"},
			dotted(mistakes{sum: func(q, a []int8) int32 {
				var sum int32
				for i := range q {
					sum = min(max(sum+int32(q[i])*int32(a[i]), math.MinInt16), math.MaxInt16)
				}
				return sum
			}})},
		{"int8 weights of -128 clamped", []string{"extreme/matmul Q8_0"}, dotted(mistakes{
			value: func(_ quant.Format, q int8) int8 { return max(q, -127) }})},
		{"subnormal scales taken for zero", []string{"extreme/matmul Q4_K", "extreme/matmul Q6_K", "extreme/matmul Q8_0"},
			dotted(mistakes{scale: func(f quant.Format, _ []byte, d float32) float32 {
				if f != quant.MXFP4 && math.Abs(float64(d)) < 0x1p-14 {
					return 0
				}
				return d
			}})},
		{"binary16 by a multiplication that flushes", []string{"flush/Q4_K", "flush/matmul Q6_K", "flush/matmul Q8_0"},
			dotted(mistakes{scale: func(f quant.Format, block []byte, d float32) float32 {
				at := map[quant.Format]int{quant.Q6K: 208}[f]
				if f == quant.MXFP4 {
					return d
				}
				h := uint32(le.Uint16(block[at:]))
				return float32(math.Float32frombits(h&0x8000<<16|h&0x7fff<<13) * power(112))
			}})},
		{"scales of MXFP4 below 80", []string{"extreme/matmul MXFP4", "golden/matmul"},
			dotted(mistakes{zeros: true})},
		{"floats added in another order", []string{"golden", "formats", "extreme/matmul F32", "ragged/matmul F16"},
			built(model{
				dot: func(m *ref.Matrix, o int, x moe.Row) float32 {
					if x.Format != moe.RowF32 {
						return m.Dot(o, x)
					}
					w := make([]float32, m.In)
					row := len(m.Data) / m.Out
					quant.Dequantize(w, m.Format, m.Data[o*row:(o+1)*row])
					sum := float32(0)
					for i, v := range x.F {
						sum += float32(v * w[i])
					}
					return sum
				}})},
		{"the last block left out", []string{"ragged/matmul", "golden/matmul"}, built(model{
			dot: func(m *ref.Matrix, o int, x moe.Row) float32 {
				if x.Format == moe.RowQ8 && len(x.Scales)%8 != 0 {
					x.Scales = slices.Clone(x.Scales)
					x.Scales[len(x.Scales)-1] = 0
				}
				return m.Dot(o, x)
			}})},
	}
}

// stepMistakes are those in the other steps of an expert.
func stepMistakes() []wrongBackend {
	ranged := func(st moe.Status) moe.Status {
		if st == moe.NonFinite {
			return moe.Range
		}
		return st
	}
	return []wrongBackend{
		{"row not looked at", []string{"faults/rows"},
			built(model{check: func(moe.Row) moe.Status { return moe.OK }})},
		{"negative scales let in", []string{"faults/rows"}, built(model{check: func(x moe.Row) moe.Status {
			x.Scales = slices.Clone(x.Scales)
			for i, v := range x.Scales {
				if v < 0 && v > -inf {
					x.Scales[i] = -v
				}
			}
			st, _ := ref.CheckRow(x)
			return st
		}})},
		{"wrong status of a row", []string{"faults/rows"}, built(model{check: func(x moe.Row) moe.Status {
			st, _ := ref.CheckRow(x)
			return ranged(st)
		}})},
		{"infinite gate lost in silu", []string{"faults/weights"}, built(model{hidden: func(g, u float32) float32 {
			return float32(ref.Silu(g) * u)
		}})},
		{"sum fused", []string{"formats", "invariance/splits"},
			built(model{add: func(sum []int64, y []float32, w float32, e int) moe.Status {
				for i, v := range y {
					sum[i] += int64(math.RoundToEven(float64(w) * float64(v) * float64(power(e))))
				}
				return moe.OK
			}})},
		{"range only beyond 2^40", []string{"faults/sums"},
			built(model{add: func(sum []int64, y []float32, w float32, e int) moe.Status {
				z := slices.Clone(y)
				for i, v := range z { // exactly 2^40 gets in
					if p := float32(float32(w*v) * power(e)); p == 0x1p40 || p == -0x1p40 {
						z[i] = 0
					}
				}
				return ref.AddPick(sum, z, w, e)
			}})},
		{"first fault counts", []string{"faults/weights"}, built(model{combine: func(a, b moe.Status) moe.Status {
			if a != moe.OK {
				return a
			}
			return b
		}})},
		{"picks of weight 0 left out", []string{"faults/weights"}, built(model{
			picks: func(expert []uint16, weight []float32) (e []uint16, w []float32) {
				for i := range expert {
					if weight[i] != 0 {
						e, w = append(e, expert[i]), append(w, weight[i])
					}
				}
				return e, w
			}})},
		{"duplicated picks counted once", []string{"picks/weights"}, built(model{
			picks: func(expert []uint16, weight []float32) (e []uint16, w []float32) {
				for i := range expert {
					if !slices.Contains(e, expert[i]) {
						e, w = append(e, expert[i]), append(w, weight[i])
					}
				}
				return e, w
			}})},
	}
}

// beyondEnd views values and one more on each side.
//
//go:nocheckptr
func beyondEnd[T any](values []T) []T {
	size := int(unsafe.Sizeof(values[0]))
	return unsafe.Slice((*T)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(values)), -size)), len(values)+2)
}

var sink []byte

// batchMistakes are those in what comes of a batch.
func batchMistakes() []wrongBackend {
	return []wrongBackend{
		{"neighbour of a fault touched", []string{"faults/rows", "faults/weights"}, after(func(_ *moe.Batch, out *moe.Partials) {
			for r := 1; r < out.Rows; r++ {
				if out.Status[r-1] != moe.OK && out.Status[r] == moe.OK {
					out.Row(r)[0]++
				}
			}
		})},
		{"values of a fault left", []string{"faults/rows"}, after(func(_ *moe.Batch, out *moe.Partials) {
			for r, st := range out.Status {
				if st != moe.OK {
					out.Row(r)[out.Hidden-1] = 1
				}
			}
		})},
		{"stale statuses", []string{"formats"}, after(func(_ *moe.Batch, out *moe.Partials) {
			out.Status[0] = moe.NonFinite
		})},
		{"an allocation", []string{"allocations"}, after(func(*moe.Batch, *moe.Partials) { sink = make([]byte, 100) })},
		{"other bits from the 33rd row of an expert on", []string{"picks/hot"}, after(func(b *moe.Batch, out *moe.Partials) {
			n := 0
			for r := range b.Rows {
				if expert, _ := b.Picks(r); slices.Contains(expert, 0) {
					if n++; n > 32 {
						out.Row(r)[1]++
					}
				}
			}
		})},
		{"other bits for the first pick's place", []string{"invariance/order of picks"}, after(func(b *moe.Batch, out *moe.Partials) {
			if expert, _ := b.Picks(0); len(expert) > 1 && expert[0] > expert[1] {
				out.Row(0)[0]++
			}
		})},
	}
}

// bufferMistakes touch what is not to be touched.
func bufferMistakes() []wrongBackend {
	return []wrongBackend{
		{"the batch changed", []string{"formats", "guards/canaries"}, after(func(b *moe.Batch, _ *moe.Partials) {
			b.Weight[0] = 1
		})},
		{"the batch written", []string{"guards/guards after", "guards/guards before"}, before(func(b *moe.Batch) {
			b.Weight[0] += 0
		})},
		{"a sum written past the end", []string{"guards/canaries", "guards/guards after"}, after(func(_ *moe.Batch, out *moe.Partials) {
			beyondEnd(out.Sum)[len(out.Sum)+1] = 0
		})},
		{"a status written before the first", []string{"guards/canaries", "guards/guards before"}, after(func(_ *moe.Batch, out *moe.Partials) {
			beyondEnd(out.Status)[0] = 0
		})},
		{"a gate weight read past the end", []string{"guards/guards after"}, before(func(b *moe.Batch) {
			runtime.KeepAlive(beyondEnd(b.Weight)[len(b.Weight)+1])
		})},
		{"a value read before the first", []string{"guards/guards before"}, before(func(b *moe.Batch) {
			if len(b.Q) > 0 {
				runtime.KeepAlive(beyondEnd(b.Q)[0])
			}
		})},
	}
}

// callMistakes are bits that depend on how, or by how many, a batch is run.
func callMistakes() []wrongBackend {
	var calls atomic.Int32
	atOnce := around(func(*moe.Batch) {
		calls.Add(1)
		for i := 0; i < 10_000 && calls.Load() < 2; i++ {
			runtime.Gosched() // until another comes
		}
	}, func(_ *moe.Batch, out *moe.Partials) {
		if calls.Load() > 1 {
			out.Row(0)[0]++
		}
		calls.Add(-1)
	})
	threads := good()
	threads.Threads = func(n int) Backend {
		return after(func(_ *moe.Batch, out *moe.Partials) { out.Row(0)[0] += int64(n / 3) })
	}
	procs := after(func(_ *moe.Batch, out *moe.Partials) { out.Row(0)[0] += int64(runtime.GOMAXPROCS(0) / 4) })
	procs.Threads = nil
	size := after(func(_ *moe.Batch, out *moe.Partials) {
		if out.Rows >= 16 || out.Rows == 10 {
			out.Row(out.Rows - 1)[0]++
		}
	})
	return []wrongBackend{
		{"other bits for two calls at once", []string{"invariance/concurrent"}, atOnce},
		{"other bits with 3 threads", []string{"invariance/threads"}, threads},
		{"other bits with GOMAXPROCS 4", []string{"invariance/threads"}, procs},
		{"other bits for some numbers of rows", []string{"ragged/rows", "extreme/Q4_K", "invariance/splits"}, size},
	}
}

// forwarder is an executor made of a function.
type forwarder func(ctx context.Context, b *moe.Batch, out *moe.Partials) error

func (f forwarder) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	return f(ctx, b, out)
}

func inputMistakes() []wrongBackend {
	with := func(f func(x moe.Experts, ctx context.Context, b *moe.Batch, out *moe.Partials) error) Backend {
		b := good()
		b.Layer = func(t testing.TB, l *ref.Layer) moe.Experts {
			x := good().Layer(t, l)
			return forwarder(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error { return f(x, ctx, b, out) })
		}
		return b
	}
	return []wrongBackend{
		{"-128 let in", []string{"input/value -128"},
			with(func(x moe.Experts, ctx context.Context, b *moe.Batch, out *moe.Partials) error {
				c := clone(b)
				for i, v := range c.Q {
					c.Q[i] = max(v, -127)
				}
				return x.Forward(ctx, c, out)
			})},
		{"another error", []string{"input/expert not held", "input/another layer"},
			with(func(x moe.Experts, ctx context.Context, b *moe.Batch, out *moe.Partials) error {
				if err := x.Forward(ctx, b, out); err != nil {
					return moe.ErrInvalid
				}
				return nil
			})},
		{"an error without a name", []string{"input/no rows", "input/rows of another", "input/cancelled"},
			with(func(x moe.Experts, ctx context.Context, b *moe.Batch, out *moe.Partials) error {
				err := x.Forward(ctx, b, out)
				if err != nil {
					err = errors.New("it did not work")
				}
				return err
			})},
		{"nothing done when cancelled", []string{"input/cancelled"},
			with(func(x moe.Experts, ctx context.Context, b *moe.Batch, out *moe.Partials) error {
				if ctx.Err() == nil {
					return x.Forward(ctx, b, out)
				}
				return nil // as if it was done
			})},
	}
}

// productMistakes are those of MatMul.
func productMistakes() []wrongBackend {
	type product = func([]float32, []moe.Row)
	return []wrongBackend{
		{"outputs after the last 16", []string{"ragged/matmul", "golden"},
			multiplying(func(right product, m *ref.Matrix, dst []float32, x []moe.Row) {
				right(dst, x)
				if m.Out%16 != 0 {
					dst[m.Out-1] = 0
				}
			})},
		{"an output past the end", []string{"ragged/matmul", "guards/canaries matmul", "guards/guards after matmul"},
			multiplying(func(right product, m *ref.Matrix, dst []float32, x []moe.Row) {
				right(dst, x)
				beyondEnd(dst[:len(x)*m.Out])[len(x)*m.Out+1] = 0
			})},
		{"a row read past the end", []string{"guards/guards after matmul"},
			multiplying(func(right product, _ *ref.Matrix, dst []float32, x []moe.Row) {
				if len(x[0].Q) > 0 {
					runtime.KeepAlive(beyondEnd(x[0].Q)[len(x[0].Q)+1])
				} else {
					runtime.KeepAlive(beyondEnd(x[0].F)[len(x[0].F)+1])
				}
				right(dst, x)
			})},
		{"a weight read past the end", []string{"guards/guards after matmul"},
			multiplying(func(right product, m *ref.Matrix, dst []float32, x []moe.Row) {
				runtime.KeepAlive(beyondEnd(m.Data)[len(m.Data)+1])
				right(dst, x)
			})},
		{"added to what was there", []string{"ragged/matmul"},
			multiplying(func(right product, m *ref.Matrix, dst []float32, x []moe.Row) {
				was := slices.Clone(dst)
				right(dst, x)
				for i := range len(x) * m.Out {
					dst[i] += was[i]
				}
			})},
		{"an allocation in a product", []string{"allocations/matmul"},
			multiplying(func(right product, _ *ref.Matrix, dst []float32, x []moe.Row) {
				sink = make([]byte, 10)
				right(dst, x)
			})},
		{"what is not a number lost", []string{"faults/matmul"},
			multiplying(func(right product, _ *ref.Matrix, dst []float32, x []moe.Row) {
				right(dst, x)
				for i, v := range dst {
					if isNaN(v) {
						dst[i] = 0
					}
				}
			})},
		{"infinity beside what is not a number", []string{"faults/matmul"},
			multiplying(func(right product, m *ref.Matrix, dst []float32, x []moe.Row) {
				right(dst, x)
				for i, v := range dst[:len(x)*m.Out] {
					if isNaN(v) && i+1 < len(x)*m.Out {
						dst[i+1] = nan
					}
				}
			})},
	}
}
