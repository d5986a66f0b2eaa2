package place

import (
	"cmp"
	"slices"
)

// maxRanges bounds the ranges of a worker; wire.Assign names 256 at most.
const maxRanges = 256

// hot is how many times the average of its layer an expert is picked to be worth a copy of its own.
const hot = 2

// give has site i hold an expert that it does not hold.
func (p *layout) give(i, l, e int) {
	p.has[i].add(l, e)
	p.holders[l][e]++
	p.room[i] -= p.m.ExpertBytes[l]
}

// copies counts the workers that have a layer whole.
func (p *layout) copies(l int) int {
	n := 0
	for i := range p.has {
		if p.has[i].count(l) == p.m.Experts {
			n++
		}
	}
	return n
}

// keepCopies leaves copies with those who hold them, as far as there is room.
func (p *layout) keepCopies() {
	for l := range p.m.Layers {
		for i := range p.sites {
			if p.sites[i].idle || p.sites[i].held.count(l) == 0 {
				continue
			}
			for e := range p.m.Experts {
				if p.sites[i].held.has(l, e) && !p.has[i].has(l, e) && p.room[i] >= p.m.ExpertBytes[l] &&
					p.holders[l][e] < p.b.Copies {
					p.give(i, l, e)
				}
			}
		}
	}
}

// copyWhole copies layers of whoever works longest to whoever works least, as long as somebody has room.
func (p *layout) copyWhole() {
	if p.m.Experts == 0 {
		return
	}
	order := make([]int, 0, p.m.Layers)
	for l := range p.m.Layers {
		if !p.local.has(l, 0) {
			order = append(order, l)
		}
	}
	after := slices.Clone(p.busy) // with half of the work for each copy
	for n := 1; n < p.b.Copies; n++ {
		slices.SortStableFunc(order, func(x, y int) int {
			return cmp.Compare(p.ownerBusy(y), p.ownerBusy(x))
		})
		for _, l := range order {
			if p.copies(l) != n {
				continue
			}
			if i := p.roomiest(l, after); i != nobody {
				for e := range p.m.Experts {
					if !p.has[i].has(l, e) {
						p.give(i, l, e)
					}
				}
				after[i] += float64(p.seconds(i, 1, true) / 2)
			}
		}
	}
}

// ownerBusy is how long the owner of a layer's first expert works.
func (p *layout) ownerBusy(l int) float64 {
	if o := p.owner[l][0]; o >= 0 {
		return p.busy[o]
	}
	return 0
}

// roomiest returns who works least of those with room for all that they lack of a layer.
func (p *layout) roomiest(l int, busy []float64) int {
	best := nobody
	for i := range p.sites {
		lacks := int64(p.m.Experts - p.has[i].count(l))
		if p.sites[i].idle || lacks == 0 || p.room[i] < lacks*p.m.ExpertBytes[l] {
			continue
		}
		if best == nobody || p.sooner(i, best, l, busy) {
			best = i
		}
	}
	return best
}

// sooner prefers who has a layer on its disk, then who works least.
func (p *layout) sooner(i, o, l int, busy []float64) bool {
	a, b := p.near(i, l) > 0, p.near(o, l) > 0
	if a != b {
		return a
	}
	return busy[i] < busy[o]
}

// copyHot copies single experts that are picked far more often than their neighbours.
func (p *layout) copyHot() {
	type pick struct {
		l, e int
		load float64
	}
	var list []pick
	for l := range p.m.Layers {
		for e, x := range p.m.Load[l] {
			if float64(x*float64(p.m.Experts)) >= hot && p.owner[l][e] >= 0 {
				list = append(list, pick{l, e, x})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b pick) int { return cmp.Compare(b.load, a.load) })
	runs := make([]int, len(p.sites))
	for i := range runs {
		for l := range p.m.Layers {
			runs[i] += p.has[i].runs(p.m, l)
		}
	}
	for _, x := range list {
		if p.holders[x.l][x.e] >= p.b.Copies {
			continue
		}
		best := nobody
		for i := range p.sites {
			if p.sites[i].idle || p.has[i].has(x.l, x.e) || p.room[i] < p.m.ExpertBytes[x.l] || runs[i] >= maxRanges {
				continue
			}
			if best == nobody || p.busy[i] < p.busy[best] {
				best = i
			}
		}
		if best != nobody {
			p.give(best, x.l, x.e)
			runs[best]++
		}
	}
}
