//go:build !purego

package vector

import "kvasir/kernels/variant"

// hasAssembly reports whether v runs the NEON code.
func hasAssembly(v variant.Variant) bool { return v >= variant.NEON && v <= variant.I8MM }
