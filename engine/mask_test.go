package engine

import (
	"math/rand/v2"
	"slices"
	"testing"

	"kvasir/batcher/place"
)

func TestMaskIsItsRanges(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := newMask(1+rng.IntN(4), 1+rng.IntN(9))
		n := int64(0)
		for i := range m.has {
			m.has[i] = rng.IntN(3) > 0
			if m.has[i] {
				n++
			}
		}
		again := newMask(len(m.has)/m.experts, m.experts)
		list := m.ranges()
		again.add(list)
		if !again.equal(m) {
			t.Fatalf("seed %d: %v became %v", seed, m, again)
		}
		if got := m.bytes(func(int) int64 { return 3 }); got != 3*n {
			t.Errorf("seed %d: %d bytes, want %d", seed, got, 3*n)
		}
		if s := m.set(); int64(s.Len()) != n || !m.of(s).equal(m) {
			t.Errorf("seed %d: as a set it has %d experts of %d", seed, s.Len(), n)
		}
		for i := 1; i < len(list); i++ {
			if a, b := list[i-1], list[i]; a.Layer == b.Layer && a.Hi >= b.Lo || a.Layer > b.Layer {
				t.Fatalf("seed %d: ranges %v", seed, list)
			}
		}
		if k := rng.IntN(4); !slices.Equal(m.first(k).ranges(), list[:min(k, len(list))]) {
			t.Errorf("seed %d: the first %d of %v are %v", seed, k, list, m.first(k).ranges())
		}
	}
}

func TestMaskLeavesOutWhatTheModelHasNot(t *testing.T) {
	m := newMask(2, 4)
	m.add([]place.Range{{Layer: -1, Lo: 0, Hi: 4}, {Layer: 2, Lo: 0, Hi: 4}, {Layer: 0, Lo: -3, Hi: 1}, {Layer: 1, Lo: 3, Hi: 99}})
	if want := []place.Range{{Layer: 0, Lo: 0, Hi: 1}, {Layer: 1, Lo: 3, Hi: 4}}; !slices.Equal(m.ranges(), want) {
		t.Errorf("%v, want %v", m.ranges(), want)
	}
}
