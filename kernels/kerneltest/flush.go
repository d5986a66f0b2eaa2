package kerneltest

import "runtime"

// WithFlushToZero runs f on a thread that takes subnormal floats for zero, as operands and as
// results, and restores the thread's mode. It reports whether it could; if not, as in builds
// without assembly, f was not run. The mode is that of the calling goroutine: others, also those
// that f starts, compute as ever.
func WithFlushToZero(f func()) bool {
	if flushBits == 0 {
		return false
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mode := floatMode()
	defer setFloatMode(mode)
	setFloatMode(mode | flushBits)
	f()
	return true
}
