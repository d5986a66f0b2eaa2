//go:build !purego

package matmul

import "kvasir/kernels/variant"

// tilesOf returns the tiles of a variant.
func tilesOf(v variant.Variant) tiles {
	switch v {
	case variant.NEON:
		return tiles{
			q4k: tileQ4KNEON, q5k: tileQ5KNEON, q6k: tileQ6KNEON, q8: tileQ8NEON, mxfp4: tileMXFP4NEON,
			peak: peakNEON, perTurn: 24 * 8,
		}
	case variant.DotProd:
		return tiles{
			q4k: tileQ4KDotProd, q5k: tileQ5KDotProd, q6k: tileQ6KDotProd, q8: tileQ8DotProd, mxfp4: tileMXFP4DotProd,
			peak: peakDotProd, perTurn: 24 * 16,
		}
	case variant.I8MM:
		return tiles{
			q4k: tileQ4KI8MM, q5k: tileQ5KI8MM, q6k: tileQ6KI8MM, q8: tileQ8I8MM, mxfp4: tileMXFP4I8MM,
			peak: peakI8MM, perTurn: 24 * 32,
		}
	}
	return tiles{}
}

// Each multiplies the panel a.w with a.n rows; kernels/matmul/asm tells how.

//go:noescape
func tileQ4KNEON(a *tile)

//go:noescape
func tileQ5KNEON(a *tile)

//go:noescape
func tileQ6KNEON(a *tile)

//go:noescape
func tileQ8NEON(a *tile)

//go:noescape
func tileMXFP4NEON(a *tile)

//go:noescape
func tileQ4KDotProd(a *tile)

//go:noescape
func tileQ5KDotProd(a *tile)

//go:noescape
func tileQ6KDotProd(a *tile)

//go:noescape
func tileQ8DotProd(a *tile)

//go:noescape
func tileMXFP4DotProd(a *tile)

//go:noescape
func tileQ4KI8MM(a *tile)

//go:noescape
func tileQ5KI8MM(a *tile)

//go:noescape
func tileQ6KI8MM(a *tile)

//go:noescape
func tileQ8I8MM(a *tile)

//go:noescape
func tileMXFP4I8MM(a *tile)

// peakNEON does 24 x 8 products a turn.
func peakNEON(turns int)

// peakDotProd does 24 x 16 products a turn.
func peakDotProd(turns int)

// peakI8MM does 24 x 32 products a turn.
func peakI8MM(turns int)
