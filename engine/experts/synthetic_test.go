package experts_test

import (
	"context"
	"testing"

	"kvasir/engine/experts"
	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

func TestSyntheticIsTheSameForTheSameSeed(t *testing.T) {
	shape := experts.SyntheticShape{Hidden: 512, FFN: 256, Experts: 5, Format: quant.Q4K}
	l := layerShape{hidden: 512, ffn: 256, experts: 5, gate: quant.Q4K, up: quant.Q4K, down: quant.Q4K}
	b := batch(t, 0, l, 9, 3, 1)
	var sums [3]moe.Partials
	for i, seed := range []uint64{7, 7, 8} {
		s, err := experts.Synthetic(shape, seed)
		if err != nil {
			t.Fatal(err)
		}
		if err := experts.NewLocal(s).Forward(context.Background(), b, &sums[i]); err != nil {
			t.Fatal(err)
		}
		for r, status := range sums[i].Status {
			if status != moe.OK {
				t.Errorf("seed %d, row %d is %v", seed, r, status)
			}
		}
	}
	equal(t, &sums[1], &sums[0])
	same := 0
	for i, v := range sums[2].Sum {
		if v == sums[0].Sum[i] {
			same++
		}
	}
	if same > len(sums[0].Sum)/100 {
		t.Errorf("another seed gives %d of %d values alike", same, len(sums[0].Sum))
	}
}

func TestTuneTakesTheExponentOfAProfile(t *testing.T) {
	l := layerShape{hidden: 512, ffn: 256, experts: 5, gate: quant.Q4K, up: quant.Q4K, down: quant.Q4K}
	s, err := experts.Synthetic(experts.SyntheticShape{Hidden: 512, FFN: 256, Experts: 5, Format: quant.Q4K}, 7)
	if err != nil {
		t.Fatal(err)
	}
	b := batch(t, 0, l, 9, 3, 1)
	tuned, p, err := s.Tune(context.Background(), b)
	if err != nil {
		t.Fatal(err)
	}
	var got, want moe.Partials
	if err := experts.NewLocal(s).Forward(context.Background(), b, &want); err != nil {
		t.Fatal(err)
	}
	if err := experts.NewLocal(tuned).Forward(context.Background(), b, &got); err != nil {
		t.Fatal(err)
	}
	// Exponents differ by a shift, and each of three picks is rounded by up to a half.
	shift := ref.DefaultExponent - p.Exponents[0]
	for i, v := range want.Sum {
		if d := v - got.Sum[i]<<shift; shift < 1 || d > 2<<shift || d < -2<<shift {
			t.Fatalf("value %d is %d at exponent %d and %d at 20", i, got.Sum[i], p.Exponents[0], v)
		}
	}
}

func TestSyntheticRefusesShapes(t *testing.T) {
	for _, s := range []experts.SyntheticShape{
		{Hidden: 256, FFN: 256, Experts: 0, Format: quant.Q4K},
		{Hidden: 0, FFN: 256, Experts: 1, Format: quant.Q4K},
		{Hidden: 256, FFN: 0, Experts: 1, Format: quant.Q4K},
		{Hidden: 255, FFN: 256, Experts: 1, Format: quant.Q4K},
		{Hidden: 256, FFN: 100, Experts: 1, Format: quant.Q4K},
		{Hidden: 256, FFN: 256, Experts: 1, Format: 99},
	} {
		if _, err := experts.Synthetic(s, 1); err == nil {
			t.Errorf("%+v was taken", s)
		}
	}
}
