//go:build purego || !(amd64 || arm64)

package vector

import (
	"kvasir/kernels/quant"
	"kvasir/kernels/variant"
)

// This build has no assembly: no variant leads to one of these functions.

func hasAssembly(variant.Variant) bool { return false }

const none = "BUG: this build has no assembly"

func vecQuantize(*int8, *float32, *float32, int, int) uint32     { panic(none) }
func vecScaledMax(*float32, int, float32, float32) uint32        { panic(none) }
func vecGate(*float32, *float32, *float32, int)                  { panic(none) }
func vecSilu(*float32, int)                                      { panic(none) }
func vecSigmoid(*float32, int)                                   { panic(none) }
func vecExp(*float32, int, float32)                              { panic(none) }
func vecMax(*float32, int) float32                               { panic(none) }
func vecTop(*float32, int) (int32, uint32)                       { panic(none) }
func vecAddPick(*int64, *float32, int, float32, float32)         { panic(none) }
func vecAddSums(*int64, *int64, int)                             { panic(none) }
func vecFloats(*float32, *int64, int, float32)                   { panic(none) }
func vecBits(*int64, int) (uint64, uint64)                       { panic(none) }
func vecPack(*byte, *int64, int, *packing)                       { panic(none) }
func vecUnpack(*int64, *byte, int, *packing) uint64              { panic(none) }
func vecSum(*float32, int, *float32) float32                     { panic(none) }
func vecDot(*float32, *float32, int, *float32, *float32) float32 { panic(none) }
func vecSumSquares(*float32, int, *float32) float64              { panic(none) }
func vecDots(*float32, *float32, *float32, int, int, int)        { panic(none) }
func vecAdd(*float32, *float32, int)                             { panic(none) }
func vecScale(*float32, int, float32)                            { panic(none) }
func vecDivide(*float32, int, float32)                           { panic(none) }
func vecScaleMul(*float32, *float32, *float32, int, float32)     { panic(none) }
func vecScaleAdd(*float32, *float32, int, float32)               { panic(none) }
func vecMul(*float32, *float32, *float32, int)                   { panic(none) }
func vecMulAdd(*float32, *float32, *float32, int)                { panic(none) }
func vecTurn(*float32, *float32, *float32, *float32, int)        { panic(none) }
func vecAddRows(*float32, *float32, *float32, int, int, int)     { panic(none) }
func vecDelta(*float32, *float32, *float32, *float32, *float32, int, int, int, float32, float32) {
	panic(none)
}
func vecDeltaBF16(*float32, *byte, *float32, *float32, *float32, int, int, int, float32, float32) {
	panic(none)
}
func vecF16(*float32, *byte, int)             { panic(none) }
func vecBF16(*float32, *byte, int)            { panic(none) }
func vecQ8(*float32, *byte, int)              { panic(none) }
func vecQ5(*float32, *byte, int)              { panic(none) }
func vecMXFP4(*float32, *byte, int)           { panic(none) }
func vecBlockK(*float32, *quant.BlockK, bool) { panic(none) }
func vecToF16(*byte, *float32, int)           { panic(none) }
func vecToQ8(*byte, *float32, int)            { panic(none) }
