package model

import (
	"errors"
	"fmt"
	"sync"

	"kvasir/kernels/cpu"
)

// PagePositions is how many positions a page of keys and values holds. Sequences take memory page by page,
// and share whole pages.
const PagePositions = 32

// ErrMemory is wrapped by errors about sequences for which no room is left. What asked stays as it was, and
// can be tried again when others have been freed.
var ErrMemory = errors.New("model: no memory for another sequence")

// Memory holds what sequences keep: pages of keys and values, and the states of DeltaNet layers. It is
// safe for concurrent use.
//
// With a budget, pages stay after their sequence has ended, as long as nobody else needs the room: a
// sequence that begins with the same tokens takes them up (Resume). See prefix.go.
type Memory struct {
	m      *Model
	budget int64 // bytes; 0: no limit, and nothing is kept

	mu        sync.Mutex
	used      int64 // bytes of blocks in use, those of prefixes included; under mu
	cached    int64 // bytes of blocks that prefixes hold alone; under mu
	sequences int   // under mu
	pages     blocks
	states    blocks
	prefixes  prefixes
}

// MemoryStats is how full a Memory is.
type MemoryStats struct {
	Budget    int64 // bytes; 0: no limit
	Used      int64 // bytes, Cached included
	Cached    int64 // bytes that are kept for prefixes alone and go when others need them
	Sequences int
}

// NewMemory returns room for sequences of together at most budget bytes; 0 is no limit.
func (m *Model) NewMemory(budget int64) *Memory {
	r := cpu.NewRegions()
	mem := &Memory{
		m: m, budget: budget,
		pages:  blocks{regions: r, size: m.layout.pageBytes},
		states: blocks{regions: r, size: m.layout.stateBytes},
	}
	mem.prefixes.init()
	return mem
}

// Stats tells how full mem is.
func (mem *Memory) Stats() MemoryStats {
	mem.mu.Lock()
	defer mem.mu.Unlock()
	return MemoryStats{mem.budget, mem.used, mem.cached, mem.sequences}
}

// SequenceBytes is how much memory a sequence of so many tokens takes at most.
func (m *Model) SequenceBytes(tokens int) int64 {
	pages := (tokens + PagePositions - 1) / PagePositions
	return int64(m.layout.stateBytes) + int64(pages)*int64(m.layout.pageBytes)
}

// block is one piece of memory: a page, or the states of a sequence.
type block struct {
	cpu.Region
	refs int  // sequences and prefixes that hold it; under Memory.mu
	kept bool // a prefix holds it; under Memory.mu
}

// slabBytes is how much memory is asked of the system at once. Blocks that are larger go back to it when
// the room is needed for others; smaller ones stay, free.
const slabBytes = 1 << 20

// blocks are blocks of one size.
type blocks struct {
	regions *cpu.Regions
	size    int // bytes; may be 0: such blocks take no memory
	free    []cpu.Region
	mapped  int64 // bytes asked of the system
}

// get returns a block; its bytes are stale.
func (b *blocks) get() (*block, error) {
	if b.size == 0 {
		return &block{refs: 1}, nil
	}
	if len(b.free) == 0 {
		n := max(1, slabBytes/b.size)
		slab, err := b.regions.Get(n * b.size)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrMemory, err)
		}
		b.mapped += int64(n * b.size)
		for at := 0; at < len(slab.Bytes); at += b.size {
			b.free = append(b.free, cpu.Region{
				Bytes: slab.Bytes[at:][:b.size:b.size], Floats: slab.Floats[at/4:][: b.size/4 : b.size/4],
			})
		}
	}
	last := len(b.free) - 1
	x := &block{Region: b.free[last], refs: 1}
	b.free = b.free[:last]
	return x, nil
}

func (b *blocks) put(x *block) {
	if b.size > 0 {
		b.free = append(b.free, x.Region)
	}
}

// trim gives free blocks back to the system until no more than so many bytes are held of it, as far as
// each is a region of its own.
func (b *blocks) trim(bytes int64) {
	if 2*b.size <= slabBytes { // several to a slab
		return
	}
	for len(b.free) > 0 && b.mapped > bytes {
		last := len(b.free) - 1
		b.regions.Release(b.free[last])
		b.free = b.free[:last]
		b.mapped -= int64(b.size)
	}
}

// take returns a block of b, for which prefixes that nobody uses make room, and in need saved states of
// those in use. Under mu.
func (mem *Memory) take(b *blocks, need bool) (*block, error) {
	size := int64(b.size)
	if mem.budget > 0 {
		for mem.used+size > mem.budget {
			if !mem.evict() && !(need && mem.evictState()) {
				return nil, fmt.Errorf("%w: %d MiB of %d MiB are in use", ErrMemory, mem.used>>20, mem.budget>>20)
			}
		}
		if len(b.free) == 0 { // free blocks of the other size count as well
			other := &mem.pages
			if b == other {
				other = &mem.states
			}
			other.trim(mem.budget - b.mapped - size)
		}
	}
	x, err := b.get()
	if err == nil {
		mem.used += size
	}
	return x, err
}

// hold takes another hold on a block. Under mu.
func (mem *Memory) hold(b *blocks, x *block) {
	if x.kept && x.refs == 1 {
		mem.cached -= int64(b.size)
	}
	x.refs++
}

// drop gives up a sequence's hold on a block. Under mu.
func (mem *Memory) drop(b *blocks, x *block) {
	switch x.refs--; {
	case x.refs == 0:
		mem.used -= int64(b.size)
		b.put(x)
	case x.refs == 1 && x.kept:
		mem.cached += int64(b.size)
	}
}

// forget gives up a block that only a prefix holds. Under mu.
func (mem *Memory) forget(b *blocks, x *block) {
	mem.cached -= int64(b.size)
	x.kept = false
	mem.drop(b, x)
}
