//go:build unix

package gguf

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapFile maps the first size bytes of file, read-only, until unmap is called.
func mapFile(file *os.File, size int) (data []byte, unmap func() error, err error) {
	data, err = unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, err
	}
	return data, func() error { return unix.Munmap(data) }, nil
}

// forget gives back the pages that lie wholly within data, a part of a mapping. They are read from disk
// again when they are used again.
func forget(data []byte) {
	page := uintptr(os.Getpagesize())
	first := uintptr(unsafe.Pointer(unsafe.SliceData(data)))
	lo := (first + page - 1) &^ (page - 1)
	hi := (first + uintptr(len(data))) &^ (page - 1)
	if lo < hi {
		// A system that refuses keeps them until it needs the memory, which is no harm.
		_ = unix.Madvise(data[lo-first:hi-first], unix.MADV_DONTNEED)
	}
}
