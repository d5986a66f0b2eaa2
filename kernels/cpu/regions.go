package cpu

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// Regions is memory outside the heap of Go where the system allows it, for what is large and lives longer
// than a call: each region can be given back by itself. What is left goes back when nothing refers to the
// Regions any more: who keeps a region keeps them.
type Regions struct{ held *held }

// held is what has been asked of the system.
type held struct {
	mu   sync.Mutex
	list map[*byte][]byte // by first byte; under mu
}

// Region is a piece of memory, at an address that is a multiple of 64, and zero at first.
type Region struct {
	Bytes  []byte
	Floats []float32 // the same memory
}

// NewRegions returns Regions without any.
func NewRegions() *Regions {
	r := &Regions{held: &held{list: map[*byte][]byte{}}}
	runtime.AddCleanup(r, func(h *held) {
		for _, m := range h.list {
			unmapMemory(m)
		}
	}, r.held)
	return r
}

// Get returns a region of n bytes, a multiple of 4.
func (r *Regions) Get(n int) (Region, error) {
	if n <= 0 || n%4 != 0 {
		panic(fmt.Sprintf("BUG: a region of %d bytes", n))
	}
	m, err := mapMemory(n)
	if err != nil {
		return Region{}, fmt.Errorf("%d MiB: %w", (n+1<<20-1)>>20, err)
	}
	r.held.mu.Lock()
	defer r.held.mu.Unlock()
	r.held.list[&m[0]] = m
	floats := unsafe.Slice((*float32)(unsafe.Pointer(&m[0])), n/4)
	return Region{Bytes: m[:n:n], Floats: floats}, nil
}

// Release gives a region back. Nobody may use it any more.
func (r *Regions) Release(x Region) {
	r.held.mu.Lock()
	defer r.held.mu.Unlock()
	m, ok := r.held.list[&x.Bytes[0]]
	if !ok {
		panic("BUG: a region given back twice")
	}
	delete(r.held.list, &m[0])
	unmapMemory(m)
}
