package place

import "slices"

// group is experts of a layer that the same workers have.
type group struct {
	holders []int
	share   float64 // of the layer's picks
	whole   bool    // all of the layer's experts
}

// steps is in how many pieces the work of a group is divided among its holders.
const steps = 16

// layer adds the work of one layer to that of the sites, and returns the seconds that the backbone works
// and that it waits for the slowest who is asked, and how much of that is the round trip.
func (p *layout) layer(l int, sites []work) (own, far, trip float64) {
	own = p.b.Layer.Seconds()
	groups, local := p.groups(l)
	if local > 0 && p.b.Rows > 0 {
		own += float64(float64(local*float64(p.b.Batch))*float64(p.m.TopK)) / p.b.Rows
	}
	part := make([]struct {
		share float64
		whole bool
	}, len(sites))
	for _, g := range groups {
		for range steps {
			best := g.holders[0]
			for _, i := range g.holders[1:] {
				if p.then(sites, i, part[i].share, g) < p.then(sites, best, part[best].share, g) {
					best = i
				}
			}
			part[best].share += g.share / steps
			part[best].whole = g.whole
		}
	}
	for i := range sites {
		if part[i].share == 0 {
			continue
		}
		compute, down, up := p.parts(i, part[i].share, part[i].whole)
		sites[i].compute += compute
		sites[i].down += down
		sites[i].up += up
		rtt := p.sites[i].RTT.Seconds()
		if t := rtt + compute + down + up; t > far {
			far, trip = t, rtt
		}
		p.rows[i] += p.rowsOf(part[i].share, part[i].whole)
	}
	return own, far, trip
}

// then is how long a site works when it gets one more piece of a group.
func (p *layout) then(sites []work, i int, share float64, g group) float64 {
	compute, down, up := p.parts(i, share+g.share/steps, g.whole)
	w := sites[i]
	return max(w.compute+compute, w.down+down, w.up+up)
}

// groups returns the experts of a layer by who has them, and the share of picks that stays at home.
func (p *layout) groups(l int) (list []group, local float64) {
	if p.local.count(l) == 0 {
		var whole []int
		divided := false
		for i := range p.has {
			switch n := p.has[i].count(l); {
			case n == p.m.Experts:
				whole = append(whole, i)
			case n > 0:
				divided = true
			}
		}
		if len(whole) > 0 && !divided {
			return []group{{whole, 1, true}}, 0
		}
	}
	for e := range p.m.Experts {
		share := p.m.Load[l][e]
		if p.local.has(l, e) {
			local += share
			continue
		}
		var holders []int
		for i := range p.has {
			if p.has[i].has(l, e) {
				holders = append(holders, i)
			}
		}
		if holders == nil {
			continue
		}
		at := slices.IndexFunc(list, func(g group) bool { return slices.Equal(g.holders, holders) })
		if at < 0 {
			at = len(list)
			list = append(list, group{holders: holders})
		}
		list[at].share += share
	}
	return list, local
}
