//go:build !purego

package kerneltest

// flushBits are FTZ (results) and DAZ (operands) of MXCSR.
const flushBits = 1<<15 | 1<<6

// floatMode returns MXCSR.
//
//go:noescape
func floatMode() uint64

// setFloatMode sets MXCSR.
//
//go:noescape
func setFloatMode(mode uint64)
