package place

import (
	"fmt"
	"testing"
	"time"
)

// many is a swarm of n workers of which each holds a layer, and has room for most of another.
func many(n int) (Model, []Worker) {
	m := Model{Layers: 61, Experts: 384, TopK: 8, ExpertBytes: []int64{20e6}, RowBytes: 7000, PartialBytes: 11000}
	var ws []Worker
	for i := range n {
		ws = append(ws, Worker{
			Name: fmt.Sprint("w", i), Memory: 16e9, Rows: float64(1000 + 37*i), RTT: time.Duration(10+i%90) * time.Millisecond,
			Up: 1.25e5 * float64(20+i), Down: 12.5e6, Held: []Range{{i % m.Layers, 0, m.Experts}},
		})
	}
	return m, ws
}

// What is counted as the plan is made is what there is.
func TestLayoutCountsWhoHoldsWhat(t *testing.T) {
	m, ws := many(100)
	b := Backbone{Copies: 3}
	m, b = m.normal(), b.normal()
	_, sites := newSites(&m, ws)
	p := fill(&m, &b, sites, false)
	for l := range m.Layers {
		for e := range m.Experts {
			n := 0
			for i := range p.has {
				if p.has[i].has(l, e) {
					n++
				}
			}
			if n != p.holders[l][e] {
				t.Fatalf("layer %d, expert %d: %d workers hold it, and %d are counted", l, e, n, p.holders[l][e])
			}
		}
	}
}

// BenchmarkMakeMany plans for 256 workers that hold something already.
func BenchmarkMakeMany(b *testing.B) {
	m, ws := many(256)
	for b.Loop() {
		Make(m, Backbone{}, ws)
	}
}
