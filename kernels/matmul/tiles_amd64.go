//go:build !purego

package matmul

import "kvasir/kernels/variant"

// tilesOf returns the tiles of a variant.
func tilesOf(v variant.Variant) tiles {
	switch v {
	case variant.AVX2:
		return tiles{tileQ4KAVX2, tileQ5KAVX2, tileQ6KAVX2, tileQ8AVX2, tileMXFP4AVX2}
	}
	return tiles{}
}

// Each multiplies the panel a.w with a.n rows; kernels/matmul/asm tells how.

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
