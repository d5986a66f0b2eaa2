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
	case variant.AVXVNNI:
		return tiles{
			q4k: tileQ4KAVXVNNI, q5k: tileQ5KAVXVNNI, q6k: tileQ6KAVXVNNI, q8: tileQ8AVXVNNI, mxfp4: tileMXFP4AVXVNNI,
			peak: peakAVXVNNI, perTurn: 12 * 32,
		}
	case variant.AVX512VNNI:
		return tiles{
			q4k: tileQ4KAVX512, q5k: tileQ5KAVX512, q6k: tileQ6KAVX512, q8: tileQ8AVX512, mxfp4: tileMXFP4AVX512,
			peak: peakAVX512, perTurn: 12 * 64,
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

// peakAVXVNNI does 12 x 32 products a turn.
func peakAVXVNNI(turns int)

//go:noescape
func tileQ4KAVXVNNI(a *tile)

//go:noescape
func tileQ5KAVXVNNI(a *tile)

//go:noescape
func tileQ6KAVXVNNI(a *tile)

//go:noescape
func tileQ8AVXVNNI(a *tile)

//go:noescape
func tileMXFP4AVXVNNI(a *tile)

// peakAVX512 does 12 x 64 products a turn.
func peakAVX512(turns int)

//go:noescape
func tileQ4KAVX512(a *tile)

//go:noescape
func tileQ5KAVX512(a *tile)

//go:noescape
func tileQ6KAVX512(a *tile)

//go:noescape
func tileQ8AVX512(a *tile)

//go:noescape
func tileMXFP4AVX512(a *tile)
