package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"kvasir/internal/moe"
	"kvasir/wire"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("kvasir/kernels/cpu.(*team).help"))
}

// fakeShelf has every slice, of so many bytes an expert.
type fakeShelf struct {
	bytes int64
	err   error // of the next Take
	taken []wire.Slice
}

func (f *fakeShelf) Cached() []wire.Slice { return nil }

func (f *fakeShelf) Take(_ context.Context, list []wire.Slice, o Taking) (moe.Experts, error) {
	if f.err != nil {
		return nil, f.err
	}
	for _, s := range list {
		if err := o.Room(s, f.bytes*int64(s.Hi-s.Lo)); err != nil {
			return nil, err
		}
		o.Progress(f.bytes * int64(s.Hi-s.Lo))
		f.taken = append(f.taken, s)
	}
	return echo{}, nil
}

// echo answers with nothing.
type echo struct{}

func (echo) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	out.Reset(b.Rows, b.Hidden)
	return nil
}

var backboneHello = &wire.Hello{Layers: 4, Experts: 16, Hidden: 256, Model: wire.Hash{1}}

func slice(layer, lo, hi int) wire.Slice {
	return wire.Slice{Layer: layer, Lo: lo, Hi: hi, Hash: wire.Hash{byte(layer), byte(lo), byte(hi), 1}, Exponent: wire.ExponentBias + 11}
}

func newHolder(f *fakeShelf, memory int64) *holder {
	return &holder{shelf: f, memory: memory, status: &status{}}
}

func (h *holder) has(t *testing.T, layer int) bool {
	t.Helper()
	b, err := moe.NewBatch(moe.Shape{Layer: layer, Hidden: 256, Format: moe.RowQ8K}, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	b.Grow([]uint16{0}, []float32{1})
	err = h.Forward(context.Background(), b, &moe.Partials{})
	if err != nil && !errors.Is(err, moe.ErrNotHeld) {
		t.Fatal(err)
	}
	return err == nil
}

func TestAssignLoadsWhatChanges(t *testing.T) {
	f := &fakeShelf{bytes: 10}
	h := newHolder(f, 1000)
	h.meet(backboneHello)
	for i, tt := range []struct {
		list  []wire.Slice
		taken int
		text  string
	}{
		{[]wire.Slice{slice(0, 0, 16), slice(1, 0, 8)}, 2, "2 slices of 2 layers"},
		{[]wire.Slice{slice(1, 0, 8), slice(0, 0, 16)}, 2, "2 slices of 2 layers"},
		{[]wire.Slice{slice(1, 0, 8), slice(2, 0, 4), slice(2, 8, 12)}, 4, "3 slices of 2 layers"},
		{[]wire.Slice{slice(1, 0, 9)}, 5, "1 slices of 1 layers"},
	} {
		if _, err := h.assign(context.Background(), backboneHello, tt.list, nil); err != nil {
			t.Fatalf("assign %d: %v", i, err)
		}
		if len(f.taken) != tt.taken || !strings.HasPrefix(h.String(), tt.text) {
			t.Errorf("assign %d: %d slices taken, want %d; holds %s", i, len(f.taken), tt.taken, h)
		}
	}
	if h.has(t, 0) || !h.has(t, 1) || h.has(t, 3) {
		t.Error("what is held is not what was assigned last")
	}

	// The next session of the same model finds it loaded; another model does not.
	h.meet(backboneHello)
	if !h.has(t, 1) {
		t.Error("what was held is gone with the session")
	}
	h.meet(&wire.Hello{Layers: 4, Experts: 16, Hidden: 256, Model: wire.Hash{2}})
	if h.has(t, 1) || h.String() != "nothing" {
		t.Errorf("another model finds %s", h)
	}
}

func TestAssignKeepsWithinMemory(t *testing.T) {
	f := &fakeShelf{bytes: 1 << 20}
	h := newHolder(f, 20<<20)
	h.meet(backboneHello)
	assign := func(list ...wire.Slice) error {
		_, err := h.assign(context.Background(), backboneHello, list, nil)
		return err
	}
	if err := assign(slice(0, 0, 16)); err != nil {
		t.Fatal(err)
	}
	err := assign(slice(0, 0, 16), slice(1, 0, 5))
	if !errors.Is(err, ErrMemory) || !strings.Contains(err.Error(), "layer 1") || !strings.Contains(err.Error(), "20 MiB") {
		t.Errorf("21 MiB of 20: %v", err)
	}
	if !h.has(t, 0) || h.has(t, 1) {
		t.Error("what was held before is not held after an Assign that failed")
	}
	// What is to go goes first where both have no room, and stays where they have.
	if err := assign(slice(1, 0, 10)); err != nil || h.has(t, 0) || !h.has(t, 1) {
		t.Errorf("10 MiB in the place of 16: %v", err)
	}
	f.err = errors.New("broken")
	if err := assign(slice(2, 0, 10)); !errors.Is(err, f.err) || !h.has(t, 1) {
		t.Errorf("a failed Assign, with room for both: %v", err)
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	h := newHolder(&fakeShelf{bytes: 1}, 1000)
	h.meet(backboneHello)
	with := func(s wire.Slice, change func(*wire.Slice)) wire.Slice {
		change(&s)
		return s
	}
	for name, list := range map[string][]wire.Slice{
		"a layer too many":     {slice(4, 0, 1)},
		"an expert too many":   {slice(0, 0, 17)},
		"without hash":         {with(slice(0, 0, 1), func(s *wire.Slice) { s.Hash = wire.Hash{} })},
		"without exponent":     {with(slice(0, 0, 1), func(s *wire.Slice) { s.Exponent = 0 })},
		"an expert twice":      {slice(0, 0, 4), slice(0, 3, 5)},
		"two exponents":        {slice(0, 0, 4), with(slice(0, 4, 8), func(s *wire.Slice) { s.Exponent++ })},
		"all but one is right": {slice(0, 0, 4), slice(9, 0, 4)},
	} {
		_, err := h.assign(context.Background(), backboneHello, list, nil)
		if !errors.Is(err, ErrAssign) || !errors.Is(err, moe.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if h.String() != "nothing" {
			t.Fatalf("%s: it holds %s", name, h)
		}
	}
}

// TestProgressIsTold looks at the status from within a Take.
func TestProgressIsTold(t *testing.T) {
	w := New(Config{Shelf: &fakeShelf{bytes: 7}, Memory: 1000})
	w.holder.meet(backboneHello)
	w.status.begin(Fetching, "session", 256)
	var seen []string
	w.holder.shelf = takeFunc(func(ctx context.Context, list []wire.Slice, o Taking) (moe.Experts, error) {
		if err := o.Room(list[0], 100); err != nil {
			return nil, err
		}
		for range 2 {
			s := w.Status()
			seen = append(seen, fmt.Sprintf("%v %d of %d: %s", s.State, s.Loaded, s.Loading, s.Reason))
			o.Progress(50)
		}
		return echo{}, nil
	})
	if _, err := w.holder.assign(context.Background(), backboneHello, []wire.Slice{slice(0, 0, 1)}, nil); err != nil {
		t.Fatal(err)
	}
	want := "fetching 0 of 100: slices are on their way, fetching 50 of 100: slices are on their way"
	if got := strings.Join(seen, ", "); got != want {
		t.Errorf("seen %q, want %q", got, want)
	}
	w.status.holding("it")
	if s := w.Status(); s.State != Working || s.Reason != "" || s.Loading != 0 || s.Holds != "it" {
		t.Errorf("afterwards: %+v", s)
	}
}

type takeFunc func(context.Context, []wire.Slice, Taking) (moe.Experts, error)

func (takeFunc) Cached() []wire.Slice { return nil }

func (f takeFunc) Take(ctx context.Context, list []wire.Slice, o Taking) (moe.Experts, error) {
	return f(ctx, list, o)
}

func TestUnitsAreCountedByPicks(t *testing.T) {
	w := New(Config{Model: Model{Experts: echo{}}})
	w.status.begin(Working, "session", 3072)
	x := w.counted(echo{})
	b, err := moe.NewBatch(moe.Shape{Hidden: 3072, Format: moe.RowQ8K}, 1, 8)
	if err != nil {
		t.Fatal(err)
	}
	b.Grow(make([]uint16, 8), make([]float32, 8))
	for range 13 {
		if err := x.Forward(context.Background(), b, &moe.Partials{}); err != nil {
			t.Fatal(err)
		}
	}
	if s := w.Status(); s.Output != 1_277_952 || s.Rows != 13 || s.Picks != 104 {
		t.Errorf("13 dispatches of one token: %+v", s)
	}
}
