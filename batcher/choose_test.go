package batcher

import (
	"slices"
	"testing"

	"kvasir/internal/moe"
)

// choices has the chooser decide about rows, and returns who got each pick.
func choices(holds []*Set, rows ...[]uint16) [][]int32 {
	c := &chooser{}
	for _, s := range holds {
		c.members = append(c.members, candidate{words: s.layer(0)})
	}
	var out [][]int32
	for r, expert := range rows {
		to := make([]int32, len(expert))
		c.choose(r, expert, to)
		out = append(out, to)
	}
	return out
}

func TestChooserSendsARowOnceAndSharesReplicas(t *testing.T) {
	set := func(lo, hi int) *Set {
		s := &Set{}
		if err := s.Add(0, lo, hi); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, tt := range []struct {
		name  string
		holds []*Set
		rows  [][]uint16
		want  [][]int32
	}{
		{"one holder each", []*Set{set(0, 4), set(4, 8)}, [][]uint16{{0, 4, 3, 7}}, [][]int32{{0, 1, 0, 1}}},
		{"nobody", []*Set{set(0, 4)}, [][]uint16{{9, 1}}, [][]int32{{Nobody, 0}}},
		{"replicas take turns by row", []*Set{set(0, 8), set(0, 8)}, [][]uint16{{1, 2}, {1, 2}, {1, 2}},
			[][]int32{{0, 0}, {1, 1}, {0, 0}}},
		{"a replica stays with the pick that has no choice", []*Set{set(0, 8), set(4, 8)}, [][]uint16{{4, 5, 0}},
			[][]int32{{0, 0, 0}}},
		{"uneven rows even out", []*Set{set(0, 8), set(0, 8)}, [][]uint16{{1, 2, 3}, {1}, {1}, {2}, {3}},
			[][]int32{{0, 0, 0}, {1}, {1}, {1}, {0}}},
		{"an expert picked twice", []*Set{set(0, 8), set(0, 8)}, [][]uint16{{3, 3}}, [][]int32{{0, 0}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := choices(tt.holds, tt.rows...)
			if !slices.EqualFunc(got, tt.want, slices.Equal) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// TestChooserFindsTheSameByIndex has the same batch decided with experts indexed, and looked up one by one.
func TestChooserFindsTheSameByIndex(t *testing.T) {
	rng := seeded(t, 5)
	for range 300 {
		b := randomBatch(rng, moe.Shape{Hidden: 4, Format: moe.RowF32}, fewRows+rng.IntN(8), 6, 100)
		var sets []*Set
		for range 1 + rng.IntN(4) {
			lo := rng.IntN(90)
			sets = append(sets, holding(lo, lo+1+rng.IntN(100-lo), 0))
		}
		decide := func(indexed bool) []int32 {
			c := &chooser{least: leastRows}
			for i, s := range sets {
				c.members = append(c.members, candidate{words: s.layer(0), load: i})
			}
			if len(sets)%2 == 0 {
				c.fallback = &Member{}
			}
			if indexed {
				c.assign(b)
			} else {
				c.a.assign(b, len(c.members)+1-len(sets)%2, c.choose)
			}
			return slices.Clone(c.a.to)
		}
		if got, want := decide(true), decide(false); !slices.Equal(got, want) {
			t.Fatalf("members hold %v: by index %v, one by one %v", sets, got, want)
		}
	}
}
