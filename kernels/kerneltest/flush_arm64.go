//go:build !purego

package kerneltest

// flushBits is FZ of FPCR: operands and results.
const flushBits = 1 << 24

// floatMode returns FPCR.
//
//go:noescape
func floatMode() uint64

// setFloatMode sets FPCR.
//
//go:noescape
func setFloatMode(mode uint64)
