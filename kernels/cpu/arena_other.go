//go:build !unix && !windows

package cpu

import "kvasir/internal/moe"

// mapMemory returns n zero bytes of the heap: they go back when nobody refers to them.
func mapMemory(n int) ([]byte, error) { return moe.AlignedBytes(n), nil }

func unmapMemory([]byte) {}
