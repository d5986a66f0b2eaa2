package batcher

import (
	"slices"
	"testing"
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
