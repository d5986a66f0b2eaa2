package batcher

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/bench/wan"
	"kvasir/wire"
	"kvasir/wire/link"
)

// session joins a stub worker by a session over an emulated path, and returns what cuts it.
func session(t *testing.T, d *Dispatcher, name string, p wan.Profile, s *stub, holds *Set) (path *wan.Link) {
	t.Helper()
	path, err := wan.NewLink(p)
	if err != nil {
		t.Fatal(err)
	}
	near, far, err := path.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	hello := wire.Hello{Layers: 1, Experts: 32, Hidden: 8, Model: wire.Hash{1}, Profile: wire.Hash{2}, Agent: []byte("test")}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = link.Serve(ctx, near, link.Worker{Experts: s}, link.Options{Hello: hello, Name: "backbone", Parallel: 16})
	}()
	x, err := link.Open(ctx, far, link.Options{Hello: hello, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	lane := newLane(t, x, Limits{}, 0)
	m := d.Join(name, lane, holds)
	t.Cleanup(func() {
		m.Leave()
		_ = x.Close()
		lane.Close()
		cancel()
		<-served
		_ = path.Close()
	})
	return path
}

// TestKilledSessionFailsNoCall cuts the path to one of three workers in mid-batch, over real sessions and
// an emulated wide-area path each.
func TestKilledSessionFailsNoCall(t *testing.T) {
	for _, rtt := range []time.Duration{13 * time.Millisecond, 80 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			d := NewDispatcher(Options{})
			var paths []*wan.Link
			for i := range 3 {
				s := newStub(0, time.Millisecond, 50*time.Microsecond)
				p := wan.Profile{RTT: rtt, Up: 100e6, Down: 100e6}
				paths = append(paths, session(t, d, fmt.Sprint(i), p, s, mustAll(1, 32)))
			}
			worst := time.Duration(0)
			var mu sync.Mutex
			var callers sync.WaitGroup
			for range 6 {
				callers.Go(func() {
					for range 40 {
						began := time.Now()
						forward(t, d, smallBatch(64))
						mu.Lock()
						worst = max(worst, time.Since(began))
						mu.Unlock()
					}
				})
			}
			time.Sleep(5*rtt + rtt/3)
			if paths[1].Cut(wan.Reset) == 0 {
				t.Error("nothing was cut")
			}
			callers.Wait()
			late, _ := d.members[0].history.late(64)
			t.Logf("%v away: the longest call took %v; late after %v", rtt, worst, late)
			if worst > 2*rtt+late {
				t.Errorf("a call took %v at a round trip of %v; late is after %v", worst, rtt, late)
			}
			failures := int64(0)
			for _, s := range d.Stats() {
				failures += s.Failures
			}
			if failures == 0 {
				t.Error("no dispatch was under way when the path was cut")
			}
		})
	}
}
