package model

import (
	"errors"
	"slices"
)

// Sequence is the state of one sequence: keys and values, convolution and DeltaNet states. It belongs to
// one caller at a time, who frees it.
type Sequence struct {
	mem   *Memory
	err   error // why it cannot go on; a failed step leaves the state half moved
	busy  bool  // part of a Forward under way; guards against one sequence twice in a call
	freed bool

	tokens []int32  // taken
	pages  []*block // of keys and values, in the order of positions; full ones may be shared
	state  *block   // of the DeltaNet layers, its own

	shared *prefix // the last of its pages that is a prefix for others; nil: none, or mem keeps none
	branch int     // where its state is to be saved, for others that part here; 0: nowhere
}

// NewSequence returns an empty sequence.
func (mem *Memory) NewSequence() (*Sequence, error) {
	s, err := mem.newSequence()
	if err != nil {
		return nil, err
	}
	clear(s.state.Bytes)
	return s, nil
}

// newSequence returns a sequence whose state is stale.
func (mem *Memory) newSequence() (*Sequence, error) {
	mem.mu.Lock()
	defer mem.mu.Unlock()
	state, err := mem.take(&mem.states, true)
	if err != nil {
		return nil, err
	}
	mem.sequences++
	s := &Sequence{mem: mem, state: state}
	if mem.budget > 0 && mem.pages.size > 0 { // pages that take no memory would never have to go
		s.shared = mem.prefixes.root
		mem.pin(s.shared)
	}
	return s, nil
}

// Len is the number of tokens that the sequence has taken.
func (s *Sequence) Len() int { return len(s.tokens) }

// Err is why the sequence cannot go on, or nil.
func (s *Sequence) Err() error { return s.err }

// Free gives back all memory of the sequence, which cannot be used any more. It may not be part of a
// Forward under way.
func (s *Sequence) Free() {
	mem := s.mem
	mem.mu.Lock()
	defer mem.mu.Unlock()
	if s.freed {
		return
	}
	if s.busy {
		panic("BUG: a sequence was freed in the middle of a step")
	}
	s.freed = true
	mem.sequences--
	for _, p := range s.pages {
		mem.drop(&mem.pages, p)
	}
	mem.drop(&mem.states, s.state)
	if s.shared != nil {
		mem.unpin(s.shared)
	}
	s.pages, s.state, s.shared, s.tokens = nil, nil, nil, nil
	s.err = errFreed
}

var errFreed = errors.New("model: the sequence was freed")

// Fork returns another sequence with the same past. Full pages are shared.
func (s *Sequence) Fork() (*Sequence, error) {
	if s.err != nil {
		return nil, s.err
	}
	mem := s.mem
	f, err := mem.newSequence()
	if err != nil {
		return nil, err
	}
	copy(f.state.Bytes, s.state.Bytes)
	f.tokens = slices.Clone(s.tokens)
	mem.mu.Lock()
	full := len(s.tokens) / PagePositions
	for _, p := range s.pages[:full] {
		mem.hold(&mem.pages, p)
		f.pages = append(f.pages, p)
	}
	if s.shared != nil {
		mem.pin(s.shared)
		mem.unpin(f.shared)
		f.shared = s.shared
	}
	mem.mu.Unlock()
	if full*PagePositions == len(s.tokens) {
		return f, nil
	}
	if err := f.reserve(0); err != nil {
		f.Free()
		return nil, err
	}
	copy(f.pages[full].Bytes, s.pages[full].Bytes)
	return f, nil
}

// reserve makes room for n more tokens. An error leaves the sequence as it was.
func (s *Sequence) reserve(n int) error {
	want := (len(s.tokens) + n + PagePositions - 1) / PagePositions
	if want <= len(s.pages) {
		return nil
	}
	mem := s.mem
	mem.mu.Lock()
	defer mem.mu.Unlock()
	had := len(s.pages)
	for len(s.pages) < want {
		p, err := mem.take(&mem.pages, true)
		if err != nil {
			for _, p := range s.pages[had:] {
				mem.drop(&mem.pages, p)
			}
			s.pages = s.pages[:had]
			return err
		}
		s.pages = append(s.pages, p)
	}
	return nil
}

// chunk is how many of n more tokens may be taken at once: up to where the state is to be saved.
func (s *Sequence) chunk(n int) int {
	if left := s.branch - len(s.tokens); left > 0 {
		return min(n, left)
	}
	return n
}

// took notes tokens that went through all layers.
func (s *Sequence) took(tokens []int32) {
	s.tokens = append(s.tokens, tokens...)
	if s.err == nil && !s.known() {
		s.mem.share(s)
	}
}
