package place

import (
	"cmp"
	"math"
	"slices"
)

// site is a worker as Make sees it.
type site struct {
	Worker
	room         int64 // bytes to fill
	held, cached grid
	idle         bool // left out
}

func newSite(m *Model, w Worker) site {
	w.Rows, w.Up, w.Down = sane(w.Rows), sane(w.Up), sane(w.Down)
	w.RTT = max(0, w.RTT)
	s := site{Worker: w, held: newGrid(m), cached: newGrid(m)}
	s.room = max(0, w.Memory) / allFifths * fillFifths
	s.held.addRanges(m, w.Held)
	s.cached.addRanges(m, w.Cached)
	return s
}

// guessRows gives those whose speed nobody has measured the middle of the others'.
func guessRows(sites []site) {
	var known []float64
	for i := range sites {
		if sites[i].Rows > 0 {
			known = append(known, sites[i].Rows)
		}
	}
	guess := 1.0
	if n := len(known); n > 0 {
		slices.Sort(known)
		guess = known[n/2]
	}
	for i := range sites {
		if sites[i].Rows == 0 {
			sites[i].Rows = guess
		}
	}
}

// Owners that are no worker.
const (
	nobody = -1
	home   = -2 // the backbone
)

// layout is a plan in the making.
//
// Invariants, checked by the tests of Make:
//
//  1. room is what has of a site leaves of its memory, and never below zero.
//  2. Whoever owns an expert has it; an expert has one owner at most.
//  3. holders counts what is in has.
type layout struct {
	m     *Model
	b     *Backbone
	sites []site

	owner    [][]int // by layer and expert: a site, nobody or home
	has      []grid  // by site: what it owns, and copies
	holders  [][]int // by layer and expert: how many sites have it
	local    grid    // the backbone's
	room     []int64
	homeRoom int64
	busy     []float64 // by site: seconds a step that its owned experts take
	missing  int       // experts that nobody owns

	forecast Forecast
	load     []float64 // by site: share of the time that it works, by the forecast
	rows     []float64 // by site: rows a step, by the forecast
	spared   []spared
}

// spared is a worker that was left out, and what comes out a second with it and without.
type spared struct {
	site          int
	with, without float64
}

// fill lays out a plan. If anew is set, nobody keeps more than its share of the load.
func fill(m *Model, b *Backbone, sites []site, anew bool) *layout {
	p := &layout{
		m: m, b: b, sites: sites, local: newGrid(m), homeRoom: b.Memory,
		has: make([]grid, len(sites)), room: make([]int64, len(sites)), busy: make([]float64, len(sites)),
	}
	for i := range sites {
		p.has[i] = newGrid(m)
		if !sites[i].idle {
			p.room[i] = sites[i].room
		}
	}
	for range m.Layers {
		p.owner = append(p.owner, slices.Repeat([]int{nobody}, m.Experts))
		p.holders = append(p.holders, make([]int, m.Experts))
	}
	p.keepHome()
	limit := slices.Repeat([]float64{math.Inf(1)}, len(sites))
	if anew {
		limit = p.shares()
	}
	p.keepWhole(func(s *site) grid { return s.held }, limit)
	if !anew {
		p.keepParts(func(s *site) grid { return s.held })
	}
	p.keepWhole(func(s *site) grid { return s.cached }, p.shares())
	p.placeWhole()
	p.keepParts(func(s *site) grid { return s.held })
	p.keepParts(func(s *site) grid { return s.cached })
	p.placeParts()
	p.rescue()
	p.keepCopies()
	p.copyWhole()
	p.copyHot()
	p.predict()
	return p
}

// layerBytes is the memory of a whole layer.
func (p *layout) layerBytes(l int) int64 { return p.m.ExpertBytes[l] * int64(p.m.Experts) }

// better reports whether a layout is worth the moves that it takes: it leaves out fewer experts, or
// clearly more comes out.
func (p *layout) better(o *layout) bool {
	if p.missing != o.missing {
		return p.missing < o.missing
	}
	return p.forecast.Tokens > float64(o.forecast.Tokens*worthMoving)
}

// owns reports whether a site has anything.
func (p *layout) owns(i int) bool { return p.room[i] < p.sites[i].room }

// seconds is how long a step a site works for a share of a layer's picks: its compute, its way in and its
// way out run beside each other, so the slowest counts. whole says that rows are divided and not picks.
func (p *layout) seconds(i int, share float64, whole bool) float64 {
	compute, down, up := p.parts(i, share, whole)
	return max(compute, down, up)
}

func (p *layout) parts(i int, share float64, whole bool) (compute, down, up float64) {
	s := &p.sites[i]
	batch, rows := float64(p.b.Batch), p.rowsOf(share, whole)
	compute = float64(float64(batch*share)*float64(p.m.TopK)) / s.Rows
	if s.Down > 0 {
		down = float64(rows*p.m.RowBytes) / s.Down
	}
	if s.Up > 0 {
		up = float64(rows*p.m.PartialBytes) / s.Up
	}
	return compute, down, up
}

// lag is how long a layer is away at a site.
func (p *layout) lag(i int) float64 {
	compute, down, up := p.parts(i, 1, true)
	return p.sites[i].RTT.Seconds() + compute + down + up
}

// rowsOf is how many rows of a micro-batch are sent for a share of a layer's picks.
func (p *layout) rowsOf(share float64, whole bool) float64 {
	if whole {
		return float64(float64(p.b.Batch) * share)
	}
	return float64(float64(p.b.Batch) * touched(share, p.m.TopK))
}

// touched is the share of rows that have one of their k picks among experts that get a share of them.
func touched(share float64, k int) float64 {
	none := 1.0
	for range k {
		none = float64(none * max(0, 1-share))
	}
	return 1 - none
}

// shares is how long each site may work a step so that all work about equally long, and one layer more:
// whole layers do not divide evenly.
func (p *layout) shares() []float64 {
	speed, layer := 0.0, make([]float64, len(p.sites))
	for i := range p.sites {
		if p.sites[i].idle || p.sites[i].room == 0 {
			continue
		}
		layer[i] = p.seconds(i, 1, true)
		if layer[i] > 0 {
			speed += 1 / layer[i]
		}
	}
	limit := make([]float64, len(p.sites))
	for i := range limit {
		if speed > 0 {
			limit[i] = float64(p.m.Layers)/speed + float64(layer[i]/2)
		}
	}
	return limit
}

// own gives the experts of a layer that nobody owns, from lo up to hi, to site i as far as it has room.
func (p *layout) own(i, l, lo, hi int) {
	share, n := 0.0, 0
	for e := lo; e < hi && p.room[i] >= p.m.ExpertBytes[l]; e++ {
		if p.owner[l][e] != nobody {
			continue
		}
		p.owner[l][e] = i
		p.give(i, l, e)
		share += p.m.Load[l][e]
		n++
	}
	if n > 0 {
		p.busy[i] += p.seconds(i, share, n == p.m.Experts)
	}
}

// free reports whether nobody owns anything of a layer.
func (p *layout) free(l int) bool {
	for _, o := range p.owner[l] {
		if o != nobody {
			return false
		}
	}
	return true
}

// keepHome leaves the layers at either end with the backbone.
func (p *layout) keepHome() {
	for n := range min(p.b.Home, (p.m.Layers+1)/2) {
		for _, l := range []int{n, p.m.Layers - 1 - n} {
			if p.free(l) && p.layerBytes(l) <= p.homeRoom {
				p.takeHome(l)
			}
		}
	}
}

// takeHome gives what nobody owns of a layer to the backbone, as far as it has room.
func (p *layout) takeHome(l int) {
	for e, o := range p.owner[l] {
		if o == nobody && p.homeRoom >= p.m.ExpertBytes[l] {
			p.owner[l][e] = home
			p.local.add(l, e)
			p.homeRoom -= p.m.ExpertBytes[l]
		}
	}
}

// keepWhole gives layers to those who have them whole already, as long as they work no longer than their
// limit.
func (p *layout) keepWhole(what func(*site) grid, limit []float64) {
	for l := range p.m.Layers {
		if !p.free(l) {
			continue
		}
		p.giveWhole(l, func(i int) bool {
			return what(&p.sites[i]).count(l) == p.m.Experts && p.busy[i]+p.seconds(i, 1, true) <= limit[i]
		})
	}
}

// giveWhole gives a layer to the one who is done with it first, of those that may have it.
func (p *layout) giveWhole(l int, may func(i int) bool) {
	best, least := nobody, float64(most)
	for i := range p.sites {
		if p.sites[i].idle || p.room[i] < p.layerBytes(l) || !may(i) {
			continue
		}
		switch t := p.busy[i] + p.seconds(i, 1, true); {
		case t < least-float64(least*1e-9), t < least+float64(least*1e-9) && p.near(i, l) > p.near(best, l):
			best, least = i, t
		}
	}
	if best != nobody {
		p.own(best, l, 0, p.m.Experts)
	}
}

// near says how near a layer's weights are to a site: 2 in its memory, 1 on its disk, else 0.
func (p *layout) near(i, l int) int {
	switch n := p.m.Experts; {
	case p.sites[i].held.count(l) == n:
		return 2
	case p.sites[i].cached.count(l) == n:
		return 1
	}
	return 0
}

// keepParts leaves what of a layer is nobody's with those who have it.
func (p *layout) keepParts(what func(*site) grid) {
	for l := range p.m.Layers {
		for i := range p.sites {
			if p.sites[i].idle {
				continue
			}
			g := what(&p.sites[i])
			if g.count(l) == 0 {
				continue
			}
			for e := 0; e < p.m.Experts; e++ {
				lo := e
				for e < p.m.Experts && p.owner[l][e] == nobody && g.has(l, e) {
					e++
				}
				if lo < e {
					p.own(i, l, lo, e)
				}
			}
		}
	}
}

// placeWhole gives layers that are nobody's to whoever is done first.
func (p *layout) placeWhole() {
	for l := range p.m.Layers {
		if p.free(l) {
			p.giveWhole(l, func(int) bool { return true })
		}
	}
}

// placeParts divides what is left of each layer among as few as can hold it, by the room that they have.
func (p *layout) placeParts() {
	for l := range p.m.Layers {
		left := 0
		for _, o := range p.owner[l] {
			if o == nobody {
				left++
			}
		}
		if left == 0 {
			continue
		}
		sites, fits := p.roomy(l, left)
		for k, i := range sites {
			n := left
			if fits > 0 {
				n = min(left, (left*p.fits(i, l)+fits-1)/fits)
			}
			if k == len(sites)-1 {
				n = left
			}
			fits -= p.fits(i, l)
			left -= p.ownSome(i, l, n)
		}
	}
}

// roomy returns those with most room for experts of a layer, so many that n fit, and how many fit.
func (p *layout) roomy(l, n int) (sites []int, fits int) {
	var list []int
	for i := range p.sites {
		if p.fits(i, l) > 0 {
			list = append(list, i)
		}
	}
	slices.SortStableFunc(list, func(x, y int) int {
		return cmp.Or(cmp.Compare(p.fits(y, l), p.fits(x, l)), cmp.Compare(p.busy[x], p.busy[y]))
	})
	for k, i := range list {
		if fits += p.fits(i, l); fits >= n {
			return list[:k+1], fits
		}
	}
	return list, fits
}

// fits is how many experts of a layer a site has room for.
func (p *layout) fits(i, l int) int {
	if p.sites[i].idle {
		return 0
	}
	if p.m.ExpertBytes[l] == 0 {
		return p.m.Experts
	}
	return int(min(int64(p.m.Experts), p.room[i]/p.m.ExpertBytes[l]))
}

// ownSome gives site i the first n experts of a layer that nobody owns, as far as it has room, and
// returns how many.
func (p *layout) ownSome(i, l, n int) int {
	hi, left := 0, min(n, p.fits(i, l))
	got := left
	for ; hi < p.m.Experts && left > 0; hi++ {
		if p.owner[l][hi] == nobody {
			left--
		}
	}
	p.own(i, l, 0, hi)
	return got - left
}

// rescue has the backbone take what no worker has room for, and counts what nobody has.
func (p *layout) rescue() {
	for l := range p.m.Layers {
		p.takeHome(l)
		for _, o := range p.owner[l] {
			if o == nobody {
				p.missing++
			}
		}
	}
}
