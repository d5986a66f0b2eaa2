//go:build purego || !(amd64 || arm64)

package matmul

import "kvasir/kernels/variant"

func tilesOf(variant.Variant) tiles { return tiles{} }
