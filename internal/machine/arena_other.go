//go:build !linux

package machine

// newArena returns memory.
func newArena(size int) (arena []byte, free func()) {
	return make([]byte, size), func() {}
}
