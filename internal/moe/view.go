package moe

import "unsafe"

// View returns p as numbers in little-endian order, without a copy. It reports false where that cannot
// be: this machine has another order, p does not begin at a multiple of a number's size, or the last
// number is cut. The view is valid as long as p is.
func View[T int8 | uint16 | float32](p []byte) ([]T, bool) {
	var zero T
	size := int(unsafe.Sizeof(zero))
	if len(p) == 0 {
		return nil, true
	}
	at := unsafe.Pointer(unsafe.SliceData(p))
	if len(p)%size != 0 || uintptr(at)%uintptr(size) != 0 || size > 1 && !littleEndian() {
		return nil, false
	}
	return unsafe.Slice((*T)(at), len(p)/size), true
}

// Bytes returns s as bytes in little-endian order, without a copy. It reports false where this machine has
// another order. The view is valid as long as s is.
func Bytes[T int8 | uint16 | float32](s []T) ([]byte, bool) {
	size := int(unsafe.Sizeof(*new(T)))
	if len(s) == 0 {
		return nil, true
	}
	if size > 1 && !littleEndian() {
		return nil, false
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*size), true
}

func littleEndian() bool {
	one := uint16(1)
	return *(*byte)(unsafe.Pointer(&one)) == 1
}
