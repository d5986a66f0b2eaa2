package engine_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kvasir/engine"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
	"kvasir/wire"
	"kvasir/wire/relay"
)

// reasons collects why a worker waits.
type reasons struct {
	mu   sync.Mutex
	list []string
	news chan struct{}
}

func newReasons() *reasons { return &reasons{news: make(chan struct{}, 1)} }

func (r *reasons) say(reason string) {
	r.mu.Lock()
	r.list = append(r.list, reason)
	r.mu.Unlock()
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// await waits for a reason that holds a text.
func (r *reasons) await(ctx context.Context, t *testing.T, text string) {
	t.Helper()
	for {
		r.mu.Lock()
		list := slices.Clone(r.list)
		r.mu.Unlock()
		if slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, text) }) {
			return
		}
		select {
		case <-r.news:
		case <-ctx.Done():
			t.Fatalf("%q is never said, but %q", text, list)
		}
	}
}

// TestWorkerMakesRoomForItsOwner has others need the machine for a while: the worker leaves in order, says
// why, and comes back with what it held.
func TestWorkerMakesRoomForItsOwner(t *testing.T) {
	e := open(t, "")
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	all := modelBytes(t, e)
	c := fetching(t, e, 1, func(int) int64 { return 2 * all })
	c.Local = e.Experts()
	var busy atomic.Bool
	var ticks atomic.Int64
	b := &worker.Busy{
		Every: time.Millisecond, High: 0.5, Low: 0.2, Rise: 5 * time.Millisecond, Fall: 5 * time.Millisecond,
		Rest: time.Second,
		Load: func() (all, others time.Duration, err error) {
			n := time.Duration(ticks.Add(1))
			if busy.Load() {
				return n, n, nil
			}
			return n, 0, nil
		},
	}
	why := newReasons()
	c.Worker = func(_ int, w *worker.Config) {
		w.Busy, w.Waiting = b, why.say
		w.Backoff = relay.Backoff{Min: time.Millisecond, Max: 2 * time.Millisecond}
	}
	looking, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); b.Run(looking) }()
	defer func() { stop(); <-done }()
	l, err := engine.NewLoopback(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := newWork(t, c.Model, []int{1, 3}, 7)
	w.run(ctx, t, l.Swarm.Experts())
	busy.Store(true)
	why.await(ctx, t, "other programs need this machine")
	for len(l.Swarm.Workers()) == 1 && l.Swarm.Workers()[0].Session == "" { // until it has left
		if ctx.Err() != nil {
			t.Fatal("the worker does not leave")
		}
		w.run(ctx, t, l.Swarm.Experts()) // nothing is lost meanwhile
	}
	busy.Store(false)
	if err := l.Swarm.WaitFor(ctx, 1); err != nil {
		t.Fatal(err)
	}
	for last := l.Swarm.Workers(); last[len(last)-1].Picks == 0; last = l.Swarm.Workers() {
		if ctx.Err() != nil {
			t.Fatalf("the worker does nothing after its return: %+v", last)
		}
		w.run(ctx, t, l.Swarm.Experts()) // what it is late with, is computed here
	}
}

// badSource spoils what a backbone says of its slices, or serves of them.
type badSource struct {
	engine.SliceSource
	slice func(wire.Slice) wire.Slice
	spoil func(off uint64, b []byte)
}

func (b badSource) Slice(ctx context.Context, layer, lo, hi int) (wire.Slice, error) {
	s, err := b.SliceSource.Slice(ctx, layer, lo, hi)
	if b.slice != nil {
		s = b.slice(s)
	}
	return s, err
}

func (b badSource) Read(ctx context.Context, h wire.Hash, off uint64, dst []byte) (int, uint64, error) {
	n, size, err := b.SliceSource.Read(ctx, h, off, dst)
	if b.spoil != nil {
		b.spoil(off, dst[:n])
	}
	return n, size, err
}

// TestBadBackbonesAreRefused has backbones that assign nonsense or send other weights than they name. The
// worker takes none of it, the session goes on, and the backbone computes by itself.
func TestBadBackbonesAreRefused(t *testing.T) {
	e := open(t, "")
	all := modelBytes(t, e)
	w := newWork(t, e.Model(), []int{1, 3}, 8)
	for _, tt := range []struct {
		name string
		bad  badSource
		room int64
	}{
		{"a layer that is not there", badSource{slice: func(s wire.Slice) wire.Slice { s.Layer = 77; return s }}, 2 * all},
		{"a hash that is wrong", badSource{slice: func(s wire.Slice) wire.Slice { s.Hash[0] ^= 1; return s }}, 2 * all},
		{"no hash", badSource{slice: func(s wire.Slice) wire.Slice { s.Hash = wire.Hash{}; return s }}, 2 * all},
		{"a wrong byte in a head", badSource{spoil: func(off uint64, b []byte) {
			if off == 0 {
				b[40] ^= 4
			}
		}}, 2 * all},
		{"wrong weights", badSource{spoil: func(_ uint64, b []byte) { b[len(b)-1] ^= 4 }}, 2 * all},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
			defer cancel()
			c := fetching(t, e, 1, func(int) int64 { return tt.room })
			tt.bad.SliceSource = c.Slices
			c.Slices, c.Local = tt.bad, e.Experts()
			l, err := engine.NewLoopback(ctx, c)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			w.run(ctx, t, l.Swarm.Experts())
			for _, s := range l.Swarm.Workers() {
				if s.Holds != "nothing" || s.Picks != 0 || s.Session != "" {
					t.Errorf("the worker holds %s, computed %d picks, left %q", s.Holds, s.Picks, s.Session)
				}
			}
		})
	}
}

// TestTooMuchIsRefused has a backbone that thinks experts smaller than they are: it assigns more than
// there is memory for, is told, and asks for less.
func TestTooMuchIsRefused(t *testing.T) {
	e := open(t, "")
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	all := modelBytes(t, e)
	c := fetching(t, e, 1, func(int) int64 { return all * 5 / 8 })
	c.Slices, c.Local, c.Patience = smallSource{c.Slices}, e.Experts(), -1
	l, err := engine.NewLoopback(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := newWork(t, c.Model, []int{1, 3}, 9)
	w.run(ctx, t, l.Swarm.Experts())
	if s := l.Swarm.Workers()[0]; s.Holds == "nothing" || s.Picks == 0 || s.Session != "" {
		t.Errorf("after a refusal the worker holds %s and has computed %d picks", s.Holds, s.Picks)
	}
}

type smallSource struct{ engine.SliceSource }

func (s smallSource) ExpertBytes(layer int) int64 { return s.SliceSource.ExpertBytes(layer) / 3 }

// TestFullDiskIsSaid has a shelf that can keep nothing.
func TestFullDiskIsSaid(t *testing.T) {
	e := open(t, "")
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	all := modelBytes(t, e)
	c := fetching(t, e, 1, func(int) int64 { return 2 * all })
	c.Local = e.Experts()
	c.Shelf = func(int) (worker.Shelf, error) { return fullShelf{}, nil }
	c.Worker = func(_ int, w *worker.Config) {
		w.Working = func(string) { t.Error("the worker says that it works, and holds nothing") }
	}
	l, err := engine.NewLoopback(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := newWork(t, c.Model, []int{1}, 10)
	w.run(ctx, t, l.Swarm.Experts())
	if s := l.Swarm.Workers()[0]; s.Holds != "nothing" || s.Session != "" {
		t.Errorf("with a full disk the worker holds %s", s.Holds)
	}
}

type fullShelf struct{}

var errFull = errors.New("no space left on device")

func (fullShelf) Cached() []wire.Slice { return nil }

func (fullShelf) Take(context.Context, []wire.Slice, worker.Taking) (moe.Experts, error) {
	return nil, errFull
}

// TestWorkerStopsWhenNobodySigns has a worker find that its work is not signed: it leaves in order, says why,
// and comes back by the usual back-off.
func TestWorkerStopsWhenNobodySigns(t *testing.T) {
	e := open(t, "")
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	all := modelBytes(t, e)
	c := fetching(t, e, 1, func(int) int64 { return 2 * all })
	c.Local = e.Experts()
	var unsigned atomic.Bool
	lost := make(chan error, 100)
	c.Worker = func(_ int, w *worker.Config) {
		w.Unsigned, w.Look = func() bool { return unsigned.Swap(false) }, time.Millisecond
		w.Lost = func(err error, _ time.Duration) { lost <- err }
		w.Backoff = relay.Backoff{Min: time.Millisecond, Max: 2 * time.Millisecond}
	}
	l, err := engine.NewLoopback(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := newWork(t, c.Model, []int{1, 3}, 7)
	w.run(ctx, t, l.Swarm.Experts())
	unsigned.Store(true)
	select {
	case err := <-lost:
		if !errors.Is(err, worker.ErrUnsigned) {
			t.Errorf("it left because of %v", err)
		}
	case <-ctx.Done():
		t.Fatal("the worker does not leave")
	}
	for len(l.Swarm.Workers()) < 2 { // the session that ended, and the next
		if ctx.Err() != nil {
			t.Fatal("the worker does not come back")
		}
		w.run(ctx, t, l.Swarm.Experts()) // nothing is lost meanwhile
	}
}
