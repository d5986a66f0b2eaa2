package ref

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

const testHidden = 64

// testLayer has experts 0 to 5 of which number 4 is not held.
func testLayer() *Layer {
	l := &Layer{Number: 2, Exponent: 14, Experts: make([]*Expert, 6)}
	for n := range l.Experts {
		if n != 4 {
			l.Experts[n] = syntheticExpert(quant.Q8_0, quant.MXFP4, quant.Q8_0, testHidden, 96, uint64(1000+10*n))
		}
	}
	return l
}

type pick struct {
	expert uint16
	weight float32
}

// batchOf is rows of one seed with the given picks.
func batchOf(t *testing.T, picks ...[]pick) *moe.Batch {
	t.Helper()
	b, err := moe.NewBatch(moe.Shape{Layer: 2, Hidden: testHidden, Format: moe.RowQ8}, len(picks), 8*len(picks))
	if err != nil {
		t.Fatal(err)
	}
	src := source(7)
	for _, row := range picks {
		var experts []uint16
		var weights []float32
		for _, p := range row {
			experts, weights = append(experts, p.expert), append(weights, p.weight)
		}
		r := b.Grow(experts, weights)
		if st, i := QuantizeRow(b.Row(r), src.activations(testHidden)); st != moe.OK {
			t.Fatalf("%s at %d", st, i)
		}
	}
	return b
}

func forward(t *testing.T, e moe.Experts, b *moe.Batch) *moe.Partials {
	t.Helper()
	out, err := moe.NewPartials(b.Rows, b.Hidden)
	if err != nil {
		t.Fatal(err)
	}
	for i := range out.Sum[:cap(out.Sum)] {
		out.Sum[:cap(out.Sum)][i] = 77 // stale values must not stay
	}
	if err := e.Forward(context.Background(), b, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLayerAddsPicks(t *testing.T) {
	l := testLayer()
	b := batchOf(t, []pick{{0, 0.5}, {3, 0.25}}, []pick{{5, -1}})
	out := forward(t, l, b)
	for r := range b.Rows {
		want := make([]int64, testHidden)
		y := make([]float32, testHidden)
		experts, weights := b.Picks(r)
		for i, e := range experts {
			l.Experts[e].Forward(y, b.Row(r), new(Scratch))
			for k, v := range y {
				p := float32(weights[i] * v)
				want[k] += int64(math.RoundToEven(float64(p) * (1 << 14)))
			}
		}
		if !slices.Equal(out.Row(r), want) || out.Status[r] != moe.OK {
			t.Errorf("row %d: %s and %d, want %d", r, out.Status[r], out.Row(r), want)
		}
		if slices.Max(want) == 0 {
			t.Errorf("row %d is nothing", r)
		}
	}
}

func TestOrderOfPicksDoesNotShow(t *testing.T) {
	l := testLayer()
	picks := []pick{{0, 0.3}, {1, 0.25}, {3, 0.2}, {1, 0.15}, {5, 0.1}}
	var rows [][]pick
	for range picks {
		rows = append(rows, slices.Clone(picks))
		picks = append(picks[1:], picks[0])
	}
	reversed := slices.Clone(picks)
	slices.Reverse(reversed)
	rows = append(rows, reversed)
	b := batchOf(t, rows...)
	for r := 1; r < b.Rows; r++ { // all rows alike
		copy(b.Row(r).Q, b.Row(0).Q)
		copy(b.Row(r).Scales, b.Row(0).Scales)
	}
	out := forward(t, l, b)
	for r := range b.Rows {
		if !slices.Equal(out.Row(r), out.Row(0)) {
			t.Errorf("row %d, the same picks in another order, has another partial", r)
		}
	}
}

// An expert picked twice counts twice, and a row's partial is the sum of its parts, however they
// are spread over executors.
func TestPartsAddUp(t *testing.T) {
	l := testLayer()
	whole := forward(t, l, batchOf(t, []pick{{0, 0.5}, {3, 0.25}, {0, 0.5}, {2, 0.125}}))
	parts := []*moe.Partials{
		forward(t, l, batchOf(t, []pick{{0, 0.5}})),
		forward(t, l, batchOf(t, []pick{{2, 0.125}, {0, 0.5}})),
		forward(t, l, batchOf(t, []pick{{3, 0.25}})),
	}
	sum, err := moe.NewPartials(1, testHidden)
	if err != nil {
		t.Fatal(err)
	}
	sum.Reset(1, testHidden)
	for _, p := range parts {
		sum.AddRow(0, p, 0)
	}
	if !slices.Equal(sum.Sum, whole.Sum) || slices.Max(whole.Sum) == 0 {
		t.Errorf("parts add up to %d, the whole is %d", sum.Sum, whole.Sum)
	}
}

func TestFaultsStayInTheirRow(t *testing.T) {
	l := testLayer()
	good := []pick{{0, 0.5}, {3, 0.25}}
	clean := forward(t, l, batchOf(t, good, good, good, good, good, good))
	b := batchOf(t, good,
		[]pick{{0, nan}, {3, 0.25}}, // nonfinite, then good
		[]pick{{0, 1e12}, {3, nan}}, // range, then nonfinite
		[]pick{{0, nan}, {3, 1e12}}, // the other way round
		[]pick{{0, 0.5}, {3, 1e12}}, // good, then range
		good)
	out := forward(t, l, b)
	if want := []moe.Status{moe.OK, moe.NonFinite, moe.NonFinite, moe.NonFinite, moe.Range, moe.OK}; !slices.Equal(out.Status, want) {
		t.Errorf("statuses %v, want %v", out.Status, want)
	}
	zeros := make([]int64, testHidden)
	for r := range b.Rows {
		want := clean.Row(r)
		if out.Status[r] != moe.OK {
			want = zeros
		}
		if !slices.Equal(out.Row(r), want) {
			t.Errorf("row %d, %s, is %d, want %d", r, out.Status[r], out.Row(r), want)
		}
	}
}

func TestLayerRefusesBatches(t *testing.T) {
	good := []pick{{0, 0.5}}
	for _, c := range []struct {
		name  string
		batch func() *moe.Batch
		want  error
		say   string
	}{
		{"another layer", func() *moe.Batch { b := batchOf(t, good); b.Layer = 3; return b }, moe.ErrNotHeld, "layer 3, this is layer 2"},
		{"an expert that is not held", func() *moe.Batch { return batchOf(t, good, []pick{{0, 1}, {4, 1}}) }, moe.ErrNotHeld, "expert 4 of layer 2"},
		{"no such expert", func() *moe.Batch { return batchOf(t, []pick{{6, 1}}) }, moe.ErrInvalid, "expert 6 of 6"},
		{"-128", func() *moe.Batch { b := batchOf(t, good); b.Q[3] = -128; return b }, moe.ErrInvalid, "value 3 is -128"},
		{"another size", func() *moe.Batch { return otherBatch(t, moe.RowQ8, 32) }, moe.ErrInvalid, "Q8 rows of 32 values"},
		{"another format", func() *moe.Batch { return otherBatch(t, moe.RowF32, testHidden) }, moe.ErrInvalid, "F32 rows of 64 values"},
	} {
		out, err := moe.NewPartials(2, testHidden)
		if err != nil {
			t.Fatal(err)
		}
		if err := testLayer().Forward(context.Background(), c.batch(), out); !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.say) {
			t.Errorf("%s: error %v, want %v with %q", c.name, err, c.want, c.say)
		}
		if out.Rows != 0 {
			t.Errorf("%s: an error left %d rows", c.name, out.Rows)
		}
	}
	if err := (Layers{testLayer()}).Forward(context.Background(), otherLayer(t), &moe.Partials{}); !errors.Is(err, moe.ErrNotHeld) {
		t.Errorf("a layer that is none of these: error %v", err)
	}
	if out := forward(t, Layers{{Number: 1}, testLayer()}, batchOf(t, good)); out.Rows != 1 || out.Status[0] != moe.OK {
		t.Errorf("a layer among others: %d rows, %v", out.Rows, out.Status)
	}
}

func otherBatch(t *testing.T, f moe.RowFormat, hidden int) *moe.Batch {
	t.Helper()
	b, err := moe.NewBatch(moe.Shape{Layer: 2, Hidden: hidden, Format: f}, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	b.Grow([]uint16{0}, []float32{1})
	return b
}

func otherLayer(t *testing.T) *moe.Batch {
	t.Helper()
	b := batchOf(t, []pick{{0, 1}})
	b.Layer = 9
	return b
}

func TestLayerStopsWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	out, err := moe.NewPartials(1, testHidden)
	if err != nil {
		t.Fatal(err)
	}
	if err := testLayer().Forward(ctx, batchOf(t, []pick{{0, 1}}), out); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	if out.Rows != 0 {
		t.Errorf("%d rows are left", out.Rows)
	}
}

func TestLayerIsSafeForConcurrentUse(t *testing.T) {
	l := testLayer()
	b := batchOf(t, []pick{{0, 0.5}, {3, 0.25}}, []pick{{5, 1}})
	want := forward(t, l, b)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var out moe.Partials
			if err := l.Forward(context.Background(), b, &out); err != nil {
				t.Error(err)
			}
			if !slices.Equal(out.Sum, want.Sum) {
				t.Error("another partial from another goroutine")
			}
		})
	}
	wg.Wait()
}
