package place

import "math/bits"

// grid is a set of experts of all layers: a bit each, layers one after the other in whole words.
type grid struct {
	words []uint64
	layer int // words a layer
}

func newGrid(m *Model) grid {
	n := (m.Experts + 63) / 64
	return grid{make([]uint64, n*m.Layers), n}
}

func (g grid) has(layer, e int) bool { return g.words[layer*g.layer+e/64]>>(e%64)&1 != 0 }

func (g grid) add(layer, e int) { g.words[layer*g.layer+e/64] |= 1 << (e % 64) }

// count returns how many experts of a layer are in the set.
func (g grid) count(layer int) int {
	n := 0
	for _, w := range g.words[layer*g.layer : (layer+1)*g.layer] {
		n += bits.OnesCount64(w)
	}
	return n
}

// addRanges adds what of the ranges the model has.
func (g grid) addRanges(m *Model, list []Range) {
	for _, r := range list {
		if r.Layer < 0 || r.Layer >= m.Layers {
			continue
		}
		for e := max(0, r.Lo); e < min(r.Hi, m.Experts); e++ {
			g.add(r.Layer, e)
		}
	}
}

// ranges writes the set as ranges, ascending, none touching the next.
func (g grid) ranges(m *Model) []Range {
	var list []Range
	for l := range m.Layers {
		for e := 0; e < m.Experts; e++ {
			if !g.has(l, e) {
				continue
			}
			lo := e
			for e < m.Experts && g.has(l, e) {
				e++
			}
			list = append(list, Range{l, lo, e})
		}
	}
	return list
}

// runs counts the ranges of one layer.
func (g grid) runs(m *Model, layer int) int {
	n, was := 0, false
	for e := range m.Experts {
		is := g.has(layer, e)
		if is && !was {
			n++
		}
		was = is
	}
	return n
}
