//go:build !purego

package matmul

import "kvasir/kernels/variant"

// tilesOf returns the tiles of a variant.
func tilesOf(v variant.Variant) tiles {
	switch v {
	case variant.AVX2:
		return tiles{
			q4k: tileQ4KAVX2, q5k: tileQ5KAVX2, q6k: tileQ6KAVX2, q8: tileQ8AVX2, mxfp4: tileMXFP4AVX2,
			peak: peakAVX2, perTurn: 12 * 32,
		}
	}
	return tiles{}
}

// Each multiplies the panel a.w with a.n rows; kernels/matmul/asm tells how.

// peakAVX2 does 12 x 32 products a turn.
func peakAVX2(turns int)

//go:noescape
func tileQ4KAVX2(a *tile)

//go:noescape
func tileQ5KAVX2(a *tile)

//go:noescape
func tileQ6KAVX2(a *tile)

//go:noescape
func tileQ8AVX2(a *tile)

//go:noescape
func tileMXFP4AVX2(a *tile)
