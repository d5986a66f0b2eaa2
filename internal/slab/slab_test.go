package slab

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ledger is memory of the heap that counts what is mapped, and locks as much as it is told.
type ledger struct {
	mu      sync.Mutex
	bytes   int
	maps    int
	lockMax int
	locked  map[*byte]int
	failing bool
	log     []string
}

var errLedger = errors.New("no more")

func (l *ledger) mapped(n int) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failing {
		return nil, errLedger
	}
	l.bytes += n
	l.maps++
	l.log = append(l.log, "map")
	return Aligned(n), nil
}

func (l *ledger) unmapped(mem []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes -= len(mem)
	l.lockMax += l.locked[&mem[0]]
	delete(l.locked, &mem[0])
	l.log = append(l.log, "unmap")
	return nil
}

func (l *ledger) lock(mem []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(mem) > l.lockMax {
		return errLedger
	}
	if l.locked == nil {
		l.locked = map[*byte]int{}
	}
	l.lockMax -= len(mem)
	l.locked[&mem[0]] = len(mem)
	return nil
}

func get(t testing.TB, a *Arena, n int) *Slab {
	t.Helper()
	s, err := a.Get(n)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wantPanic(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if text, _ := recover().(string); !strings.HasPrefix(text, "BUG: ") || !strings.Contains(text, want) {
			t.Errorf("panic %q, want BUG with %q", text, want)
		}
	}()
	f()
}

func TestSizesHoldWhatIsAskedFor(t *testing.T) {
	if sizeOf(classes-1) != MaxSize {
		t.Fatalf("the largest class has %d bytes, want %d", sizeOf(classes-1), MaxSize)
	}
	for k := range classes {
		size := sizeOf(k)
		if size%Align != 0 || k > 0 && size <= sizeOf(k-1) {
			t.Errorf("class %d has %d bytes", k, size)
		}
		if got := classOf(size); got != k {
			t.Errorf("%d bytes are of class %d, want %d", size, got, k)
		}
		if got := classOf(size + 1); k+1 < classes && got != k+1 {
			t.Errorf("%d bytes are of class %d, want %d", size+1, got, k+1)
		}
		if k > 0 && 5*(sizeOf(k-1)+1) < 4*size {
			t.Errorf("class %d of %d bytes may hold as few as %d", k, size, sizeOf(k-1)+1)
		}
	}
}

func TestSlabsAreAlignedAndApart(t *testing.T) {
	a := New(Options{})
	type span struct{ at, end uintptr }
	var spans []span
	for _, n := range []int{0, 1, 63, 4096, 4097, 5000, 100_000, 1 << 20, 1<<20 + 1, 3_000_001} {
		for range 3 {
			b := get(t, a, n).Bytes()
			if len(b) != n || cap(b) < max(n, 1) {
				t.Fatalf("slab of %d bytes with room for %d, want %d", len(b), cap(b), n)
			}
			b = b[:cap(b)]
			at := uintptr(unsafe.Pointer(&b[0]))
			if at%Align != 0 {
				t.Errorf("slab of %d bytes is %d past a multiple of %d", n, at%Align, Align)
			}
			for _, o := range spans {
				if at < o.end && o.at < at+uintptr(len(b)) {
					t.Fatalf("slabs of %d bytes overlap", n)
				}
			}
			spans = append(spans, span{at, at + uintptr(len(b))})
			b[0], b[len(b)-1] = 1, 1
		}
	}

}

func TestAnArenaIsBounded(t *testing.T) {
	l := &ledger{}
	a := New(Options{Limit: 4 << 20, memory: l})
	var held []*Slab
	for range 4 {
		held = append(held, get(t, a, 1<<20))
	}
	if _, err := a.Get(1); !errors.Is(err, ErrFull) {
		t.Errorf("a slab beyond the limit: %v, want ErrFull", err)
	}
	if _, err := a.Get(MaxSize + 1); !errors.Is(err, ErrTooBig) {
		t.Errorf("a slab of more than MaxSize: %v, want ErrTooBig", err)
	}
	// What is idle makes place for another class.
	held[2].Release()
	s := get(t, a, 1)
	if st := a.Stats(); st.Bytes != 4<<20 || st.Regions != 4 || l.bytes != 4<<20 {
		t.Errorf("after another class: %+v, and %d bytes are mapped", st, l.bytes)
	}
	s.Release()
	for _, s := range append(held[:2], held[3]) {
		s.Release()
	}
	if st := a.Stats(); st.InUse != 0 || st.Idle != st.Bytes {
		t.Errorf("after all are released: %+v", st)
	}
	l.failing = true
	if _, err := a.Get(2 << 20); !errors.Is(err, ErrNoMemory) {
		t.Errorf("without memory: %v, want ErrNoMemory", err)
	}
	a.giveBackAll()
	if st := a.Stats(); st.Bytes != 0 || st.Regions != 0 || l.bytes != 0 {
		t.Errorf("after all is given back: %+v, %d bytes are mapped", st, l.bytes)
	}
}

func TestIdleMemoryGoesBack(t *testing.T) {
	l := &ledger{}
	a := New(Options{Idle: 2 << 20, memory: l})
	var held []*Slab
	for range 5 {
		held = append(held, get(t, a, 1<<20))
	}
	for i, want := range []int{5, 5, 4, 3, 2} {
		held[i].Release()
		if l.bytes != want<<20 {
			t.Errorf("%d of 5 released: %d bytes are mapped, want %d MiB", i+1, l.bytes, want)
		}
	}
	now := time.Unix(1000, 0)
	for i, want := range []int{2, 0, 0} {
		a.Trim(now) // at the first, nothing has been idle for long enough
		a.Trim(now.Add(time.Second))
		now = now.Add(trimEvery)
		if l.bytes != want<<20 {
			t.Errorf("Trim %d: %d bytes are mapped, want %d MiB", i+1, l.bytes, want)
		}
	}
	s := get(t, a, 1<<20) // what is in use stays
	for range 5 {
		a.Trim(now)
		now = now.Add(trimEvery)
	}
	s.Bytes()[0] = 1
	s.Release()
	if l.bytes != 1<<20 {
		t.Errorf("%d bytes are mapped while a slab was in use", l.bytes)
	}
}

func TestSteadyUseMapsAndAllocatesNothing(t *testing.T) {
	l := &ledger{}
	a := New(Options{memory: l})
	sizes := []int{100, 5000, 20_000, 1 << 20, 5 << 20}
	round := func() {
		var held [10]*Slab
		for i := range held {
			held[i] = get(t, a, sizes[i%len(sizes)])
		}
		for _, s := range held {
			s.Release()
		}
	}
	round()
	maps := l.maps
	allocs := testing.AllocsPerRun(100, round)
	if l.maps != maps {
		t.Errorf("%d regions were mapped in steady use", l.maps-maps)
	}
	if allocs != 0 && !a.o.Checked {
		t.Errorf("%v allocations a round, want 0", allocs)
	}
}

func TestOnlySoMuchIsLockedAsMayBe(t *testing.T) {
	for _, tt := range []struct {
		name string
		max  int
		want int64
	}{
		{"nothing", 0, 0},
		{"some", 3<<20 + 5, 3 << 20},
		{"all", 1 << 30, 8 << 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := &ledger{lockMax: tt.max}
			a := New(Options{memory: l})
			var held []*Slab
			for range 8 {
				held = append(held, get(t, a, 1<<20))
			}
			st := a.Stats()
			if st.Pinned != tt.want || (st.Why == "") != (st.Pinned == st.Bytes) {
				t.Errorf("%d of %d bytes are locked, because %q; want %d", st.Pinned, st.Bytes, st.Why, tt.want)
			}
			for _, s := range held {
				s.Release()
			}
			// Locked memory is handed out first.
			if s := get(t, a, 1<<20); s.region.pinned != (tt.want > 0) {
				t.Errorf("a slab out of a region locked %v", s.region.pinned)
			}
			if n, why := probe(Options{Limit: 8 << 20, memory: &ledger{lockMax: tt.max}}); n != tt.want || (why == "") != (n == 8<<20) {
				t.Errorf("Probe: %d bytes, %q, want %d", n, why, tt.want)
			}
		})
	}
}

func TestMistakesOfOwnersPanic(t *testing.T) {
	a := New(Options{Checked: true})
	s := get(t, a, 10)
	view := s.Bytes()
	s.Release()
	wantPanic(t, "released twice", s.Release)
	wantPanic(t, "used after", func() { s.Bytes() })
	other := get(t, a, 10) // the same memory, under another handle
	wantPanic(t, "released twice", s.Release)
	wantPanic(t, "used after", func() { s.Bytes() })
	other.Release()
	view[3] = 1
	wantPanic(t, "written to", func() { _, _ = a.Get(10) })
	wantPanic(t, "-1 bytes", func() { _, _ = a.Get(-1) })
	var none *Slab
	none.Release() // no slab is no mistake

	plain := New(Options{memory: &ledger{}})
	plain.o.Checked = false
	s = get(t, plain, 10)
	s.Release()
	wantPanic(t, "released twice", s.Release)
	wantPanic(t, "used after", func() { s.Bytes() })
}

func TestHooksSeeEveryRegionOnce(t *testing.T) {
	l := &ledger{}
	a := New(Options{memory: l})
	hook := func(name string, refuse func(mem []byte) bool) func([]byte) (func(), error) {
		return func(mem []byte) (func(), error) {
			if refuse != nil && refuse(mem) {
				return nil, errLedger
			}
			l.log = append(l.log, name)
			return func() { l.log = append(l.log, "-"+name) }, nil
		}
	}
	held := []*Slab{get(t, a, 1<<20), get(t, a, 1)}
	steps := []struct {
		name string
		do   func()
		want string
	}{
		{"regions that are there", func() { mustHook(t, a, hook("x", nil)) }, "x x"},
		{"a new one", func() { held = append(held, get(t, a, 2<<20)) }, "map x"},
		{"a second hook", func() { mustHook(t, a, hook("y", nil)) }, "y y y"},
		{"a hook that refuses the third", func() {
			n := 0
			_, err := a.Register(hook("z", func([]byte) bool { n++; return n == 3 }))
			if !errors.Is(err, errLedger) {
				t.Errorf("Register: %v", err)
			}
		}, "z z -z -z"},
		{"a region goes", func() { held[2].Release(); a.giveBackAll() }, "-y -x unmap"},
		{"another comes", func() { held[2] = get(t, a, 3<<20) }, "map x y"},
	}
	for _, s := range steps {
		l.log = nil
		s.do()
		if got := strings.Join(l.log, " "); got != s.want {
			t.Errorf("%s: %q, want %q", s.name, got, s.want)
		}
	}

	l.log = nil
	remove := mustHook(t, a, hook("w", func(mem []byte) bool { return len(mem) > 4<<20 }))
	big := get(t, a, 5<<20) // refused, and of use all the same
	big.Bytes()[0] = 1
	if st := a.Stats(); st.Refused != 5<<20 {
		t.Errorf("%d bytes are refused, want 5 MiB", st.Refused)
	}
	remove()
	remove() // once is all
	if got, want := strings.Join(l.log, " "), "w w w map x y -w -w -w"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	big.Release()
	for _, s := range held {
		s.Release()
	}
	a.giveBackAll()
	if st := a.Stats(); st.Refused != 0 || st.Bytes != 0 {
		t.Errorf("at the end: %+v", st)
	}
}

func mustHook(t *testing.T, a *Arena, f func([]byte) (func(), error)) func() {
	t.Helper()
	remove, err := a.Register(f)
	if err != nil {
		t.Fatal(err)
	}
	return remove
}

func TestManyOwnersAtOnceKeepTheirBytes(t *testing.T) {
	l := &ledger{}
	a := New(Options{Limit: 64 << 20, Idle: 4 << 20, Checked: true, memory: l})
	var group sync.WaitGroup
	for g := range 8 {
		group.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 3))
			var held []*Slab
			for i := range 400 {
				if len(held) > 0 && rng.IntN(2) == 0 {
					s := held[len(held)-1]
					held = held[:len(held)-1]
					if b := s.Bytes(); bytes.Count(b, []byte{byte(g)}) != len(b) {
						t.Errorf("owner %d: somebody wrote to its slab", g)
					}
					s.Release()
					continue
				}
				s, err := a.Get(1 + rng.IntN(30_000))
				if errors.Is(err, ErrFull) {
					continue
				}
				if err != nil {
					t.Errorf("owner %d: %v", g, err)
					return
				}
				copy(s.Bytes(), bytes.Repeat([]byte{byte(g)}, len(s.Bytes())))
				held = append(held, s)
				if i%50 == 0 {
					a.Trim(time.Unix(int64(1000+20*i), 0))
					_ = a.Stats()
				}
				if i%97 == 0 {
					if remove, err := a.Register(func([]byte) (func(), error) { return nil, nil }); err == nil {
						remove()
					}
				}
			}
			for _, s := range held {
				s.Release()
			}
		})
	}
	group.Wait()
	a.giveBackAll()
	if st := a.Stats(); st.InUse != 0 || st.Bytes != 0 || l.bytes != 0 {
		t.Errorf("at the end: %+v, %d bytes are mapped", st, l.bytes)
	}
}

func BenchmarkGetRelease(b *testing.B) {
	a := New(Options{})
	defer a.giveBackAll()
	b.ReportAllocs()
	for b.Loop() {
		get(b, a, 100_000).Release()
	}
}
