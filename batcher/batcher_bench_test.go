package batcher

import (
	"math/rand/v2"
	"testing"

	"kvasir/internal/moe"
)

// The own cost of a lane and of a dispatcher, before executors that compute nothing: 512 rows of a large
// model. Answers of 8 bytes a value are moved, so a part of it is the speed of memory.

func benchmarkForward(b *testing.B, x moe.Experts) {
	batch := randomBatch(rand.New(rand.NewPCG(1, 1)), moe.Shape{Hidden: 3072, Format: moe.RowQ8K}, 512, 8, 256)
	out, err := moe.NewPartials(batch.Rows, batch.Hidden)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := x.Forward(b.Context(), batch, out); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(batch.Rows), "ns/row")
}

func BenchmarkLane(b *testing.B) {
	lane := newLane(b, &constant{}, Limits{}, 1)
	defer lane.Close()
	benchmarkForward(b, lane)
}

func BenchmarkDispatcherWhole(b *testing.B) {
	d := NewDispatcher(Options{})
	d.Join("all", &constant{}, mustAll(1, 256))
	benchmarkForward(b, d)
}

func BenchmarkDispatcherHalves(b *testing.B) {
	d := NewDispatcher(Options{})
	d.Join("low", &constant{}, holding(0, 128, 0))
	d.Join("high", &constant{}, holding(128, 256, 0))
	benchmarkForward(b, d)
}

// BenchmarkExecutor is what the executor alone costs: it clears the answer.
func BenchmarkExecutor(b *testing.B) { benchmarkForward(b, &constant{}) }
