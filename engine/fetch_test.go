package engine_test

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"kvasir/batcher"
	"kvasir/bench/wan"
	"kvasir/engine"
	slicing "kvasir/engine/slices"
	"kvasir/engine/worker"
)

// fetching is a loopback swarm whose workers have no model: they fetch what they are assigned.
func fetching(t *testing.T, e *engine.Engine, workers int, memory func(i int) int64) engine.LoopbackConfig {
	t.Helper()
	src, err := e.Source()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return engine.LoopbackConfig{
		Model: e.Model(), Workers: workers, Slices: src, Exponents: e.Exponents(), TopK: e.TopK(), Memory: memory,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Shelf: func(i int) (worker.Shelf, error) {
			c, err := slicing.OpenCache(filepath.Join(dir, string(rune('a'+i))), 0)
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { _ = c.Close() })
			return worker.CacheShelf{Cache: c}, nil
		},
	}
}

// modelBytes is what all experts of kvasir-tiny take of workers' memory.
func modelBytes(t *testing.T, e *engine.Engine) int64 {
	t.Helper()
	src, err := e.Source()
	if err != nil {
		t.Fatal(err)
	}
	m, n := e.Model(), int64(0)
	for l := range m.Layers {
		n += int64(m.PerLayer) * src.ExpertBytes(l)
	}
	return n
}

// TestWorkersWithoutModelEqualLocal has workers that fetch their slices: with memory for all, and with so
// little that each holds a part.
func TestWorkersWithoutModelEqualLocal(t *testing.T) {
	e := open(t, "")
	m := e.Model()
	all := modelBytes(t, e)
	w := newWork(t, m, []int{1, 3, 16}, 5)
	for _, tt := range []struct {
		name    string
		workers int
		memory  int64
		rtt     time.Duration
	}{
		{"one with room for all", 1, 2 * all, 0},
		{"two with room for a part", 2, all * 3 / 4, 0},
		{"three with room for a part", 3, all / 2, 0},
		{"two at 13 ms", 2, all * 3 / 4, 13 * time.Millisecond},
		{"two at 80 ms", 2, all * 3 / 4, 80 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			c := fetching(t, e, tt.workers, func(int) int64 { return tt.memory })
			c.Patience = -1 // each is asked, however late it answers
			if tt.rtt > 0 {
				path, err := wan.NewLink(wan.Profile{RTT: tt.rtt})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = path.Close() }()
				c.Dial = func(int) func(context.Context, string, string) (net.Conn, error) { return path.Dial }
			}
			l, err := engine.NewLoopback(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			for _, s := range l.Swarm.Workers() {
				t.Logf("worker %s of %d MiB: %s", s.ID, s.Memory>>20, s.Holds)
			}
			w.run(ctx, t, l.Swarm.Experts())
			for _, s := range l.Swarm.Workers() {
				if tt.workers > 1 && s.Picks == 0 {
					t.Errorf("worker %s without work", s.ID)
				}
			}
		})
	}
}

// TestTextIsTheSameWhileWorkersComeAndGo generates while one worker dies and another joins that has to
// fetch what it is to hold.
func TestTextIsTheSameWhileWorkersComeAndGo(t *testing.T) {
	e := open(t, "")
	req := engine.Request{Prompt: "There was once a poor miller", Tokens: 40}
	want, _ := generate(t, e, req)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	all := modelBytes(t, e)
	c := fetching(t, e, 2, func(int) int64 { return 2 * all })
	c.Place = engine.ByLayer(c.Model.Layers, c.Model.PerLayer)
	var cuts [3]cutter
	for i := range cuts {
		cuts[i].by = (&net.Dialer{}).DialContext
	}
	c.Dial = func(i int) func(context.Context, string, string) (net.Conn, error) { return cuts[i].dial }
	l, err := engine.NewLoopback(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	pieces := 0
	got, err := with(t, e, l).Generate(ctx, req, func(engine.Piece) error {
		switch pieces++; pieces {
		case 5:
			return l.AddWorker()
		case 10:
			cuts[0].cut()
		}
		return nil
	})
	if err != nil || !slices.Equal(got.First().Tokens, want.First().Tokens) {
		t.Errorf("%q, error %v; want %q", got.First().Text, err, want.First().Text)
	}
}

// TestMovesInterruptNothing has work go on while the plan changes, with no experts at home. Where a worker
// takes over what another gives away, or two exchange what both have no room for twice, each call gets its
// answer, and none is sent where its experts are not.
func TestMovesInterruptNothing(t *testing.T) {
	e := open(t, "")
	all := modelBytes(t, e)
	const never = -1        // a pick that nobody serves for a moment is an error
	half := all*5/8 + 1<<16 // of which four fifths are half of the model
	for _, tt := range []struct {
		name   string
		memory int64
		two    [3][]int // layers of each worker, of two
		three  [3][]int // of three
		wait   time.Duration
	}{
		{"a third takes over, with room for all", all * 2, [3][]int{{0, 1}, {2, 3}}, [3][]int{{0}, {2}, {1, 3}}, never},
		{"a third takes over", half, [3][]int{{0, 1}, {2, 3}}, [3][]int{{0, 3}, {2}, {1, 3}}, never},
		{"two exchange", half, [3][]int{{0, 1}, {2, 3}}, [3][]int{{2, 3}, {0, 1}, {}}, 0},
		{"all move on", half, [3][]int{{0, 1}, {2, 3}}, [3][]int{{2, 1}, {0, 1}, {3}}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if testing.Short() && tt.name != "a third takes over" && tt.name != "two exchange" {
				t.Skip("it takes two seconds, and the others under -short cover most of it")
			}
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			c := fetching(t, e, 2, func(int) int64 { return tt.memory })
			c.Wait, c.Patience = tt.wait, -1 // an answer that takes long is no error
			c.Place = func(i, n int) *batcher.Set {
				layers, s := tt.two, &batcher.Set{}
				if n == 3 {
					layers = tt.three
				}
				for _, l := range layers[i] {
					if err := s.Add(l, 0, c.Model.PerLayer); err != nil {
						t.Error(err)
					}
				}
				return s
			}
			l, err := engine.NewLoopback(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			w := newWork(t, c.Model, []int{1, 5}, 6)
			working, stop := context.WithCancel(ctx)
			var load sync.WaitGroup
			for range 4 {
				load.Go(func() {
					for working.Err() == nil {
						w.run(ctx, t, l.Swarm.Experts())
					}
				})
			}
			if err := l.AddWorker(); err != nil {
				t.Fatal(err)
			}
			if err := l.Swarm.WaitFor(ctx, 3); err != nil {
				t.Error(err)
			}
			stop()
			load.Wait()
			for _, s := range l.Swarm.Workers() {
				if s.Failures > 0 {
					t.Errorf("worker %s: %d dispatches without an answer", s.ID, s.Failures)
				}
			}
			l.StopWorker(2)
			for len(l.Swarm.Workers()) == 3 && l.Swarm.Workers()[0].Session == "" { // until it has left
				if ctx.Err() != nil {
					t.Fatal("the third worker does not leave")
				}
			}
			if err := l.Swarm.WaitFor(ctx, 2); err != nil {
				t.Error(err)
			}
			w.run(ctx, t, l.Swarm.Experts())
		})
	}
}
