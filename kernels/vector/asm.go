//go:build !purego && (amd64 || arm64)

package vector

import "kvasir/kernels/quant"

// The functions of assembly have the same signatures for all processors. Unless their comment says
// otherwise, n is a multiple of 8 above 0, and lengths have been checked.

// vecQuantize quantises blocks of length values, a multiple of 32, and returns the largest
// magnitude of all. What it writes for a block beyond the limits is of no use.
//
//go:noescape
func vecQuantize(q *int8, scales, x *float32, blocks, length int) uint32

// vecScaledMax returns the largest magnitude of (w*y)*scale.
//
//go:noescape
func vecScaledMax(y *float32, n int, w, scale float32) uint32

// vecGate: h = silu(gate)*up, NaN where one is not finite
//
//go:noescape
func vecGate(h, gate, up *float32, n int)

// vecSilu: x = silu(x)
//
//go:noescape
func vecSilu(x *float32, n int)

// vecSigmoid: x = 1 / (1 + exp(-x)), 0 where x < -88
//
//go:noescape
func vecSigmoid(x *float32, n int)

// vecExp: x = exp(x - top)
//
//go:noescape
func vecExp(x *float32, n int, top float32)

// vecMax returns the largest x, or NaN.
//
//go:noescape
func vecMax(x *float32, n int) float32

// vecTop returns the largest order of x, as order has it, and the largest magnitude.
//
//go:noescape
func vecTop(x *float32, n int) (top int32, largest uint32)

// vecAddPick: sum += rne((w*y)*scale), of magnitudes below 2^51
//
//go:noescape
func vecAddPick(sum *int64, y *float32, n int, w, scale float32)

// vecAddSums: dst += src
//
//go:noescape
func vecAddSums(dst, src *int64, n int)

// vecFloats: dst = float32(float64(sum)) * scale
//
//go:noescape
func vecFloats(dst *float32, sum *int64, n int, scale float32)

// vecBits returns the OR of all values, and that of their magnitudes as a width needs them.
//
//go:noescape
func vecBits(sum *int64, n int) (any, magnitude uint64)

// vecPack packs groups of 8 values; it writes up to middle + 16 bytes from the last one on.
//
//go:noescape
func vecPack(dst *byte, sum *int64, groups int, p *packing)

// vecUnpack unpacks groups of 8 values; it reads up to middle + 16 bytes from the last one on. It
// returns the OR of v ^ 2*v.
//
//go:noescape
func vecUnpack(sum *int64, src *byte, groups int, p *packing) uint64

// vecSum returns the lane sum of n values, a multiple of 32, and of 32 more unless tail is nil.
//
//go:noescape
func vecSum(x *float32, n int, tail *float32) float32

// vecDot is to DotF32 what vecSum is to SumF32.
//
//go:noescape
func vecDot(x, w *float32, n int, xTail, wTail *float32) float32

// vecSumSquares is to SumSquares what vecSum is to SumF32.
//
//go:noescape
func vecSumSquares(x *float32, n int, tail *float32) float64

// vecDots sets dst to the dot products of w, n values, a multiple of 32, with each row.
//
//go:noescape
func vecDots(dst, w, x *float32, n, stride, rows int)

// vecAdd: x += y
//
//go:noescape
func vecAdd(x, y *float32, n int)

// vecScale: x *= s
//
//go:noescape
func vecScale(x *float32, n int, s float32)

// vecDivide: x /= by
//
//go:noescape
func vecDivide(x *float32, n int, by float32)

// vecScaleMul: dst = (x*scale) * w
//
//go:noescape
func vecScaleMul(dst, x, w *float32, n int, scale float32)

// vecScaleAdd: y += x*s
//
//go:noescape
func vecScaleAdd(y, x *float32, n int, s float32)

// vecMul: dst = x*y
//
//go:noescape
func vecMul(dst, x, y *float32, n int)

// vecMulAdd: dst += x*y
//
//go:noescape
func vecMulAdd(dst, x, y *float32, n int)

// vecTurn: lo, hi = lo*cos - hi*sin, lo*sin + hi*cos
//
//go:noescape
func vecTurn(lo, hi, cos, sin *float32, n int)

// vecAddRows: dst += e[p]*row p of v, for n columns, a multiple of 32.
//
//go:noescape
func vecAddRows(dst, e, v *float32, n, stride, rows int)

// vecDelta does Delta for n columns, a multiple of 32.
//
//go:noescape
func vecDelta(out, state, k, q, v *float32, n, stride, rows int, decay, beta float32)

// vecDeltaBF16 does DeltaBF16 for n columns, a multiple of 32.
//
//go:noescape
func vecDeltaBF16(out *float32, state *byte, k, q, v *float32, n, stride, rows int, decay, beta float32)

// vecF16: dst = the binary16 of src
//
//go:noescape
func vecF16(dst *float32, src *byte, n int)

// vecBF16: dst = the bfloat16 of src
//
//go:noescape
func vecBF16(dst *float32, src *byte, n int)

// vecQ8 dequantises blocks of Q8_0.
//
//go:noescape
func vecQ8(dst *float32, src *byte, blocks int)

// vecQ5 dequantises blocks of Q5_0.
//
//go:noescape
func vecQ5(dst *float32, src *byte, blocks int)

// vecMXFP4 dequantises blocks of MXFP4.
//
//go:noescape
func vecMXFP4(dst *float32, src *byte, blocks int)

// vecBlockK multiplies out a block of a K-quant; minimums are taken off if it has some.
//
//go:noescape
func vecBlockK(dst *float32, b *quant.BlockK, minimums bool)

// vecToF16: dst = the binary16 of src, clamped
//
//go:noescape
func vecToF16(dst *byte, src *float32, n int)

// vecToQ8 makes blocks of Q8_0.
//
//go:noescape
func vecToQ8(dst *byte, src *float32, blocks int)
