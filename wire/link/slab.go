package link

import (
	"sync"

	"kvasir/internal/moe"
)

// Bounds of what a pool keeps.
const (
	slabCount = 16
	slabBytes = 64 << 20
	slabUnit  = 4 << 10 // sizes are rounded up to a multiple
)

// slabs keeps memory of messages from one use to the next. What get returns is aligned; what put takes
// need not be, if no user of the pool minds.
type slabs struct {
	mu   sync.Mutex // leaf
	free [][]byte
	held int // bytes of free
}

// get returns n bytes of any content, of the smallest slab that holds them.
func (s *slabs) get(n int) []byte {
	s.mu.Lock()
	best := -1
	for i, b := range s.free {
		if cap(b) >= n && (best < 0 || cap(b) < cap(s.free[best])) {
			best = i
		}
	}
	if best >= 0 {
		b := s.free[best]
		last := len(s.free) - 1
		s.free[best], s.free[last] = s.free[last], nil
		s.free = s.free[:last]
		s.held -= cap(b)
		s.mu.Unlock()
		return b[:n]
	}
	s.mu.Unlock()
	return moe.AlignedBytes((n + slabUnit - 1) / slabUnit * slabUnit)[:n]
}

// put gives b back. It takes the place of a smaller one where there is no room for both.
func (s *slabs) put(b []byte) {
	if cap(b) == 0 || cap(b) > slabBytes {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.free) == slabCount || s.held+cap(b) > slabBytes {
		least := 0
		for i, f := range s.free {
			if cap(f) < cap(s.free[least]) {
				least = i
			}
		}
		if cap(s.free[least]) >= cap(b) {
			return
		}
		last := len(s.free) - 1
		s.held -= cap(s.free[least])
		s.free[least], s.free[last] = s.free[last], nil
		s.free = s.free[:last]
	}
	s.free = append(s.free, b[:0])
	s.held += cap(b)
}
