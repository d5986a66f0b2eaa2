package engine_test

import (
	"context"
	"testing"
	"time"

	"kvasir/batcher"
	"kvasir/engine"
)

// TestMetricsAddUp holds that what workers have done, those that have left too, is what was asked of them.
func TestMetricsAddUp(t *testing.T) {
	m := open(t, "").Model()
	w := newWork(t, m, []int{1, 16}, 5)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	l, err := engine.NewLoopback(ctx, engine.LoopbackConfig{
		Model: m, Workers: 2, Local: m.Experts, Place: engine.ByExpert(m.Layers, m.PerLayer),
		Patience: -1, // what is counted is over then when a call is
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	picks := int64(0)
	for _, b := range w.batches {
		picks += int64(len(b.Expert))
	}
	done := func() (sum batcher.Counts, faults int64) {
		x := l.Swarm.Metrics()
		sum.Add(&x.Left)
		faults = x.LeftFaults.Sum()
		for i := range x.Workers {
			sum.Add(&x.Workers[i].Counts)
			faults += x.Workers[i].Faults.Sum()
		}
		sum.Add(&x.Local.Counts)
		return sum, faults
	}
	w.run(ctx, t, l.Swarm.Experts())
	now := l.Swarm.Metrics()
	if len(now.Workers) != 2 || now.Plans == 0 || now.Sessions != 0 {
		t.Fatalf("%+v", now)
	}
	for _, x := range now.Workers {
		if x.Session.BytesOut == 0 || x.Session.BytesIn == 0 || x.Session.MinRTT == 0 || len(x.Layers) != m.Layers ||
			x.Experts != m.Layers*m.PerLayer || x.Breaker != batcher.BreakerClosed || x.Lane != (batcher.LaneStats{}) {
			t.Errorf("%+v", x)
		}
	}
	if sum, _ := done(); sum.Picks != picks {
		t.Errorf("%d picks were computed of %d", sum.Picks, picks)
	}
	l.StopWorker(0)
	w.run(ctx, t, l.Swarm.Experts())
	sum, faults := done()
	if sum.Picks != 2*picks || sum.Failures != faults || sum.Dispatches != sum.Answered+sum.Late+sum.Failures+sum.Void {
		t.Errorf("%+v with %d faults, want %d picks", sum, faults, 2*picks)
	}
	if now := l.Swarm.Metrics(); len(now.Workers) != 1 || now.Sessions != 1 || now.LeftOut == 0 {
		t.Errorf("after one has left: %+v", now)
	}
}
