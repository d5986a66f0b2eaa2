package link

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"unsafe"

	"kvasir/internal/moe"
	"kvasir/internal/slab"
	"kvasir/wire"
)

func address[T any](s []T) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(s))) }

// within reports whether a lies within a region that a hook was told of.
func within(regions [][]byte, a uintptr) bool {
	for _, r := range regions {
		if at := address(r); a >= at && a < at+uintptr(len(r)) {
			return true
		}
	}
	return false
}

func TestRowsAreViewsOfTheReceiveSlab(t *testing.T) {
	arena := slab.New(slab.Options{Checked: true})
	var mu sync.Mutex
	var regions [][]byte
	remove, err := arena.Register(func(mem []byte) (func(), error) {
		mu.Lock()
		defer mu.Unlock()
		regions = append(regions, mem)
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer remove()
	looked := 0
	x := fakes(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
		mu.Lock()
		defer mu.Unlock()
		looked++
		for name, at := range map[string]uintptr{"Q": address(b.Q), "Scales": address(b.Scales), "F": address(b.F)} {
			if at != 0 && (at%slab.Align != 0 || !within(regions, at)) {
				t.Errorf("%s of %d %s rows begins %d bytes past a multiple of %d, in a registered region: %v",
					name, b.Rows, b.Format, at%slab.Align, slab.Align, within(regions, at))
			}
		}
		for name, at := range map[string]uintptr{"Expert": address(b.Expert), "Weight": address(b.Weight)} {
			if !within(regions, at) {
				t.Errorf("%s of %d %s rows are a copy", name, b.Rows, b.Format)
			}
		}
		return hashes{}.Forward(ctx, b, out)
	})
	a, b := net.Pipe()
	r := join(t, a, b, Worker{Experts: x}, Options{slabs: arena}, Options{slabs: arena})
	for i, s := range []moe.Shape{
		{Hidden: 300, Format: moe.RowQ8K}, {Hidden: 3072, Format: moe.RowQ8K}, {Hidden: 33, Format: moe.RowQ8}, {Hidden: 77, Format: moe.RowF32},
	} {
		for _, rows := range []int{1, 3, 129} {
			if err := check(r.Session, newBatch(t, seeded(uint64(i)), s, rows)); err != nil {
				t.Error(err)
			}
		}
	}
	_ = r.end()
	if st := arena.Stats(); looked != 12 || len(regions) == 0 || st.InUse != 0 {
		t.Errorf("%d dispatches, %d regions, %d bytes in use at the end", looked, len(regions), st.InUse)
	}
}

func TestASessionGoesOnWithoutSlabs(t *testing.T) {
	arena := slab.New(slab.Options{Limit: 1}) // full from the beginning
	a, b := net.Pipe()
	r := join(t, a, b, Worker{Experts: hashes{}}, Options{slabs: arena}, Options{slabs: arena})
	for i, rows := range []int{1, 100, 500} {
		if err := check(r.Session, small(t, uint64(i), rows)); err != nil {
			t.Error(err)
		}
	}
	_ = r.end()
	if st := arena.Stats(); st.Bytes != 0 {
		t.Errorf("%+v", st)
	}
}

func TestAPanicFailsItsCallAndNoOther(t *testing.T) {
	var log logged
	x := fakes(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
		if b.Rows == 3 {
			panic("BUG: three rows")
		}
		return hashes{}.Forward(ctx, b, out)
	})
	a, b := net.Pipe()
	r := join(t, a, b, Worker{Experts: x}, Options{}, Options{Log: log.logger()})
	for i, rows := range []int{1, 3, 2, 3, 3, 3, 4} {
		err := check(r.Session, small(t, uint64(i), rows))
		if rows == 3 && (!errors.Is(err, ErrInternal) || !strings.Contains(err.Error(), "three rows")) || rows != 3 && err != nil {
			t.Errorf("%d rows: %v", rows, err)
		}
	}
	_ = r.end()
	if n := strings.Count(log.String(), "a call panics"); n != 4 || !strings.Contains(log.String(), "slab_test.go") {
		t.Errorf("%d panics are logged: %s", n, log.String())
	}
}

func TestNoMoreDispatchesAreComputedThanAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now, most := 0, 0
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			now += n
			most = max(most, now)
		}
		release := make(chan struct{})
		x := fakes(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
			count(1)
			defer count(-1)
			<-release
			return hashes{}.Forward(ctx, b, out)
		})
		a, b := net.Pipe()
		r := join(t, a, b, Worker{Experts: x}, Options{}, Options{Parallel: 3})
		var group sync.WaitGroup
		for i := range 40 {
			group.Go(func() {
				if err := check(r.Session, small(t, uint64(i), 1+i%5)); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if now != 3 {
			t.Errorf("%d dispatches are computed at once, want 3", now)
		}
		close(release)
		group.Wait()
		_ = r.end()
		if most != 3 {
			t.Errorf("%d dispatches were computed at once, want 3", most)
		}
	})
}

func TestAnswersOfEveryWidthFindRoom(t *testing.T) {
	x := fakes(func(_ context.Context, b *moe.Batch, out *moe.Partials) error {
		out.Reset(b.Rows, b.Hidden)
		for i := range out.Sum {
			out.Sum[i] = 1<<(b.Layer-1) - int64(i%2)
		}
		return nil
	})
	a, b := net.Pipe()
	r := join(t, a, b, Worker{Experts: x}, Options{}, Options{})
	for _, bits := range []int{1, 16, 17, 18, 40, 52, 52, 3} {
		batch := newBatch(t, seeded(1), moe.Shape{Layer: bits - 1, Hidden: 700, Format: moe.RowQ8K}, 40)
		batch.Layer = max(bits-1, 1)
		var got moe.Partials
		if err := r.Forward(context.Background(), batch, &got); err != nil {
			t.Fatal(err)
		}
		if !same(&got, direct(t, x, batch)) {
			t.Errorf("sums of %d bits differ", bits)
		}
	}
	_ = r.end()
}

func BenchmarkControl(b *testing.B) {
	r := piped(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := r.SendReceipt(wire.Receipt{Signed: make([]byte, 0, 8)}); err != nil && !errors.Is(err, ErrBusy) {
			b.Fatal(err)
		}
	}
	_ = r.end()
}
