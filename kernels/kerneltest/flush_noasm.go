//go:build purego || (!amd64 && !arm64)

package kerneltest

const flushBits = 0

func floatMode() uint64 { panic("BUG: no mode without assembly") }

func setFloatMode(uint64) { panic("BUG: no mode without assembly") }
