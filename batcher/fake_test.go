package batcher

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"kvasir/internal/moe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is an executor whose arithmetic is a hash of all that a pick is made of: a value that went to the
// wrong row, a weight that was lost or a pick that was counted twice changes the sum.
type fake struct {
	holds  *Set // nil: everything
	narrow bool // answers Wide for one row in four
	// before runs first, and may refuse, wait or note.
	before func(ctx context.Context, b *moe.Batch) error

	mu      sync.Mutex
	batches []int // rows of each
	picks   int   // of batches that were answered, in rows that were not Wide
}

var errBroken = errors.New("broken")

func (f *fake) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	f.mu.Lock()
	f.batches = append(f.batches, b.Rows)
	f.mu.Unlock()
	if f.before != nil {
		if err := f.before(ctx, b); err != nil {
			return err
		}
	}
	if f.holds != nil {
		for _, e := range b.Expert {
			if !f.holds.Has(b.Layer, int(e)) {
				return fmt.Errorf("layer %d, expert %d: %w", b.Layer, e, moe.ErrNotHeld)
			}
		}
	}
	compute(b, out)
	picks := len(b.Expert)
	for r := range b.Rows {
		if h := hashRow(b, r); f.narrow && h%4 == 0 {
			out.Fault(r, moe.Wide)
			out.Status[r] = moe.Wide // also where the truth is worse: an int32 sum does not know
			picks -= int(b.First[r+1] - b.First[r])
		}
	}
	f.mu.Lock()
	f.picks += picks
	f.mu.Unlock()
	return nil
}

func (f *fake) rows() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.batches)
}

// compute is the truth: the answer to b by the hash arithmetic.
func compute(b *moe.Batch, out *moe.Partials) {
	out.Reset(b.Rows, b.Hidden)
	for r := range b.Rows {
		h := hashRow(b, r)
		expert, weight := b.Picks(r)
		sum, status := out.Row(r), moe.OK
		for i, e := range expert {
			p := mix(h ^ uint64(e)<<32 ^ uint64(math.Float32bits(weight[i])))
			if p%61 == 0 {
				status = max(status, moe.Range+moe.Status(p>>32&1))
			}
			for k := range sum {
				sum[k] += int64(mix(p+uint64(k))) >> 25
			}
		}
		out.Fault(r, status)
	}
}

func hashRow(b *moe.Batch, r int) uint64 {
	row, h := b.Row(r), mix(uint64(b.Layer)<<8|uint64(b.Format))
	for _, v := range row.Q {
		h = mix(h + uint64(v))
	}
	for _, v := range append(slices.Clone(row.Scales), row.F...) {
		h = mix(h + uint64(math.Float32bits(v)))
	}
	return h
}

func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// randomBatch returns a batch of rows rows with 1 to topK picks each.
func randomBatch(rng *rand.Rand, shape moe.Shape, rows, topK, experts int) *moe.Batch {
	b, err := moe.NewBatch(shape, rows, rows*topK)
	if err != nil {
		panic(err)
	}
	for range rows {
		expert := make([]uint16, 1+rng.IntN(topK))
		weight := make([]float32, len(expert))
		for i := range expert {
			expert[i], weight[i] = uint16(rng.IntN(experts)), rng.Float32()
		}
		row := b.Row(b.Grow(expert, weight))
		for i := range row.Q {
			row.Q[i] = int8(rng.IntN(255) - 127)
		}
		for i := range row.Scales {
			row.Scales[i] = rng.Float32()
		}
		for i := range row.F {
			row.F[i] = rng.Float32()
		}
	}
	return b
}

func randomShape(rng *rand.Rand, layers int) moe.Shape {
	return moe.Shape{Layer: rng.IntN(layers), Hidden: 1 + rng.IntN(40), Format: moe.RowFormat(rng.IntN(3))}
}

func truth(b *moe.Batch) *moe.Partials {
	var p moe.Partials
	compute(b, &p)
	return &p
}

// same returns what differs between two answers, or nothing.
func same(got, want *moe.Partials) error {
	if got.Rows != want.Rows || got.Hidden != want.Hidden {
		return fmt.Errorf("answer of %d rows of %d, want %d of %d", got.Rows, got.Hidden, want.Rows, want.Hidden)
	}
	for r, s := range want.Status {
		if got.Status[r] != s {
			return fmt.Errorf("row %d is %v, want %v", r, got.Status[r], s)
		}
	}
	for i, v := range want.Sum {
		if got.Sum[i] != v {
			return fmt.Errorf("row %d, value %d is %d, want %d", i/want.Hidden, i%want.Hidden, got.Sum[i], v)
		}
	}
	return nil
}

// poison overwrites what a caller owns again. With the race detector on, a touch by anybody else is found.
func poison(b *moe.Batch, out *moe.Partials) {
	for i := range b.Q {
		b.Q[i] = -1
	}
	for i := range b.Scales {
		b.Scales[i] = -1
	}
	for i := range b.F {
		b.F[i] = -1
	}
	for i := range b.Expert {
		b.Expert[i], b.Weight[i] = 0, -1
	}
	for i := range b.First {
		b.First[i] = -1
	}
	sum, status := out.Sum[:cap(out.Sum)], out.Status[:cap(out.Status)]
	for i := range sum {
		sum[i] = -1
	}
	for i := range status {
		status[i] = moe.Range
	}
}

func seeded(t testing.TB, seed uint64) *rand.Rand {
	t.Helper()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func mustAll(layers, experts int) *Set {
	s, err := All(layers, experts)
	if err != nil {
		panic(err)
	}
	return s
}
