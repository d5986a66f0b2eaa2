package batcher

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"kvasir/internal/moe"
)

func TestSetHoldsWhatWasAdded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, twin := &Set{}, map[[2]int]bool{}
		for range rapid.IntRange(0, 6).Draw(t, "adds") {
			layer := rapid.IntRange(0, 5).Draw(t, "layer")
			lo := rapid.IntRange(0, 140).Draw(t, "lo")
			hi := rapid.IntRange(lo+1, 150).Draw(t, "hi")
			before := s.Clone()
			if err := s.Add(layer, lo, hi); err != nil {
				t.Fatal(err)
			}
			for k := range twin {
				if !before.Has(k[0], k[1]) {
					t.Fatalf("clone lost %v", k)
				}
			}
			if before.Len() != len(twin) {
				t.Fatalf("clone holds %d, want %d", before.Len(), len(twin))
			}
			for e := lo; e < hi; e++ {
				twin[[2]int{layer, e}] = true
			}
		}
		drop := s.without(3)
		for layer := -1; layer < 8; layer++ {
			for e := -1; e < 200; e++ {
				want := twin[[2]int{layer, e}]
				if s.Has(layer, e) != want || drop.Has(layer, e) != (want && layer != 3) {
					t.Fatalf("layer %d, expert %d: held %v, without layer 3 %v, want %v",
						layer, e, s.Has(layer, e), drop.Has(layer, e), want)
				}
			}
		}
		if s.Len() != len(twin) {
			t.Fatalf("%d experts, want %d", s.Len(), len(twin))
		}
	})
}

func TestSetIsWrittenAsRanges(t *testing.T) {
	s := &Set{}
	add := func(layer, lo, hi int) {
		t.Helper()
		if err := s.Add(layer, lo, hi); err != nil {
			t.Fatal(err)
		}
	}
	want := func(text string) {
		t.Helper()
		if s.String() != text {
			t.Errorf("got %q, want %q", s, text)
		}
	}
	want("nothing")
	add(1, 0, 128)
	add(2, 0, 128)
	want("layers 1-2: experts 0-127")
	add(4, 200, 201)
	add(4, 0, 2)
	want("layers 1-2: experts 0-127; layer 4: experts 0-1, 200")
}

func TestSetRefusesWhatNoModelHas(t *testing.T) {
	for _, a := range [][3]int{
		{-1, 0, 1}, {moe.MaxLayers, 0, 1}, {0, -1, 1}, {0, 1, 1}, {0, 2, 1}, {0, 0, moe.MaxExperts + 1},
		{0, 0, math.MaxInt}, {math.MaxInt, 0, 1},
	} {
		if err := (&Set{}).Add(a[0], a[1], a[2]); err == nil {
			t.Errorf("Add(%d, %d, %d) was accepted", a[0], a[1], a[2])
		}
	}
	if _, err := All(moe.MaxLayers+1, 1); err == nil {
		t.Errorf("All accepts %d layers", moe.MaxLayers+1)
	}
	if s := mustAll(moe.MaxLayers, moe.MaxExperts); s.Len() != moe.MaxLayers*moe.MaxExperts {
		t.Errorf("the largest set holds %d", s.Len())
	}
}
