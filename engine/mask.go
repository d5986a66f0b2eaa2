package engine

import (
	"kvasir/batcher"
	"kvasir/batcher/place"
)

// mask is some experts of a model's layers. All masks of a swarm have the same shape.
type mask struct {
	experts int    // a layer
	has     []bool // layer x experts + expert
}

func newMask(layers, experts int) mask { return mask{experts, make([]bool, layers*experts)} }

func (m mask) clone() mask { return mask{m.experts, append([]bool(nil), m.has...)} }

// add adds ranges; what the model does not have is left out.
func (m mask) add(list []place.Range) {
	for _, r := range list {
		for e := max(0, r.Lo); e < min(r.Hi, m.experts) && r.Layer >= 0; e++ {
			if at := r.Layer*m.experts + e; at < len(m.has) {
				m.has[at] = true
			}
		}
	}
}

// fill adds everything.
func (m mask) fill() mask {
	for i := range m.has {
		m.has[i] = true
	}
	return m
}

func (m mask) combine(o mask, f func(a, b bool) bool) mask {
	c := m.clone()
	for i, b := range o.has {
		c.has[i] = f(c.has[i], b)
	}
	return c
}

func (m mask) or(o mask) mask    { return m.combine(o, func(a, b bool) bool { return a || b }) }
func (m mask) and(o mask) mask   { return m.combine(o, func(a, b bool) bool { return a && b }) }
func (m mask) minus(o mask) mask { return m.combine(o, func(a, b bool) bool { return a && !b }) }

func (m mask) equal(o mask) bool { return m.minus(o).empty() && o.minus(m).empty() }

// count is how many experts are in the mask.
func (m mask) count() (n int) {
	for _, b := range m.has {
		if b {
			n++
		}
	}
	return n
}

func (m mask) empty() bool {
	for _, b := range m.has {
		if b {
			return false
		}
	}
	return true
}

// ranges returns what is in the mask, ascending; none touches the next.
func (m mask) ranges() (list []place.Range) {
	for at := 0; at < len(m.has); at++ {
		if !m.has[at] {
			continue
		}
		layer, lo := at/m.experts, at%m.experts
		for at+1 < (layer+1)*m.experts && m.has[at+1] {
			at++
		}
		list = append(list, place.Range{Layer: layer, Lo: lo, Hi: at%m.experts + 1})
	}
	return list
}

// first returns the first n ranges.
func (m mask) first(n int) mask {
	list := m.ranges()
	c := mask{m.experts, make([]bool, len(m.has))}
	c.add(list[:min(n, len(list))])
	return c
}

// set is the mask as the dispatcher takes it.
func (m mask) set() *batcher.Set {
	s := &batcher.Set{}
	for _, r := range m.ranges() {
		mustAdd(s, r.Layer, r.Lo, r.Hi)
	}
	return s
}

// of returns what of a set a mask of m's shape can say.
func (m mask) of(s *batcher.Set) mask {
	c := mask{m.experts, make([]bool, len(m.has))}
	for at := range c.has {
		c.has[at] = s.Has(at/m.experts, at%m.experts)
	}
	return c
}

// bytes is what the mask takes, where an expert of a layer takes so much.
func (m mask) bytes(expert func(layer int) int64) (n int64) {
	for _, r := range m.ranges() {
		n += int64(r.Hi-r.Lo) * expert(r.Layer)
	}
	return n
}
