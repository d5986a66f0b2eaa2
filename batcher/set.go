package batcher

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"kvasir/internal/moe"
)

// Set says which experts of which layers an executor holds. The zero value is empty. It is not safe for
// concurrent use while it changes; a Dispatcher keeps a copy of its own.
type Set struct {
	layers [][]uint64 // a bit an expert; a layer's slice is as long as its highest expert needs
}

// All returns the set of the first experts experts of the first layers layers.
func All(layers, experts int) (*Set, error) {
	s := &Set{}
	for l := range layers {
		if err := s.Add(l, 0, experts); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Add adds the experts from lo up to and without hi of one layer.
func (s *Set) Add(layer, lo, hi int) error {
	if layer < 0 || layer >= moe.MaxLayers || lo < 0 || lo >= hi || hi > moe.MaxExperts {
		return fmt.Errorf("batcher: layer %d, experts %d to %d: want a layer below %d and experts in order up to %d",
			layer, lo, hi, moe.MaxLayers, moe.MaxExperts)
	}
	if n := layer + 1 - len(s.layers); n > 0 {
		s.layers = append(s.layers, make([][]uint64, n)...)
	}
	words := s.layers[layer]
	if n := (hi+63)/64 - len(words); n > 0 {
		words = append(words, make([]uint64, n)...)
	}
	for e := lo; e < hi; e++ {
		words[e/64] |= 1 << (e % 64)
	}
	s.layers[layer] = words
	return nil
}

// Has reports whether the set holds an expert.
func (s *Set) Has(layer, expert int) bool {
	return layer >= 0 && expert >= 0 && has(s.layer(layer), expert)
}

// Len is how many experts the set holds, of all layers together.
func (s *Set) Len() int {
	n := 0
	for _, words := range s.layers {
		for _, w := range words {
			n += bits.OnesCount64(w)
		}
	}
	return n
}

// Clone returns a copy.
func (s *Set) Clone() *Set {
	c := &Set{layers: slices.Clone(s.layers)}
	for l, words := range c.layers {
		c.layers[l] = slices.Clone(words)
	}
	return c
}

// String writes the set as a person would: "layers 0-3: experts 0-255; layer 4: experts 0-63, 128".
func (s *Set) String() string {
	var text []string
	for l := 0; l < len(s.layers); {
		same := l + 1
		for same < len(s.layers) && equalBits(s.layers[same], s.layers[l]) {
			same++
		}
		if experts := ranges(s.layers[l]); experts != "" && same == l+1 {
			text = append(text, fmt.Sprintf("layer %d: experts %s", l, experts))
		} else if experts != "" {
			text = append(text, fmt.Sprintf("layers %d-%d: experts %s", l, same-1, experts))
		}
		l = same
	}
	if text == nil {
		return "nothing"
	}
	return strings.Join(text, "; ")
}

// layer returns the bits of a layer, nil when nothing of it is held.
func (s *Set) layer(layer int) []uint64 {
	if layer >= len(s.layers) {
		return nil
	}
	return s.layers[layer]
}

// without returns a set that holds nothing of a layer and shares the others with s.
func (s *Set) without(layer int) *Set {
	c := &Set{layers: slices.Clone(s.layers)}
	if layer < len(c.layers) {
		c.layers[layer] = nil
	}
	return c
}

func has(words []uint64, expert int) bool {
	return expert/64 < len(words) && words[expert/64]>>(expert%64)&1 != 0
}

// equalBits compares two bit sets of any length: missing words are zero.
func equalBits(a, b []uint64) bool {
	if len(a) < len(b) {
		a, b = b, a
	}
	for i, w := range a {
		if i < len(b) && w != b[i] || i >= len(b) && w != 0 {
			return false
		}
	}
	return true
}

// ranges writes the members of a bit set: "0-63, 128".
func ranges(words []uint64) string {
	var text []string
	for e := 0; e < 64*len(words); e++ {
		if !has(words, e) {
			continue
		}
		lo := e
		for has(words, e+1) {
			e++
		}
		if lo == e {
			text = append(text, fmt.Sprint(lo))
		} else {
			text = append(text, fmt.Sprintf("%d-%d", lo, e))
		}
	}
	return strings.Join(text, ", ")
}
