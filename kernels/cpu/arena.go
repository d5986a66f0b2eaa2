package cpu

import (
	"fmt"
	"runtime"
	"sync"

	"kvasir/internal/moe"
)

// arenaPiece is how much memory is asked of the system at least; hugePage is the size of its larger pages.
const (
	arenaPiece = 64 << 20
	hugePage   = 2 << 20
)

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

// reserve makes room for n bytes in one piece, so that what is read together lies together.
func (a *Arena) reserve(n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.grow(n)
}

// alloc returns n zero bytes at an address that is a multiple of 64.
func (a *Arena) alloc(n int) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	size := inLines(n)
	if err := a.grow(size); err != nil {
		return nil, err
	}
	b := a.free[:n:n]
	a.free = a.free[size:]
	return b, nil
}

// inLines returns n rounded up to whole cache lines.
func inLines(n int) int { return (n + moe.SlabAlign - 1) &^ (moe.SlabAlign - 1) }

// grow asks the system for memory unless n bytes are free. What was free before is left unused: at most
// what one matrix takes, or a layer.
func (a *Arena) grow(n int) error {
	if n <= len(a.free) {
		return nil
	}
	m, err := mapMemory((max(n, arenaPiece) + hugePage - 1) &^ (hugePage - 1))
	if err != nil {
		return fmt.Errorf("%d MiB for repacked weights: %w; give the model more memory, or fewer layers", (n+1<<20-1)>>20, err)
	}
	a.pieces.list = append(a.pieces.list, m)
	a.free = m
	return nil
}
