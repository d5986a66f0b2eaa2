package tokenizer

import (
	"cmp"
	"slices"
)

// specials finds the tokens that stand for themselves in text: a trie of their bytes.
type specials struct {
	nodes []trieNode // nodes[0] is the root; nil when there are none
}

type trieNode struct {
	next    map[byte]int32
	id      int32 // of the token that ends here, -1 if none
	control bool

	inControl bool // a longer control token goes on from here
}

// cut is a special token at bytes at to at+n of a text.
type cut struct {
	at, n int
	id    int32
}

func (s *specials) add(text string, id int32, control bool) {
	if s.nodes == nil {
		s.nodes = []trieNode{{id: -1}}
	}
	at := int32(0)
	for i := range len(text) {
		s.nodes[at].inControl = s.nodes[at].inControl || control
		next, ok := s.nodes[at].next[text[i]]
		if !ok {
			next = int32(len(s.nodes))
			if s.nodes[at].next == nil {
				s.nodes[at].next = map[byte]int32{}
			}
			s.nodes[at].next[text[i]] = next
			s.nodes = append(s.nodes, trieNode{id: -1})
		}
		at = next
	}
	s.nodes[at].id, s.nodes[at].control = id, control
}

// trust says where in a text a control token counts.
type trust struct {
	control bool
	plain   []int // no control token may cover one of these bytes; ascending
}

func (w trust) allows(at, n int) bool {
	i, _ := slices.BinarySearch(w.plain, at)
	return w.control && (i == len(w.plain) || w.plain[i] >= at+n)
}

// cut returns the special tokens of text in order; control tokens only where trusted. Where two
// overlap the longer one wins, then the one with the lower id, then the one further left: what
// comes out when each token in turn, the longest first, is cut from what the tokens before it left.
func (s *specials) cut(text string, trusted trust) []cut {
	byLength := s.find(text, trusted)
	var kept []cut
	var taken []bool
	for n := len(byLength) - 1; n > 0; n-- {
		slices.SortFunc(byLength[n], func(a, b cut) int {
			return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.at, b.at))
		})
		for _, c := range byLength[n] {
			if taken == nil {
				taken = make([]bool, len(text))
			}
			// What is taken already is at least as long, so it covers an end of whatever overlaps
			// it.
			switch {
			case taken[c.at]:
			case taken[c.at+n-1]:
				if c, ok := s.longest(text, c.at, n-1, trusted); ok {
					byLength[c.n] = append(byLength[c.n], c)
				}
			default:
				for i := range n {
					taken[c.at+i] = true
				}
				kept = append(kept, c)
			}
		}
	}
	slices.SortFunc(kept, func(a, b cut) int { return cmp.Compare(a.at, b.at) })
	return kept
}

// find returns the longest special token at each place of text, by length. Shorter ones at the same
// place are looked for when the longest is in another's way, so that what is held does not grow
// with how many tokens begin alike.
func (s *specials) find(text string, trusted trust) [][]cut {
	if s.nodes == nil {
		return nil
	}
	var byLength [][]cut
	for at := range len(text) {
		if c, ok := s.longest(text, at, len(text)-at, trusted); ok {
			for len(byLength) <= c.n {
				byLength = append(byLength, nil)
			}
			byLength[c.n] = append(byLength[c.n], c)
		}
	}
	return byLength
}

// longest returns the longest special token of at most most bytes that stands at byte at.
func (s *specials) longest(text string, at, most int, trusted trust) (c cut, ok bool) {
	node := int32(0)
	for n := 0; n < most; {
		next, more := s.nodes[node].next[text[at+n]]
		if !more {
			break
		}
		node = next
		n++
		if x := &s.nodes[node]; x.id >= 0 && (!x.control || trusted.allows(at, n)) {
			c, ok = cut{at, n, x.id}, true
		}
	}
	return c, ok
}

// begins reports whether a control token begins at byte at of text, or would with more text behind.
func (s *specials) begins(text string, at int) bool {
	if s.nodes == nil {
		return false
	}
	node := int32(0)
	for ; at < len(text); at++ {
		next, more := s.nodes[node].next[text[at]]
		if !more {
			return false
		}
		node = next
		if s.nodes[node].control && s.nodes[node].id >= 0 {
			return true
		}
	}
	return s.nodes[node].inControl
}
