package model_test

import (
	"sync"
	"testing"

	"kvasir/engine/model"
	"kvasir/internal/slab"
)

// Rows and answers of all micro-batches lie in slabs, which a model keeps until it is closed, and not one more
// after that.
func TestRowsLieInSlabsAndAreGivenBack(t *testing.T) {
	n := tinyNode(t, nil, false)
	before := slab.Shared.Stats().InUse
	run := func(sequences int) {
		var wg sync.WaitGroup
		for i := range sequences {
			wg.Go(func() {
				s := &model.Step{Seq: n.NewSequence(), Tokens: []int32{1, int32(2 + i), 3}}
				if err := n.Forward(t.Context(), n.experts, []*model.Step{s}); err != nil || s.Err != nil {
					t.Error(err, s.Err)
				}
				s.Seq.Free()
			})
		}
		wg.Wait()
	}
	run(3)
	first := slab.Shared.Stats().InUse
	if first <= before {
		t.Errorf("%d bytes of slabs are in use, and %d before: rows lie elsewhere", first, before)
	}
	for range 5 {
		run(1)
	}
	if now := slab.Shared.Stats().InUse; now != first {
		t.Errorf("%d bytes of slabs are in use after more micro-batches, %d after the first", now, first)
	}
	n.Close()
	if now := slab.Shared.Stats().InUse; now != before {
		t.Errorf("%d bytes of slabs are in use after Close, want %d", now, before)
	}
	run(2)
	if now := slab.Shared.Stats().InUse; now != before {
		t.Errorf("%d bytes of slabs are in use, kept by a model that is closed, want %d", now, before)
	}
}
