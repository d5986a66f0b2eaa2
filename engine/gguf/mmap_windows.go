package gguf

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// mapFile maps the first size bytes of file, read-only, until unmap is called.
func mapFile(file *os.File, size int) (data []byte, unmap func() error, err error) {
	h, err := windows.CreateFileMapping(windows.Handle(file.Fd()), nil, windows.PAGE_READONLY, 0, 0, nil)
	if err != nil {
		return nil, nil, err
	}
	defer windows.CloseHandle(h) //nolint:errcheck // the view keeps the mapping
	addr, err := windows.MapViewOfFile(h, windows.FILE_MAP_READ, 0, 0, uintptr(size))
	if err != nil {
		return nil, nil, err
	}
	// The address is memory that the Go runtime does not manage; vet cannot know.
	view := *(*unsafe.Pointer)(unsafe.Pointer(&addr))
	return unsafe.Slice((*byte)(view), size), func() error { return windows.UnmapViewOfFile(addr) }, nil
}

// forget leaves the pages of a mapping to the system, which takes them when it needs memory.
func forget([]byte) {}
