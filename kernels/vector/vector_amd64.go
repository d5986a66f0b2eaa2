//go:build !purego

package vector

import "kvasir/kernels/variant"

// hasAssembly reports whether v runs the AVX2 code.
func hasAssembly(v variant.Variant) bool { return v >= variant.AVX2 }
