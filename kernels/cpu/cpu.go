// Package cpu is the processor as a backend: the experts of a layer as one operation, and the dense
// products of a backbone, with all cores, at the speed of the best instruction set there is, and with the
// bits of kernels/ref.
//
// Weights of integer formats are repacked once, when a layer or matrix is made, into an Arena; the
// bytes that they came from are not needed after that. Weights of float formats stay where they are.
package cpu

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"kvasir/kernels/matmul"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
	"kvasir/kernels/vector"
)

// Backend computes with a fixed number of threads. It is safe for concurrent use: operations take turns,
// and each has all threads.
type Backend struct {
	variant variant.Variant
	kernel  *matmul.Kernel // nil: portable
	ops     *vector.Ops
	team    *team

	mu    sync.Mutex // one operation at a time; before team.mu
	call  call       // memory of a layer's
	dense dense      // memory of a dense product
}

// New returns a backend for a variant with the given number of threads. Close ends it.
func New(v variant.Variant, threads int) *Backend {
	if threads < 1 {
		panic(fmt.Sprintf("BUG: a backend of %d threads", threads))
	}
	b := &Backend{variant: v, kernel: matmul.For(v), ops: vector.For(v)}
	b.team = newTeam(threads, newWorker)
	return b
}

// Close ends the threads. No operation is under way any more, and none follows.
func (b *Backend) Close() { b.team.close() }

// Default returns the backend of this process, made when first asked for: the variant that
// variant.Active chooses, with as many threads as Go uses. It is not closed.
var Default = sync.OnceValues(func() (*Backend, error) {
	c, err := variant.Active()
	if err != nil {
		return nil, err
	}
	return New(c.Variant, runtime.GOMAXPROCS(0)), nil
})

// Variant returns the variant that b computes with.
func (b *Backend) Variant() variant.Variant { return b.variant }

// Threads returns how many threads b computes with.
func (b *Backend) Threads() int { return len(b.team.workers) }

// worker is the memory of one thread.
type worker struct {
	thread  int // which of the team
	matmul  *matmul.Work
	product matmul.Product
	scratch ref.Scratch
	weights []float32 // floatRows rows of weights as floats
	gate    []float32 // rows x hBlock
	up      []float32
	hidden  []float32 // hBlock
	quants  [hBlock]int8
	scales  [8]float32
	out     []float32 // rows x columns of a task
	part    []float32 // products with weights that are not repacked
	x       operand
}

func newWorker() *worker {
	return &worker{
		matmul: matmul.NewWork(), hidden: make([]float32, hBlock),
		gate: make([]float32, rowsAtOnce*hBlock), up: make([]float32, rowsAtOnce*hBlock),
	}
}

// room makes w ready for tasks of up to rows rows of in values with out results each, so that nothing is
// allocated later, whichever task w gets.
func (b *Backend) room(w *worker, rows, in, out int) {
	if b.kernel == nil {
		w.scratch.Grow(rows, in)
	}
	w.x.records.Grow(rows)
	w.x.rows = slices.Grow(w.x.rows[:0], rows)
	w.out = grown(w.out, rows*out)
	w.part = grown(w.part, rows*out)
	w.weights = grown(w.weights, floatRows*in)
}

// grown returns s with length n; its values are stale.
func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
