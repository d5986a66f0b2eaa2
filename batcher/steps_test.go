package batcher

import (
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
)

// TestStepsNameTheStraggler divides a layer between a near and a far worker, and gives another layer to
// the near one whole.
func TestStepsNameTheStraggler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSteps(10)
		d := NewDispatcher(Options{Trace: s.Call})
		near := newLane(t, newStub(10*time.Millisecond, 2*time.Millisecond, 0), Limits{}, 1)
		far := newLane(t, newStub(50*time.Millisecond, 2*time.Millisecond, 0), Limits{}, 1)
		defer near.Close()
		defer far.Close()
		holds := holding(0, 16, 0)
		if err := holds.Add(1, 0, 32); err != nil {
			t.Fatal(err)
		}
		d.Join("near", near, holds)
		d.Join("far", far, holding(16, 32, 0))
		rng := seeded(t, 4)
		for i := range 12 {
			for layer := range 2 {
				s.Own(layer, 3*time.Millisecond)
				b := randomBatch(rng, moe.Shape{Layer: layer, Hidden: 8, Format: moe.RowQ8}, 16, 8, 32)
				forward(t, d, b)
			}
			select {
			case <-s.Done():
				if i < 10 {
					t.Fatalf("done after %d steps, want 10 and one more", i+1)
				}
			default:
				if i >= 10 {
					t.Fatalf("not done after %d steps", i+1)
				}
			}
		}
		layers, who := s.Sum()
		if len(layers) != 2 || len(who) != 2 || who[0].To != "far" {
			t.Fatalf("layers %+v, executors %+v", layers, who)
		}
		for i, want := range []StepLayer{
			{Calls: 11, Took: 11 * 52 * time.Millisecond, Straggler: "far", Lag: 11 * 40 * time.Millisecond},
			{Calls: 10, Took: 10 * 12 * time.Millisecond, Straggler: "near", Lag: 10 * 12 * time.Millisecond},
		} {
			l := layers[i]
			if l.Layer != i || l.Calls != want.Calls || l.Took != want.Took || l.Straggler != want.Straggler || l.Lag != want.Lag {
				t.Errorf("layer %d: %+v, want %+v", i, l, want)
			}
			if l.Own != 3*time.Millisecond*time.Duration(l.Calls) {
				t.Errorf("layer %d: the backbone took %v", i, l.Own)
			}
			if sum := l.Before + l.Lane + l.Out + l.Work + l.Back + l.Other + l.Add + l.Rest; sum != l.Took {
				t.Errorf("layer %d: the parts come to %v of %v", i, sum, l.Took)
			}
		}
	})
}
