package machine

import "golang.org/x/sys/unix"

// newArena returns memory of its own pages, huge ones where they are to be had, as weights use it.
func newArena(size int) (arena []byte, free func()) {
	arena, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, func() {}
	}
	_ = unix.Madvise(arena, unix.MADV_HUGEPAGE) // without it is slower, and still true
	return arena, func() { _ = unix.Munmap(arena) }
}
