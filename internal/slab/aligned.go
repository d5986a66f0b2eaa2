package slab

import "unsafe"

// Aligned returns n zero bytes of the Go heap whose address is a multiple of Align. The Go collector does
// not move them, so the address stays.
func Aligned(n int) []byte {
	raw := make([]byte, n+Align-1)
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(raw))) & (Align - 1))
	return raw[off : off+n : off+n]
}
