package cpu

import (
	"fmt"
	"runtime"
	"sync"

	"kvasir/internal/moe"
)

// arenaPiece is how much memory is asked of the system at least.
const arenaPiece = 64 << 20

// Arena is memory for repacked weights, outside the heap of Go where the system allows it, in huge
// pages where it has them. It goes back to the system when nothing refers to the arena any more: who
// keeps weights in it keeps it.
type Arena struct {
	mu     sync.Mutex
	free   []byte
	pieces *pieces
}

// pieces is what has been asked of the system.
type pieces struct{ list [][]byte }

// NewArena returns an empty arena.
func NewArena() *Arena {
	a := &Arena{pieces: &pieces{}}
	runtime.AddCleanup(a, func(p *pieces) {
		for _, m := range p.list {
			unmapMemory(m)
		}
	}, a.pieces)
	return a
}

// alloc returns n zero bytes at an address that is a multiple of 64.
func (a *Arena) alloc(n int) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	size := (n + moe.SlabAlign - 1) &^ (moe.SlabAlign - 1)
	if size > len(a.free) {
		m, err := mapMemory((max(size, arenaPiece) + 2<<20 - 1) &^ (2<<20 - 1))
		if err != nil {
			return nil, fmt.Errorf("%d MiB for repacked weights: %w; give the model more memory, or fewer layers",
				size>>20, err)
		}
		a.pieces.list = append(a.pieces.list, m)
		a.free = m
	}
	b := a.free[:n:n]
	a.free = a.free[size:]
	return b, nil
}
