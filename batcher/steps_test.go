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

// TestTheStragglerIsWhoWasAskedInVain has one of two workers stall, and then fail, so that others answer for it:
// the call took so long for its sake, not for theirs.
func TestTheStragglerIsWhoWasAskedInVain(t *testing.T) {
	for _, hedge := range []float64{-1, 1} {
		synctest.Test(t, func(t *testing.T) {
			s, w := NewSteps(0), Waterfall{}
			var last Call
			d := NewDispatcher(Options{Local: &fake{}, Hedge: hedge, Trace: func(c *Call) { s.Call(c); w.Call(c); last = *c }})
			bad := newStub(10*time.Millisecond, 0, 0)
			d.Join("good", newStub(10*time.Millisecond, 0, 0), holding(0, 16, 0))
			d.Join("bad", bad, holding(16, 32, 0))
			warm(t, d, 20)
			bad.stall = func() time.Duration { return time.Hour }
			warm(t, d, 1)
			if last.Straggler != "bad" || last.Lag < 10*time.Millisecond {
				t.Errorf("hedge %v: the straggler is %s, by %v: %+v", hedge, last.Straggler, last.Lag, last.Spans)
			}
			close(bad.dead)
			warm(t, d, 1)
			layers, _ := s.Sum()
			if layers[0].Straggler != "bad" {
				t.Errorf("hedge %v: the straggler of the layer is %s", hedge, layers[0].Straggler)
			}
			lines, _, _ := w.Take()
			if x := lines[0]; x.To != "bad" || x.Lag == 0 || x.Late != 1 || x.Failed != 1 {
				t.Errorf("hedge %v: who was waited for most is %+v, want bad, late once and failed once", hedge, x)
			}
		})
	}
}
