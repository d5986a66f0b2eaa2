package worker

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"kvasir/engine/experts"
	"kvasir/internal/machine"
	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// The expert that speed is measured on. It is the same for all workers, so that they compare, whatever
// they will compute; who knows the shape of a model can tell from it.
const (
	StandardHidden = 3072 // values a row
	StandardFFN    = 1024 // values between gate and down
)

const (
	measureExperts = 4
	measureRows    = 64 // of a batch, one pick each: some weights are read for a few rows, as in work
	measureLeast   = 250 * time.Millisecond
)

// Measure returns how many expert rows of the standard expert this machine computes a second: the best
// of some batches, within about half a second.
func Measure(ctx context.Context) (rate int, err error) {
	shape := experts.SyntheticShape{Hidden: StandardHidden, FFN: StandardFFN, Experts: measureExperts, Format: quant.Q4K}
	store, err := experts.Synthetic(shape, 1)
	if err != nil {
		return 0, fmt.Errorf("measure speed: %w", err)
	}
	b, err := measureBatch(store.RowFormat(0))
	if err != nil {
		return 0, fmt.Errorf("measure speed: %w", err)
	}
	local, out := experts.NewLocal(store), &moe.Partials{}
	best, begin := time.Duration(0), time.Now()
	for n := 0; n < 2 || time.Since(begin) < measureLeast; n++ {
		from := time.Now()
		if err := local.Forward(ctx, b, out); err != nil {
			return 0, fmt.Errorf("measure speed: %w", err)
		}
		if took := time.Since(from); best == 0 || took < best {
			best = took
		}
	}
	return int(float64(measureRows) / max(best, 1).Seconds()), nil
}

// measureBatch returns a batch of random rows.
func measureBatch(format moe.RowFormat) (*moe.Batch, error) {
	rng := rand.New(rand.NewPCG(1, 2))
	b, err := moe.NewBatch(moe.Shape{Hidden: StandardHidden, Format: format}, measureRows, measureRows)
	if err != nil {
		return nil, err
	}
	x := make([]float32, StandardHidden)
	for r := range measureRows {
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		at := b.Grow([]uint16{uint16(r % measureExperts)}, []float32{1})
		if status, at := ref.QuantizeRow(b.Row(at), x); status != moe.OK {
			return nil, fmt.Errorf("row %d is %v at %d", r, status, at)
		}
	}
	return b, nil
}

// leastMemory is what a worker asks for where a machine has little left, or does not say.
const leastMemory = 256 << 20

// FreeMemory is the memory that a worker takes for slices unless told otherwise: half of what is free.
func FreeMemory() int64 { return max(int64(machine.Read().Available/2), leastMemory) }
