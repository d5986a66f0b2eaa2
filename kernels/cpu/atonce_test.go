package cpu

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

// TestForwardAtOnce computes batches from several goroutines, some of which give up, while another makes
// and drops layers.
func TestForwardAtOnce(t *testing.T) {
	v := variants()
	b := New(v[len(v)-1], 3)
	defer b.Close()
	l, err := checkLayer(quant.Q4K, 1)
	if err != nil {
		t.Fatal(err)
	}
	batch, err := checkBatch(l)
	if err != nil {
		t.Fatal(err)
	}
	var want moe.Partials
	if err := l.Forward(context.Background(), batch, &want); err != nil {
		t.Fatal(err)
	}
	ly, err := b.NewLayer(NewArena(), From(l))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			var got moe.Partials
			for n := range 10 {
				ctx, cancel := context.WithCancel(context.Background())
				if (i+n)%4 == 0 {
					cancel()
					if err := ly.Forward(ctx, batch, &got); !errors.Is(err, context.Canceled) {
						t.Errorf("cancelled: %v", err)
					}
					continue
				}
				if err := ly.Forward(ctx, batch, &got); err != nil || !slices.Equal(got.Sum, want.Sum) {
					t.Errorf("%d, %d: %v, or other sums than alone", i, n, err)
				}
				cancel()
			}
		})
	}
	wg.Go(func() {
		for range 5 {
			if _, err := b.NewLayer(NewArena(), From(l)); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
}
