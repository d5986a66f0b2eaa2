package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/batcher"
	"kvasir/engine/schedule"
	"kvasir/internal/moe"
)

// delayed answers after a while.
type delayed time.Duration

func (d delayed) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	time.Sleep(time.Duration(d))
	out.Reset(b.Rows, b.Hidden)
	return nil
}

func TestFlightsHideWhatIsAwayAndNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pilot := &batcher.Pilot{}
		d := batcher.NewDispatcher(batcher.Options{Local: delayed(20 * time.Millisecond), Trace: tracing(pilot, &tap{}, batcher.LocalName)})
		p := newPace(d, pilot)
		// walk takes a micro-batch through the layers, with 30 ms of the backbone's before each.
		walk := func() {
			for layer := range 4 {
				b, err := moe.NewBatch(moe.Shape{Layer: layer, Hidden: 256, Format: moe.RowQ8K}, 1, 1)
				if err != nil {
					t.Fatal(err)
				}
				b.Grow([]uint16{0}, []float32{1})
				var out moe.Partials
				time.Sleep(30 * time.Millisecond)
				if err := p.Forward(t.Context(), b, &out); err != nil {
					t.Fatal(err)
				}
			}
		}
		walk()
		if n := p.wanted(); n != 1 {
			t.Errorf("%d flights wanted while everything is computed here, want 1", n)
		}
		all, err := batcher.All(4, 1)
		if err != nil {
			t.Fatal(err)
		}
		m := d.Join("far", delayed(80*time.Millisecond), all)
		for range 20 { // the latest times count
			walk()
		}
		// Own 3 x 30 ms: before the first layer there is nothing to count from. Away 4 x 80 ms, which the
		// worker works, as far as anybody knows: one more than that takes.
		if n := p.wanted(); n != 2 {
			t.Errorf("%d flights wanted with experts 80 ms away, want 2", n)
		}
		m.Leave()
		for range 80 {
			walk()
		}
		if n := p.wanted(); n != 1 {
			t.Errorf("%d flights wanted after the worker has left, want 1", n)
		}
		if len(p.last) > maxSteps {
			t.Errorf("%d micro-batches are remembered", len(p.last))
		}
	})
}

// distant is delayed, and tells that all of it is the way there and back.
type distant struct{ delayed }

func (d distant) ForwardTimed(ctx context.Context, b *moe.Batch, out *moe.Partials, times *batcher.Times) error {
	times.Out, times.Back = time.Duration(d.delayed)/2, time.Duration(d.delayed)/2
	return d.Forward(ctx, b, out)
}

// TestAllThatTheBackboneDoesSetsThePace has as much to do before the first layer, and for the head, as before each
// other layer: the more it has to do, the fewer micro-batches hide what is away.
func TestAllThatTheBackboneDoesSetsThePace(t *testing.T) {
	for _, first := range []int{0, 2} { // layers before it have no experts to route to
		synctest.Test(t, func(t *testing.T) {
			pilot := &batcher.Pilot{}
			d := batcher.NewDispatcher(batcher.Options{Trace: pilot.Call})
			all, err := batcher.All(8, 1)
			if err != nil {
				t.Fatal(err)
			}
			d.Join("far", distant{delayed(70 * time.Millisecond)}, all)
			p := newPace(d, pilot)
			for i := range 20 {
				p.Begin(t.Context())
				for layer := first; layer < first+4; layer++ {
					b, err := moe.NewBatch(moe.Shape{Layer: layer, Hidden: 256, Format: moe.RowQ8K}, 1, 1)
					if err != nil {
						t.Fatal(err)
					}
					b.Grow([]uint16{0}, []float32{1})
					if i == 10 && layer == first+2 { // the one before has failed, which says nothing
						break
					}
					time.Sleep(30 * time.Millisecond)
					if err := p.Forward(t.Context(), b, &moe.Partials{}); err != nil {
						t.Fatal(err)
					}
				}
				if i == 10 {
					p.End(t.Context(), moe.ErrInvalid)
					continue
				}
				time.Sleep(30 * time.Millisecond)
				p.End(t.Context(), nil)
			}
			// Own 5 x 30 ms, away 4 x 70 ms. Without the first or the head it would be 4, without both 5.
			if n := p.wanted(); n != 3 {
				t.Errorf("%d flights wanted, want 3", n)
			}
			if len(p.last) > 0 {
				t.Errorf("%d micro-batches are remembered that have ended", len(p.last))
			}
		})
	}
}

// TestBatchJobsLetOthersGoFirst has a worker busy, and rows of a batch job and of somebody who looks on waiting in
// its lane: the job came first, and goes last.
func TestBatchJobsLetOthersGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lane, err := batcher.NewLane(delayed(10*time.Millisecond), batcher.Limits{}, 1)
		if err != nil {
			t.Fatal(err)
		}
		d := batcher.NewDispatcher(batcher.Options{Patience: -1})
		all, err := batcher.All(8, 1)
		if err != nil {
			t.Fatal(err)
		}
		d.Join("worker", newGate(lane), all)
		p := newPace(d, &batcher.Pilot{})
		var mu sync.Mutex
		var order []string
		var wg sync.WaitGroup
		for layer, class := range []schedule.Class{schedule.Interactive, schedule.Batch, schedule.Batch, schedule.Interactive} {
			b, err := moe.NewBatch(moe.Shape{Layer: layer, Hidden: 256, Format: moe.RowQ8K}, 1, 1)
			if err != nil {
				t.Fatal(err)
			}
			b.Grow([]uint16{0}, []float32{1})
			wg.Go(func() {
				ctx, cancel := context.WithCancel(marked(t.Context(), class))
				defer cancel()
				if err := p.Forward(ctx, b, &moe.Partials{}); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				order = append(order, fmt.Sprint(class, layer))
			})
			synctest.Wait()
		}
		wg.Wait()
		lane.Close()
		if want := []string{"0 0", "0 3", "1 1", "1 2"}; !slices.Equal(order, want) {
			t.Errorf("class and layer in the order of answers: %q, want %q", order, want)
		}
	})
}
