// Package kerneltest is the suite that every backend and variant of the kernels passes: the same
// bits as kernels/ref, for weights, rows and shapes of all kinds, however the work is cut; and no
// byte read or written that is not theirs.
//
// A backend's test says what it is and runs the suite:
//
//	func TestSuite(t *testing.T) { kerneltest.Suite(t, kerneltest.Backend{Name: "cpu", …}) }
//	func FuzzSuite(f *testing.F) { kerneltest.Fuzz(f, kerneltest.Backend{Name: "cpu", …}) }
//
// Each check is a subtest: golden, formats, extreme, ragged, picks, invariance, faults, guards,
// allocations, flush, input, random. With -short they take fewer and smaller shapes, which an
// emulated processor gets through as well.
//
// Bits are compared with ==, never within a tolerance. Only NaN equals every NaN: what is not a
// number has no bits to compare.
//
// For tests of single kernels there are Guarded, which puts a buffer beside memory that may not be
// touched, and WithFlushToZero.
package kerneltest

import (
	"errors"
	"hash/fnv"
	"slices"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// Backend is what the suite knows of a backend. Its functions close what they open with t.Cleanup.
type Backend struct {
	Name string

	// Layer returns an executor for the experts of l. It may read l's weights until the test ends.
	Layer func(t testing.TB, l *ref.Layer) moe.Experts

	// MatMul returns a function that does what m.MatMul does, for all outputs. It is called many
	// times, by one goroutine at a time. It may be nil.
	MatMul func(t testing.TB, m *ref.Matrix) func(dst []float32, x []moe.Row)

	// Formats are those that it computes; nil is all of quant.Supported.
	Formats []quant.Format

	// NoFloatRows: MatMul takes rows of float32 only for weights that are no integers.
	NoFloatRows bool

	// Threads returns the backend computing with n threads. With 1 it computes on the goroutine that
	// calls it: the check of flush-to-zero sets the mode there. Nil where there is no such choice;
	// threads may follow GOMAXPROCS then.
	Threads func(n int) Backend
}

// takes reports whether b computes all the formats.
func (b *Backend) takes(formats ...quant.Format) bool {
	if b.Formats == nil {
		return true
	}
	return !slices.ContainsFunc(formats, func(f quant.Format) bool { return !slices.Contains(b.Formats, f) })
}

// formats returns the formats that b computes.
func (b *Backend) formats() []quant.Format {
	if b.Formats == nil {
		return quant.Supported()
	}
	return b.Formats
}

// rowFormats returns the formats of rows that MatMul takes for weights of format f.
func (b *Backend) rowFormats(f quant.Format) []moe.RowFormat {
	h := ref.HiddenFormat(f)
	if h == moe.RowF32 || b.NoFloatRows {
		return []moe.RowFormat{h}
	}
	return []moe.RowFormat{h, moe.RowF32}
}

// step is a part of a check, which is a subtest. It tells what is wrong by an error, so that the
// tests of this package can see that what is wrong is found.
type step struct {
	name string
	run  func(t testing.TB, s *source) error
}

// check is a named list of steps. short asks for less.
type check struct {
	name  string
	steps func(b Backend, short bool) []step
}

var checks = []check{
	{"golden", goldenSteps},
	{"formats", formatSteps},
	{"extreme", extremeSteps},
	{"ragged", raggedSteps},
	{"picks", pickSteps},
	{"invariance", invarianceSteps},
	{"faults", faultSteps},
	{"guards", guardSteps},
	{"allocations", allocationSteps},
	{"flush", flushSteps},
	{"input", inputSteps},
	{"random", randomSteps},
}

// skip is an error for a step that says why it cannot be run here.
type skip string

func (s skip) Error() string { return string(s) }

// Suite runs all checks as subtests of t.
func Suite(t *testing.T, b Backend) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			for _, st := range c.steps(b, testing.Short()) {
				t.Run(st.name, func(t *testing.T) {
					seed := seedOf(c.name, st.name)
					err := st.run(t, seed)
					var why skip
					if errors.As(err, &why) {
						t.Skip(why)
					}
					if err != nil {
						t.Fatalf("%s, seed %#x: %v", b.Name, uint64(*seedOf(c.name, st.name)), err)
					}
				})
			}
		})
	}
}

// seedOf returns the numbers of a step: the same whichever steps are run.
func seedOf(check, step string) *source {
	h := fnv.New64a()
	_, _ = h.Write([]byte(check + "/" + step)) // never fails
	s := source(h.Sum64())
	return &s
}
