package cpu_test

import (
	"runtime"
	"testing"

	"kvasir/kernels/cpu"
)

func TestRegionsAreZeroAndTheSameMemoryTwice(t *testing.T) {
	r := cpu.NewRegions()
	x, err := r.Get(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if len(x.Bytes) != 4<<20 || len(x.Floats) != 1<<20 {
		t.Fatalf("%d bytes and %d floats", len(x.Bytes), len(x.Floats))
	}
	for i, v := range x.Floats {
		if v != 0 {
			t.Fatalf("float %d is %v", i, v)
		}
	}
	x.Floats[1<<20-1] = 1
	if x.Bytes[4<<20-1] != 0x3f {
		t.Error("floats and bytes are not the same memory")
	}
	r.Release(x)
	defer func() {
		if recover() == nil {
			t.Error("a region was given back twice")
		}
		runtime.KeepAlive(r)
	}()
	r.Release(x)
}
