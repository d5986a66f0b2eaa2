package cpu

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

// mapMemory returns n zero bytes of the system's, at the beginning of a page.
func mapMemory(n int) ([]byte, error) {
	addr, err := windows.VirtualAlloc(0, uintptr(n), windows.MEM_COMMIT|windows.MEM_RESERVE, windows.PAGE_READWRITE)
	if err != nil {
		return nil, err
	}
	// The address is memory that the Go runtime does not manage; vet cannot know.
	view := *(*unsafe.Pointer)(unsafe.Pointer(&addr))
	return unsafe.Slice((*byte)(view), n), nil
}

// unmapMemory gives back what mapMemory has returned.
func unmapMemory(m []byte) {
	if err := windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(m))), 0, windows.MEM_RELEASE); err != nil {
		panic("BUG: weights unmapped: " + err.Error())
	}
}
