package engine

import (
	"math"
	"testing"
	"time"

	"kvasir/batcher"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
)

// A worker is planned with by what it says, unless it is measured clearly slower; what says nothing of itself is
// planned with by what is measured.
func TestWhoIsMeasuredSlowerIsTakenForThat(t *testing.T) {
	for _, c := range []struct{ says, is, want float64 }{
		{1000, 0, 1000}, {1000, 2000, 1000}, {1000, 900, 1000}, {1000, 500, 500}, {0, 500, 500}, {0, 0, 0},
	} {
		s, w := &Swarm{}, &attached{session: &timed{}}
		w.rate = int(c.says)
		for range speedMin {
			if c.is > 0 {
				load := w.session.speed.begin(speedLeast)
				w.session.speed.end(time.Now(), speedLeast, load, time.Duration(float64(load)/c.is*float64(time.Second)))
			}
		}
		if got := s.speed(w); math.Abs(got-c.want) > 1 {
			t.Errorf("a worker that says %v and is measured at %v is planned with at %v, want %v", c.says, c.is, got, c.want)
		}
	}
}

// Plans are made with how often each expert was picked, once there are enough picks of every layer to say more than
// chance.
func TestPlansKnowHowOftenExpertsArePicked(t *testing.T) {
	s := &Swarm{dispatcher: batcher.NewDispatcher(batcher.Options{Local: delayed(0)})}
	s.c.Model = worker.Model{Layers: 2, PerLayer: 4}
	pick := func(layer, rows int) {
		b, err := moe.NewBatch(moe.Shape{Layer: layer, Hidden: 256, Format: moe.RowQ8K}, rows, rows)
		if err != nil {
			t.Fatal(err)
		}
		for range rows {
			b.Grow([]uint16{uint16(3 * layer)}, []float32{1})
		}
		if err := s.dispatcher.Forward(t.Context(), b, &moe.Partials{}); err != nil {
			t.Fatal(err)
		}
	}
	pick(0, 4*minPicked)
	pick(1, 4*minPicked-1)
	if got := s.load(); got != nil {
		t.Errorf("one layer had too few picks, and the load is %v", got)
	}
	pick(1, 1)
	got := s.load()
	if len(got) != 2 || got[0][0] != 4*minPicked || got[1][3] != 4*minPicked || got[1][0] != 0 {
		t.Errorf("the load is %v, want all of layer 0 with expert 0 and all of layer 1 with expert 3", got)
	}
}
