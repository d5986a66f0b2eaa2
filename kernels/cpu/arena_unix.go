//go:build unix

package cpu

import "golang.org/x/sys/unix"

// mapMemory returns n zero bytes of the system's, at the beginning of a page.
func mapMemory(n int) ([]byte, error) {
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	adviseHuge(m)
	return m, nil
}

// unmapMemory gives back what mapMemory has returned.
func unmapMemory(m []byte) {
	if err := unix.Munmap(m); err != nil {
		panic("BUG: weights unmapped: " + err.Error())
	}
}
