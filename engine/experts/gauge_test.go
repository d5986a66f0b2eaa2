package experts_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"kvasir/engine/experts"
	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

// TestGaugePassesOnWhatItMeasures compares the gauge's partials with those of the executor behind it,
// and its profile with one worked out from the definition.
func TestGaugePassesOnWhatItMeasures(t *testing.T) {
	l := shapes[1]
	f := synthetic(t, l)
	local := load(t, f, 1)
	g := experts.NewGauge(local, ref.DefaultProfile(1))
	var medians []float32
	var largest float32
	const rows = 504
	for seed := range uint64(4) {
		b := batch(t, 0, l, rows, 9, seed) // 4,536 picks: more than one batch of the gauge
		var got, want moe.Partials
		if err := local.Forward(context.Background(), b, &want); err != nil {
			t.Fatal(err)
		}
		if err := g.Forward(context.Background(), b, &got); err != nil {
			t.Fatal(err)
		}
		equal(t, &got, &want)
		for r := range rows {
			abs := make([]float32, 0, l.hidden)
			for _, v := range want.Row(r) {
				abs = append(abs, ref.Float(max(v, -v), ref.DefaultExponent))
			}
			slices.Sort(abs)
			medians = append(medians, (abs[l.hidden/2-1]+abs[l.hidden/2])/2)
		}
		largest = max(largest, largestPick(t, local, b))
	}
	if g.Rows() != 4*rows {
		t.Fatalf("%d rows measured, want %d", g.Rows(), 4*rows)
	}
	p, err := g.Profile("synthetic")
	if err != nil {
		t.Fatal(err)
	}
	want, err := ref.Exponent(medians, largest)
	if err != nil {
		t.Fatal(err)
	}
	if p.Exponents[0] != want || p.Rows != 4*rows || p.Model != "synthetic" {
		t.Errorf("profile %+v, want exponent %d", p, want)
	}
}

// largestPick asks for each pick alone.
func largestPick(t *testing.T, e moe.Experts, b *moe.Batch) float32 {
	t.Helper()
	largest := int64(0)
	one, err := moe.NewBatch(b.Shape, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	var p moe.Partials
	for r := range b.Rows {
		expert, weight := b.Picks(r)
		for i := range expert {
			one.Reset(b.Layer)
			copy(one.Row(one.Grow(expert[i:i+1], weight[i:i+1])).Q, b.Row(r).Q)
			copy(one.Scales, b.Row(r).Scales)
			if err := e.Forward(context.Background(), one, &p); err != nil {
				t.Fatal(err)
			}
			for _, v := range p.Sum {
				largest = max(largest, v, -v)
			}
		}
	}
	return ref.Float(largest, ref.DefaultExponent)
}

func TestGaugeNeedsEnoughRows(t *testing.T) {
	l := shapes[1]
	g := experts.NewGauge(load(t, synthetic(t, l), 1), ref.DefaultProfile(1))
	if err := g.Forward(context.Background(), batch(t, 0, l, 20, 2, 1), &moe.Partials{}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Profile("x"); !errors.Is(err, ref.ErrMeasure) {
		t.Errorf("a profile from 20 rows: %v", err)
	}
}
