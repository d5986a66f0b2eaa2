package moe

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"kvasir/internal/slab"
)

// threeRows returns a valid batch of three Q8K rows with 1, 3 and 2 picks.
func threeRows(t *testing.T) *Batch {
	t.Helper()
	b, err := NewBatch(Shape{Layer: 2, Hidden: 300, Format: RowQ8K}, 4, 8)
	if err != nil {
		t.Fatal(err)
	}
	b.Grow([]uint16{5}, []float32{1})
	b.Grow([]uint16{0, 7, 7}, []float32{0.5, 0.25, 0.25})
	b.Grow([]uint16{1, 2}, []float32{0.5, 0.5})
	return b
}

func TestBatchValidateAcceptsAndRefuses(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(*Batch)
		want  string // part of the error; empty: valid
	}{
		{"valid", func(*Batch) {}, ""},
		{"layer below", func(b *Batch) { b.Layer = -1 }, "layer -1"},
		{"layer above", func(b *Batch) { b.Layer = MaxLayers }, "layer 1024"},
		{"hidden zero", func(b *Batch) { b.Hidden = 0 }, "hidden size 0"},
		{"hidden huge", func(b *Batch) { b.Hidden = MaxHidden + 1 }, "hidden size 32769"},
		{"format", func(b *Batch) { b.Format = 9 }, "row format 9"},
		{"no rows", func(b *Batch) { b.Rows = 0 }, "0 rows"},
		{"too many rows", func(b *Batch) { b.Rows = MaxRows + 1 }, "4097 rows"},
		{"values short", func(b *Batch) { b.Q = b.Q[:10] }, "10 int8"},
		{"scales short", func(b *Batch) { b.Scales = b.Scales[:5] }, "5 scales"},
		{"floats beside int8", func(b *Batch) { b.F = make([]float32, 1) }, "1 float values"},
		{"offsets short", func(b *Batch) { b.First = b.First[:2] }, "2 pick offsets"},
		{"offsets not from 0", func(b *Batch) { b.First[0] = 1 }, "pick offsets"},
		{"row without picks", func(b *Batch) { b.First[1] = 0 }, "row 0 has 0 picks"},
		{"offsets fall", func(b *Batch) { b.First[2] = 0 }, "row 1 has -1 picks"},
		{"offsets wrap", func(b *Batch) { b.First[1], b.First[2] = -1<<31, 1<<31-1 }, "row 0 has -2147483648 picks"},
		{"too many picks", func(b *Batch) { b.First[3] = 4 + MaxTopK + 1 }, "row 2 has 65 picks"},
		{"experts short", func(b *Batch) { b.Expert = b.Expert[:5] }, "5 experts"},
		{"weights short", func(b *Batch) { b.Weight = b.Weight[:5] }, "5 weights"},
		{"expert above", func(b *Batch) { b.Expert[3] = 8 }, "pick 3 asks for expert 8 of 8"},
		{"value -128", func(b *Batch) { b.Q[301] = -128 }, "row 1, value 1 is -128"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := threeRows(t)
			tt.spoil(b)
			err := b.Validate(8)
			if tt.want == "" {
				if err != nil {
					t.Fatalf("valid batch refused: %v", err)
				}
				return
			}
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want ErrInvalid with %q", err, tt.want)
			}
		})
	}
}

func TestValidateShapeLooksAtEveryPick(t *testing.T) {
	for picks := 1; picks <= 20; picks++ {
		for bad := range picks {
			b, err := NewBatch(Shape{Hidden: 4, Format: RowQ8}, 1, picks)
			if err != nil {
				t.Fatal(err)
			}
			b.Grow(make([]uint16, picks), make([]float32, picks))
			b.Expert[bad] = 8
			want := fmt.Sprintf("pick %d asks for expert 8 of 8", bad)
			if err := b.ValidateShape(8); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%d picks: got %v, want %q", picks, err, want)
			}
		}
	}
}

func TestNewBatchRefusesWhatNoBatchMayClaim(t *testing.T) {
	ok := Shape{Hidden: 64, Format: RowQ8}
	for _, tt := range []struct {
		name        string
		shape       Shape
		rows, picks int
	}{
		{"shape", Shape{Hidden: -1}, 1, 1},
		{"no rows", ok, 0, 1},
		{"too many rows", ok, MaxRows + 1, MaxRows + 1},
		{"fewer picks than rows", ok, 4, 3},
		{"too many picks", ok, 4, 4*MaxTopK + 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := NewBatch(tt.shape, tt.rows, tt.picks); !errors.Is(err, ErrInvalid) {
				t.Fatalf("got %v, want ErrInvalid", err)
			}
		})
	}
	for _, dims := range [][2]int{{0, 1}, {MaxRows + 1, 1}, {1, 0}, {1, MaxHidden + 1}} {
		if _, err := NewPartials(dims[0], dims[1]); !errors.Is(err, ErrInvalid) {
			t.Errorf("NewPartials(%d, %d): %v, want ErrInvalid", dims[0], dims[1], err)
		}
	}
}

func TestBatchRoomEndsAtRowsOrPicks(t *testing.T) {
	b := threeRows(t)
	if !b.Room(2) || b.Room(3) {
		t.Error("6 of 8 picks are taken: there is room for 2 more, not 3")
	}
	b.Grow([]uint16{1}, []float32{1})
	if b.Room(1) {
		t.Error("4 of 4 rows are taken, and there is room for another")
	}
	b.Reset(3)
	if b.Layer != 3 || !b.Room(8) || len(b.First) != 1 {
		t.Errorf("after Reset: %+v", b.Shape)
	}
}

func TestRowsAreViewsOfTheBatch(t *testing.T) {
	b := threeRows(t)
	row := b.Row(1)
	row.Q[299], row.Scales[1] = 7, 0.5
	if b.Q[599] != 7 || b.Scales[3] != 0.5 {
		t.Error("a write through Row(1) did not reach the batch")
	}
	expert, weight := b.Picks(1)
	if len(expert) != 3 || expert[2] != 7 || len(weight) != 3 || weight[0] != 0.5 {
		t.Errorf("picks of row 1: %v %v", expert, weight)
	}
	f, err := NewBatch(Shape{Hidden: 3, Format: RowF32}, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	f.Grow([]uint16{0}, []float32{1})
	f.Row(0).F[2] = 9
	if f.F[2] != 9 || f.Row(0).Q != nil {
		t.Error("a float row is not a view of F")
	}
}

func TestEveryArrayIsAligned(t *testing.T) {
	b := threeRows(t)
	p, err := NewPartials(3, 300)
	if err != nil {
		t.Fatal(err)
	}
	p.Reset(3, 300)
	for name, at := range map[string]uintptr{
		"Q": address(b.Q), "Scales": address(b.Scales), "First": address(b.First),
		"Expert": address(b.Expert), "Weight": address(b.Weight),
		"Sum": address(p.Sum), "Status": address(p.Status),
	} {
		if at%SlabAlign != 0 {
			t.Errorf("%s starts %d bytes past a multiple of %d", name, at%SlabAlign, SlabAlign)
		}
	}
}

func address[T any](s []T) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(s))) }

func TestPartialsAddInAnyOrder(t *testing.T) {
	parts := make([]*Partials, 3)
	for i := range parts {
		parts[i] = &Partials{}
		parts[i].Reset(2, 4)
		for k := range parts[i].Sum {
			parts[i].Sum[k] = int64((i + 1) * (k - 3) << (10 * i))
		}
	}
	parts[1].Fault(1, Range)
	parts[2].Fault(1, NonFinite)
	var want Partials
	for n, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {2, 0, 1}} {
		var got Partials
		got.Reset(2, 4)
		for _, i := range order {
			got.AddRow(0, parts[i], 0)
			got.AddRow(1, parts[i], 1)
		}
		if n == 0 {
			want = got
		}
		for k := range got.Sum {
			if got.Sum[k] != want.Sum[k] {
				t.Fatalf("order %v: value %d is %d, want %d", order, k, got.Sum[k], want.Sum[k])
			}
		}
		if got.Status[0] != OK || got.Status[1] != NonFinite {
			t.Fatalf("order %v: status %v, want [ok nonfinite]", order, got.Status)
		}
		for k, v := range got.Row(1) {
			if v != 0 {
				t.Fatalf("order %v: faulted row holds %d at %d", order, v, k)
			}
		}
	}
}

func TestPartialsResetForgets(t *testing.T) {
	var p Partials
	p.Reset(3, 5)
	p.Sum[7] = 1
	p.Fault(2, Wide)
	p.Reset(2, 6)
	if len(p.Sum) != 12 || p.Sum[7] != 0 || len(p.Status) != 2 {
		t.Errorf("after Reset(2, 6): %d values, value 7 is %d", len(p.Sum), p.Sum[7])
	}
	if n := testing.AllocsPerRun(10, func() { p.Reset(3, 5) }); n != 0 {
		t.Errorf("Reset with room allocates %v times", n)
	}
}

func TestNamesOfStatusesAndFormats(t *testing.T) {
	for s, want := range map[Status]string{OK: "ok", Wide: "wide", Range: "range", NonFinite: "nonfinite", 9: "unknown status"} {
		if s.String() != want || s.Valid() != (s < 4) {
			t.Errorf("status %d: %q, valid %v", s, s, s.Valid())
		}
	}
	for f, want := range map[RowFormat]string{RowF32: "F32", RowQ8K: "Q8K", RowQ8: "Q8", 7: "unknown row format"} {
		if f.String() != want || f.Valid() != (f < 3) {
			t.Errorf("row format %d: %q, valid %v", f, f, f.Valid())
		}
	}
	for _, tt := range []struct{ f, n, want int }{{int(RowF32), 300, 0}, {int(RowQ8K), 256, 1}, {int(RowQ8K), 257, 2}, {int(RowQ8), 3072, 96}} {
		if got := RowFormat(tt.f).Scales(tt.n); got != tt.want {
			t.Errorf("%v.Scales(%d) = %d, want %d", RowFormat(tt.f), tt.n, got, tt.want)
		}
	}
}

func TestPinnedMemoryIsAlignedAndGivenBack(t *testing.T) {
	before := slab.Shared.Stats().InUse
	b, err := NewPinnedBatch(Shape{Layer: 1, Hidden: 300, Format: RowQ8K}, 4, 8)
	if err != nil {
		t.Fatal(err)
	}
	var p Partials
	p.Pin()
	p.Reset(3, 300)
	p.Sum[7], p.Status[2] = 1, Range
	if zero := p.Size(2, 400); zero || p.Sum[7] != 1 {
		t.Error("Size within the room touches the values")
	}
	held := slab.Shared.Stats().InUse
	p.Reset(30, 400) // more room: the former slab goes back
	for i, v := range p.Sum {
		if v != 0 {
			t.Fatalf("value %d of new partials is %d", i, v)
		}
	}
	for name, at := range map[string]uintptr{
		"Q": address(b.Q), "Scales": address(b.Scales), "First": address(b.First),
		"Expert": address(b.Expert), "Weight": address(b.Weight),
		"Sum": address(p.Sum), "Status": address(p.Status),
	} {
		if at%SlabAlign != 0 {
			t.Errorf("%s starts %d bytes past a multiple of %d", name, at%SlabAlign, SlabAlign)
		}
	}
	if held <= before {
		t.Errorf("%d bytes of slabs are in use, %d were before", held, before)
	}
	b.Release()
	p.Release()
	if now := slab.Shared.Stats().InUse; now != before || b.Q != nil || p.Sum != nil {
		t.Errorf("after Release %d bytes of slabs are in use, %d were before", now, before)
	}
	p.Reset(1, 64) // still pinned, and of use
	p.Release()

	plain := threeRows(t)
	plain.Release() // memory of the heap: nothing to give back
}
