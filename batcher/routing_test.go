package batcher

import (
	"testing"

	"kvasir/internal/moe"
)

func TestRoutingCountsEveryPickOnce(t *testing.T) {
	d := NewDispatcher(Options{Local: &fake{}})
	d.Join("narrow", &fake{narrow: true}, mustAll(1, 16)) // what comes back wide is not counted again
	rng := seeded(t, 6)
	want := make([]int64, 32)
	for range 20 {
		b := randomBatch(rng, moe.Shape{Layer: 2, Hidden: 8, Format: moe.RowQ8}, 9, 5, 32)
		for _, e := range b.Expert {
			want[e]++
		}
		forward(t, d, b)
	}
	got := d.Routing()
	if len(got) != 3 || got[0] != nil || len(got[2]) > len(want) {
		t.Fatalf("%d layers, %v", len(got), got)
	}
	for e, n := range got[2] {
		if n != want[e] {
			t.Errorf("expert %d was picked %d times, want %d", e, n, want[e])
		}
	}
}

func TestRoutingForgets(t *testing.T) {
	var r routing
	old := smallBatch(64)
	for e := range old.Expert {
		old.Expert[e] = 1
	}
	for n := 0; n <= routingHalf; n += len(old.Expert) {
		r.note(old)
	}
	l := &r.layers[0]
	if l.counts[1] > routingHalf*3/4 || l.sum != l.counts[1] {
		t.Errorf("%d picks are remembered, in sum %d", l.counts[1], l.sum)
	}
}
