package batcher

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"kvasir/internal/moe"
)

// The batcher's own cost, before executors that cost nothing. Rows are of 3,072 values in Q8K, with 8 picks of
// 256. They are not touched, so what is told is what the batcher does about them; but where a layer is divided,
// answers are added, which is the work that the division makes and costs what memory costs: OwnSum. So
// OwnDivided has rows of one value too, where the sums are next to nothing.
//
// cpu-ns/row is processor time of all threads, and best-ns/row the time of day of the best round: others on the
// machine disturb them less than the mean.

const (
	ownHidden  = 3072
	ownExperts = 256
	ownTopK    = 8
)

func ownBatch(rows, hidden int) *moe.Batch {
	return fullBatch(rand.New(rand.NewPCG(1, uint64(rows))), moe.Shape{Hidden: hidden, Format: moe.RowQ8K}, rows)
}

// fullBatch returns a batch of rows rows with ownTopK different picks each.
func fullBatch(rng *rand.Rand, shape moe.Shape, rows int) *moe.Batch {
	b, err := moe.NewBatch(shape, rows, rows*ownTopK)
	if err != nil {
		panic(err)
	}
	for range rows {
		var expert [ownTopK]uint16
		var weight [ownTopK]float32
		for i, e := range rng.Perm(ownExperts)[:ownTopK] {
			expert[i], weight[i] = uint16(e), rng.Float32()
		}
		row := b.Row(b.Grow(expert[:], weight[:]))
		for i := range row.Q {
			row.Q[i] = int8(rng.IntN(255) - 127)
		}
	}
	return b
}

// free is an executor that costs nothing: its answer is what was there before. As a session does, it takes
// rows that are lent.
type free struct{}

func (free) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	out.Size(b.Rows, b.Hidden)
	return nil
}

func (free) Borrows() {}

// measured runs round until the benchmark has enough, and tells what it took for each of so many rows.
func measured(b *testing.B, rows int, round func()) {
	for range 8 {
		round()
	}
	b.ReportAllocs()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, best := spent(b), time.Duration(math.MaxInt64)
	for b.Loop() {
		start := time.Now()
		round()
		best = min(best, time.Since(start))
	}
	n := float64(b.N) * float64(rows)
	cpu = spent(b) - cpu
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(b.Elapsed())/n, "ns/row")
	b.ReportMetric(float64(cpu)/n, "cpu-ns/row")
	b.ReportMetric(float64(best)/float64(rows), "best-ns/row")
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/n, "allocs/row")
}

func ownForward(b *testing.B, x moe.Experts, hidden int) {
	batch, out := ownBatch(512, hidden), &moe.Partials{}
	measured(b, batch.Rows, func() {
		if err := x.Forward(b.Context(), batch, out); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkOwnLane1x512(b *testing.B) {
	lane := newLane(b, free{}, Limits{}, 1)
	defer lane.Close()
	ownForward(b, lane, ownHidden)
}

// BenchmarkOwnLane64x8 has 64 callers in one lane, each of which calls again as soon as it is answered: what
// comes while a batch is under way goes together. An op is ten calls of each.
func BenchmarkOwnLane64x8(b *testing.B) {
	const callers, rows, calls = 64, 8, 10
	lane := newLane(b, free{}, Limits{}, 1)
	defer lane.Close()
	ctx := b.Context()
	batch := ownBatch(rows, ownHidden)
	outs := make([]moe.Partials, callers)
	measured(b, callers*rows*calls, func() {
		var wg sync.WaitGroup
		for i := range outs {
			wg.Go(func() {
				for range calls {
					if err := lane.Forward(ctx, batch, &outs[i]); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
	})
}

func ownDivided(b *testing.B, n int) {
	d := NewDispatcher(Options{})
	defer d.Close()
	for i := range n {
		lane := newLane(b, free{}, Limits{}, 0)
		defer lane.Close()
		d.Join("worker", lane, holding(ownExperts*i/n, ownExperts*(i+1)/n, 0))
	}
	for _, hidden := range []int{1, ownHidden} {
		b.Run(fmt.Sprintf("hidden=%d", hidden), func(b *testing.B) { ownForward(b, d, hidden) })
	}
}

// The executors are behind lanes, as the sessions of workers are.
func BenchmarkOwnWhole(b *testing.B)    { ownDivided(b, 1) }
func BenchmarkOwnDivided2(b *testing.B) { ownDivided(b, 2) }
func BenchmarkOwnDivided4(b *testing.B) { ownDivided(b, 4) }

// BenchmarkOwnSum is what it takes to add one answer to a row: the sums of 512 rows are larger than the caches.
func BenchmarkOwnSum(b *testing.B) {
	var out, answer moe.Partials
	out.Reset(512, ownHidden)
	answer.Reset(512, ownHidden)
	measured(b, out.Rows, func() {
		for r := range out.Rows {
			out.AddRow(r, &answer, r)
		}
	})
}
