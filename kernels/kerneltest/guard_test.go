package kerneltest

import (
	"errors"
	"math"
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"
)

// reads reports whether the byte at an offset from the beginning of data can be read.
func reads(data []byte, offset int) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { ok = recover() == nil }()
	at := (*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(data)), offset))
	runtime.KeepAlive(*at)
	return true
}

func TestGuardedEndsWhereNothingCanBeRead(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("guard pages are only made on Linux")
	}
	for _, n := range []int{1, 4, 63, 4095, 4096, 4097, 100_000} {
		high, low := Guarded(t, n), GuardedLow(t, n)
		if len(high) != n || len(low) != n || cap(high) != n || cap(low) != n {
			t.Fatalf("%d and %d bytes, want %d", len(high), len(low), n)
		}
		if !reads(high, n-1) || !reads(low, 0) {
			t.Errorf("%d bytes: the last or the first cannot be read", n)
		}
		if reads(high, n) || reads(low, -1) {
			t.Errorf("%d bytes: what is beyond can be read", n)
		}
	}
}

func TestCanariesNoticeWrites(t *testing.T) {
	for _, p := range []place{betweenCanaries, beforeGuard, afterGuard} {
		for _, offset := range []int{-1, -40, 100, 140} {
			r, err := newRegion(100, p)
			if errors.Is(err, errNoGuards) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if p == beforeGuard && offset > 0 || p == afterGuard && offset < 0 {
				continue // is a fault
			}
			if err := r.check(); err != nil {
				t.Errorf("place %d: %v before anything was written", p, err)
			}
			*(*byte)(unsafe.Add(unsafe.Pointer(&r.data[0]), offset))++
			if r.check() == nil {
				t.Errorf("place %d: a write at %d of 100 bytes was not noticed", p, offset)
			}
			if err := r.release(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestFrozenRegionsCanOnlyBeRead(t *testing.T) {
	r, err := newRegion(100, beforeGuard)
	if errors.Is(err, errNoGuards) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := r.freeze(); err != nil {
		t.Fatal(err)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() == nil {
			t.Error("a frozen region was written")
		}
		if err := r.release(); err != nil {
			t.Error(err)
		}
	}()
	r.data[5] = 1
}

//go:noinline
func half(x float32) float32 { return x * 0.5 }

//go:noinline
func add(x, y float32) float32 { return x + y }

func TestWithFlushToZeroFlushesAndRestores(t *testing.T) {
	smallest := math.Float32frombits(0x00800000) // of the normal numbers
	const subnormal = 0x1p-149
	var result, operand float32
	if !WithFlushToZero(func() { result, operand = half(smallest), add(subnormal, subnormal) }) {
		t.Skip("this build has no assembly")
	}
	if result != 0 || operand != 0 {
		t.Errorf("%g and %g, want zeros", result, operand)
	}
	if half(smallest) == 0 || add(subnormal, subnormal) == 0 {
		t.Error("the mode stayed")
	}
	func() {
		defer func() { _ = recover() }()
		WithFlushToZero(func() { panic("out of here") })
	}()
	if half(smallest) == 0 {
		t.Error("the mode stayed after a panic")
	}
}
