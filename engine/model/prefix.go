package model

import (
	"encoding/binary"
	"slices"
)

// prefixes is a tree of the full pages that sequences have computed, by their tokens: what a page holds
// depends on its tokens and those before it only, to the bit, so a sequence that begins with the same
// tokens takes the pages up and computes the rest.
//
// Where a model has DeltaNet layers, pages are not enough: the state after the last of them is needed,
// and is large. It is saved where two prompts were seen to part, when the second of them comes by, so
// texts that share nothing cost nothing, and the third that begins with a shared text finds the state.
//
// A page stays while a sequence stands on it or on one after it. Others are kept until the room is needed:
// ends of the tree first, those that were left longest ago.
type prefixes struct {
	root  *prefix
	saved []*prefix // those with a state, in the order in which they got it
	idle  prefix    // ring of those that could go, the next to go first
}

// prefix is one page, after those of its ancestors.
type prefix struct {
	parent   *prefix
	key      string // its tokens, 4 bytes each
	page     *block
	state    *block // after the page; nil where there are no DeltaNet layers, or nobody parted here
	children map[string]*prefix
	depth    int // pages up to and with this one
	pins     int // sequences whose last shared page it is

	before, after *prefix // in the ring, nil outside
}

func (p *prefixes) init() {
	p.root = &prefix{children: map[string]*prefix{}}
	p.root.pins = 1 // it never goes
	p.idle.before, p.idle.after = &p.idle, &p.idle
}

// pageKey writes a page's tokens.
func pageKey(tokens []int32) string {
	var b [4 * PagePositions]byte
	for i, t := range tokens[:PagePositions] {
		binary.LittleEndian.PutUint32(b[4*i:], uint32(t))
	}
	return string(b[:])
}

// Resume returns a sequence that has taken as many of tokens as are known from others, all but the last
// one at most: Len tells how many.
func (mem *Memory) Resume(tokens []int32) (*Sequence, error) {
	s, err := mem.newSequence()
	if err != nil {
		return nil, err
	}
	state := mem.resume(s, tokens)
	if state == nil {
		clear(s.state.Bytes)
		return s, nil
	}
	copy(s.state.Bytes, state.Bytes)
	mem.mu.Lock()
	defer mem.mu.Unlock()
	mem.drop(&mem.states, state)
	return s, nil
}

// resume puts s on the longest prefix of tokens that can be gone on from, and returns the state there, with
// a hold on it; nil if there is none.
func (mem *Memory) resume(s *Sequence, tokens []int32) *block {
	mem.mu.Lock()
	defer mem.mu.Unlock()
	if s.shared == nil {
		return nil
	}
	at, from, known, pages := mem.prefixes.root, (*prefix)(nil), 0, 0
	for (known+1)*PagePositions < len(tokens) {
		next := at.children[pageKey(tokens[known*PagePositions:])]
		if next == nil {
			break
		}
		at = next
		if known++; at.state != nil || mem.states.size == 0 {
			from, pages = at, known
		}
	}
	if known > pages {
		s.branch = known * PagePositions
	}
	if from == nil {
		return nil
	}
	mem.pin(from)
	mem.unpin(s.shared)
	s.shared = from
	for p := from; p.page != nil; p = p.parent {
		mem.hold(&mem.pages, p.page)
		s.pages = append(s.pages, p.page)
	}
	slices.Reverse(s.pages)
	s.tokens = slices.Clone(tokens[:pages*PagePositions])
	if from.state != nil {
		mem.hold(&mem.states, from.state)
	}
	return from.state
}

// share makes prefixes of the pages that s has filled, and saves its state where others part.
func (mem *Memory) share(s *Sequence) {
	mem.mu.Lock()
	for (s.shared.depth+1)*PagePositions <= len(s.tokens) {
		done := s.shared.depth
		key := pageKey(s.tokens[done*PagePositions:])
		next := s.shared.children[key]
		if next == nil {
			next = &prefix{
				parent: s.shared, key: key, page: s.pages[done], depth: done + 1, children: map[string]*prefix{},
			}
			next.page.refs++
			next.page.kept = true
			s.shared.children[key] = next
		} else if next.page != s.pages[done] { // computed twice, to the same bits
			mem.hold(&mem.pages, next.page)
			mem.drop(&mem.pages, s.pages[done])
			s.pages[done] = next.page
		}
		mem.pin(next)
		mem.unpin(s.shared)
		s.shared = next
	}
	var save *block
	if at := s.shared; s.branch == len(s.tokens) && s.branch == at.depth*PagePositions && at.state == nil {
		save, _ = mem.take(&mem.states, false) // without room it is not saved
	}
	mem.mu.Unlock()
	if save == nil {
		return
	}
	copy(save.Bytes, s.state.Bytes)
	mem.mu.Lock()
	defer mem.mu.Unlock()
	if s.shared.state != nil { // another was quicker
		mem.drop(&mem.states, save)
		return
	}
	s.shared.state = save
	mem.prefixes.saved = append(mem.prefixes.saved, s.shared)
	save.kept = true
	mem.cached += int64(mem.states.size)
}

// known reports whether s has nothing to share, and no state to save. It takes no lock: s.shared is s's.
func (s *Sequence) known() bool {
	return s.shared == nil || (s.shared.depth+1)*PagePositions > len(s.tokens) && s.branch != len(s.tokens)
}

// pin keeps a prefix and its ancestors. Under mu.
func (mem *Memory) pin(p *prefix) {
	if p.pins++; p.before != nil {
		p.leaveRing()
	}
}

// unpin ends a pin. Under mu.
func (mem *Memory) unpin(p *prefix) {
	if p.pins--; p.pins == 0 && len(p.children) == 0 {
		p.joinRing(mem.prefixes.idle.before) // the last to go
	}
}

// evict gives up the prefix that was left longest ago, and reports whether there was one. Under mu.
func (mem *Memory) evict() bool {
	p := mem.prefixes.idle.after
	if p == &mem.prefixes.idle {
		return false
	}
	p.leaveRing()
	mem.forget(&mem.pages, p.page)
	if p.state != nil {
		mem.unsave(p)
	}
	delete(p.parent.children, p.key)
	if p.parent.pins == 0 && len(p.parent.children) == 0 {
		p.parent.joinRing(&mem.prefixes.idle) // the next to go: nobody has come by it since
	}
	return true
}

// evictState gives up the state that was saved longest ago, and reports whether there was one. Sequences
// stand on its prefix or after it: they have states of their own, and need only the pages. Under mu.
func (mem *Memory) evictState() bool {
	for _, p := range mem.prefixes.saved {
		if p.state.refs == 1 { // nobody copies it
			mem.unsave(p)
			return true
		}
	}
	return false
}

// unsave gives up the state of a prefix. Under mu.
func (mem *Memory) unsave(p *prefix) {
	at := slices.Index(mem.prefixes.saved, p)
	mem.prefixes.saved = slices.Delete(mem.prefixes.saved, at, at+1)
	mem.forget(&mem.states, p.state)
	p.state = nil
}

func (p *prefix) joinRing(before *prefix) {
	p.before, p.after = before, before.after
	before.after.before, before.after = p, p
}

func (p *prefix) leaveRing() {
	p.before.after, p.after.before = p.after, p.before
	p.before, p.after = nil, nil
}
