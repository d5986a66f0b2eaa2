package kerneltest

import (
	"errors"
	"fmt"
	"testing"
	"unsafe"
)

// A place is what surrounds a region.
type place uint8

const (
	betweenCanaries place = iota // canaries on both sides
	beforeGuard                  // its end is the end of what may be touched
	afterGuard                   // its beginning is the beginning of what may be touched
)

// canaryBytes is how many canaries stand on each side of a region without guard pages: more than a
// kernel writes at once.
const canaryBytes = 512

// region is memory that notices when its neighbours are touched.
type region struct {
	data   []byte
	around [2][]byte // canaries before and after
	pages  []byte    // what a guarded region was mapped as; nil for others
}

// errNoGuards: this system has no guard pages, or this package does not know how to make them.
var errNoGuards = errors.New("kerneltest: guard pages are only made on Linux")

// newRegion returns n zero bytes.
func newRegion(n int, p place) (*region, error) {
	r := &region{}
	if p == betweenCanaries {
		all := make([]byte, n+2*canaryBytes)
		r.data = all[canaryBytes : canaryBytes+n : canaryBytes+n]
		r.around = [2][]byte{all[:canaryBytes], all[canaryBytes+n:]}
	} else if err := r.mapPages(n, p == beforeGuard); err != nil {
		return nil, err
	}
	for side, c := range r.around {
		for i := range c {
			c[i] = canary(side, i)
		}
	}
	return r, nil
}

func canary(side, i int) byte { return byte(0xa5 ^ 89*i ^ side) }

// check returns an error if a canary is not what it was.
func (r *region) check() error {
	for side, c := range r.around {
		for i, v := range c {
			if v == canary(side, i) {
				continue
			}
			if side == 0 {
				return fmt.Errorf("the byte %d before a buffer of %d bytes was written", len(c)-i, len(r.data))
			}
			return fmt.Errorf("byte %d of a buffer of %d bytes was written", len(r.data)+i, len(r.data))
		}
	}
	return nil
}

// Guarded returns n zero bytes whose last one stands right before memory that may not be read or
// written: on Linux the process dies of it (debug.SetPanicOnFault makes it a panic). Elsewhere, and
// for what is before the bytes, canaries are written; a test that ends with one changed has failed.
// The memory is gone when the test ends.
func Guarded(t testing.TB, n int) []byte { return guarded(t, n, beforeGuard) }

// GuardedLow is Guarded with the forbidden memory right before the first byte.
func GuardedLow(t testing.TB, n int) []byte { return guarded(t, n, afterGuard) }

// Canaried returns n zero bytes with canaries on both sides.
func Canaried(t testing.TB, n int) []byte { return guarded(t, n, betweenCanaries) }

func guarded(t testing.TB, n int, p place) []byte {
	t.Helper()
	r, err := newRegion(n, p)
	if errors.Is(err, errNoGuards) {
		r, err = newRegion(n, betweenCanaries)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.check(); err != nil {
			t.Error(err)
		}
		if err := r.release(); err != nil {
			t.Error(err)
		}
	})
	return r.data
}

// Values views bytes, as Guarded returns them, as values of T, which holds no pointers. The end of
// the values is that of the bytes.
func Values[T int8 | int32 | int64 | uint16 | uint32 | float32 | ~uint8](b []byte) []T {
	var zero T
	size := int(unsafe.Sizeof(zero))
	if len(b) == 0 {
		return nil
	}
	first := unsafe.Pointer(unsafe.SliceData(b))
	if len(b)%size != 0 || uintptr(first)%uintptr(size) != 0 {
		panic(fmt.Sprintf("BUG: %d bytes at %p are not values of %d bytes", len(b), first, size))
	}
	return unsafe.Slice((*T)(first), len(b)/size)
}
