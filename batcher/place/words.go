package place

import (
	"fmt"
	"slices"
	"time"
)

// plan writes a layout down, workers in the order of the arguments.
func (p *layout) plan(order []int) Plan {
	out := Plan{Workers: make([]WorkerPlan, len(order)), Forecast: p.forecast, Backbone: p.local.ranges(p.m)}
	for i, at := range order {
		w := &out.Workers[at]
		w.Name, w.Ranges = p.sites[i].Name, p.has[i].ranges(p.m)
		w.Used, w.Busy = len(w.Ranges) > 0, p.load[i]
		for _, r := range w.Ranges {
			w.Bytes += int64(r.Hi-r.Lo) * p.m.ExpertBytes[r.Layer]
			for e := r.Lo; e < r.Hi; e++ {
				if s := &p.sites[i]; !s.held.has(r.Layer, e) && !s.cached.has(r.Layer, e) {
					w.Fetch += p.m.ExpertBytes[r.Layer]
				}
			}
		}
		w.Why = p.why(i)
		w.Slows = slices.ContainsFunc(p.spared, func(s spared) bool { return s.site == i })
	}
	none := newGrid(p.m)
	for l := range p.owner {
		for e, o := range p.owner[l] {
			if o == nobody {
				none.add(l, e)
			}
		}
	}
	out.Missing = none.ranges(p.m)
	return out
}

// why says what a worker is for.
func (p *layout) why(i int) string {
	for _, s := range p.spared {
		if s.site == i {
			return fmt.Sprintf("not used: %.4g tokens/s without it, %.4g with it", s.without, s.with)
		}
	}
	owned, copied := 0, 0
	least := int64(0)
	for l := range p.owner {
		if least == 0 || p.m.ExpertBytes[l] < least {
			least = p.m.ExpertBytes[l]
		}
		for e, o := range p.owner[l] {
			switch {
			case o == i:
				owned++
			case p.has[i].has(l, e):
				copied++
			}
		}
	}
	switch {
	case owned > 0 && copied > 0:
		return fmt.Sprintf("holds %d experts, and copies of %d", owned, copied)
	case owned > 0:
		return fmt.Sprintf("holds %d experts", owned)
	case copied > 0:
		return fmt.Sprintf("holds copies of %d experts: others are done sooner", copied)
	case p.sites[i].room < least:
		return fmt.Sprintf("not used: of its memory %d bytes may be filled, and one expert takes %d", p.sites[i].room, least)
	}
	one := time.Duration(float64(p.seconds(i, 1, true)) * float64(time.Second))
	return fmt.Sprintf("not used: the others have room for all and are done sooner; a layer takes it %v", one.Round(time.Microsecond))
}
