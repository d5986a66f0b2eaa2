package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// allocationSteps counts what a batch and a product allocate, once the largest has been seen.
func allocationSteps(b Backend, _ bool) []step {
	var steps []step
	for _, tr := range fewTriples(b, 99, 3) {
		steps = append(steps, step{tr.String(), func(t testing.TB, s *source) error {
			c := smallScene(tr, 64, 4)
			l := c.layer(s)
			x := b.Layer(t, l)
			large, small := crowd{rows: 17, topK: 2}.batch(l, s), crowd{rows: 2, topK: 2}.batch(l, s)
			out, ctx := stale(large), context.Background()
			var failed error
			return noAllocations(func() {
				failed = errors.Join(failed, x.Forward(ctx, large, out), x.Forward(ctx, small, out))
			}, &failed)
		}})
	}
	if b.MatMul == nil {
		return steps
	}
	for _, f := range b.formats() {
		steps = append(steps, step{"matmul " + f.String(), func(t testing.TB, s *source) error {
			m := weights{}.matrix(f, 256, 17, s)
			mul := b.MatMul(t, m)
			for _, rf := range b.rowFormats(f) {
				x := rowsOf(rf, 33, 256, s, activations)
				dst := make([]float32, 33*17)
				if err := noAllocations(func() { mul(dst, x); mul(dst, x[:1]) }, new(error)); err != nil {
					return fmt.Errorf("%s rows: %w", rf, err)
				}
			}
			return nil
		}})
	}
	return steps
}

// noAllocations returns an error if run allocates after its first time, or what failed.
func noAllocations(run func(), failed *error) error {
	if raceDetector() {
		return skip("the race detector allocates")
	}
	run()
	if n := testing.AllocsPerRun(5, run); n != 0 {
		return fmt.Errorf("%g allocations in steady state, want none", n)
	}
	return *failed
}

// raceDetector reports whether the test was built with -race.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// flushSteps computes integer formats while subnormal floats are taken for zero.
func flushSteps(b Backend, short bool) []step {
	if b.Threads != nil {
		b = b.Threads(1)
	}
	list := triplesOf(b, false)
	if short {
		list = list[:min(len(list), 3)]
	}
	var steps []step
	for _, tr := range list {
		steps = append(steps, step{tr.String(), func(t testing.TB, s *source) error {
			return flushedBatch(t, b, tr, s)
		}})
	}
	if b.MatMul == nil {
		return steps
	}
	for _, f := range b.formats() {
		if ref.HiddenFormat(f) == moe.RowF32 {
			continue
		}
		steps = append(steps, step{"matmul " + f.String(), func(t testing.TB, s *source) error {
			return flushedProducts(t, b, f, s)
		}})
	}
	return steps
}

const noFlush = skip("this build has no assembly that sets the mode")

func flushedBatch(t testing.TB, b Backend, tr triple, s *source) error {
	kinds := extremes()
	c := smallScene(tr, 64, len(kinds))
	c.weights, c.exponent = kinds, 10
	l := c.layer(s)
	x := b.Layer(t, l)
	rows := crowd{rows: len(kinds) * int(rowKinds), kinds: allKinds(), level: true}
	rows.pick = func(r int) ([]uint16, []float32) { return []uint16{uint16(r / int(rowKinds))}, []float32{0.25} }
	batch := rows.batch(l, s)
	w, err := want(l, batch)
	if err != nil {
		return err
	}
	if !WithFlushToZero(func() { err = agreeWith(x, batch, w) }) {
		return noFlush
	}
	if err != nil {
		return fmt.Errorf("%s, flush to zero: %w", c, err)
	}
	return nil
}

func flushedProducts(t testing.TB, b Backend, f quant.Format, s *source) error {
	for _, w := range extremes() {
		m := w.matrix(f, 256, 17, s)
		mul := b.MatMul(t, m)
		x := rowsOf(ref.HiddenFormat(f), int(rowKinds), 256, s, allKinds()...)
		y, got := make([]float32, len(x)*m.Out), make([]float32, len(x)*m.Out)
		m.MatMul(y, x, 0, m.Out, new(ref.Scratch))
		if !WithFlushToZero(func() { mul(got, x) }) {
			return noFlush
		}
		if err := sameFloats(got, y); err != nil {
			return fmt.Errorf("%s, %s, flush to zero: %w", f, w, err)
		}
	}
	return nil
}

// inputSteps asks for what cannot be run: the error is of the kind that ref gives, and the executor
// goes on.
func inputSteps(b Backend, short bool) []step {
	spoilers := []struct {
		name  string
		spoil func(*moe.Batch)
	}{
		{"no rows", func(b *moe.Batch) { b.Rows = 0 }},
		{"row format", func(b *moe.Batch) { b.Format = 9 }},
		{"rows of another format", func(b *moe.Batch) {
			other := moe.RowF32
			if b.Format == moe.RowF32 {
				other = moe.RowQ8
			}
			*b = *crowdless(moe.Shape{Layer: b.Layer, Hidden: b.Hidden, Format: other})
		}},
		{"rows of another size", func(b *moe.Batch) {
			*b = *crowdless(moe.Shape{Layer: b.Layer, Hidden: 2 * b.Hidden, Format: b.Format})
		}},
		{"values short", func(b *moe.Batch) { b.Q, b.F = b.Q[:len(b.Q)/2], b.F[:len(b.F)/2] }},
		{"scales or floats too many", func(b *moe.Batch) { b.Scales, b.F = make([]float32, 99999), make([]float32, 99999) }},
		{"another layer", func(b *moe.Batch) { b.Layer++ }},
		{"layer below 0", func(b *moe.Batch) { b.Layer = -1 }},
		{"expert not held", func(b *moe.Batch) { b.Expert[1] = 2 }},
		{"no such expert", func(b *moe.Batch) { b.Expert[len(b.Expert)-1] = 4 }},
		{"expert 65535", func(b *moe.Batch) { b.Expert[0] = 65535 }},
		{"offsets fall", func(b *moe.Batch) { b.First[1], b.First[2] = b.First[2], b.First[1] }},
		{"offsets wrap", func(b *moe.Batch) { b.First[1], b.First[2] = -1<<31, 1<<31-1 }},
		{"weights short", func(b *moe.Batch) { b.Weight = b.Weight[:1] }},
		{"value -128", func(b *moe.Batch) {
			if len(b.Q) > 0 {
				b.Q[len(b.Q)-1] = -128
			}
		}},
	}
	list := fewTriples(b, 99, 4)
	if short {
		list = fewTriples(b, 3, 4)
	}
	var steps []step
	for _, tr := range list {
		for _, sp := range spoilers {
			steps = append(steps, step{sp.name + " " + tr.String(), func(t testing.TB, s *source) error {
				return badInput(t, b, tr, sp.spoil, s)
			}})
		}
		steps = append(steps, step{"cancelled " + tr.String(), func(t testing.TB, s *source) error {
			return cancelled(t, b, tr, s)
		}})
	}
	return steps
}

// crowdless returns a batch of one row of zeros that picks expert 0.
func crowdless(shape moe.Shape) *moe.Batch {
	b := emptyBatch(shape, 1)
	b.Grow([]uint16{0}, []float32{1})
	return b
}

func inputLayer(tr triple, s *source) *ref.Layer {
	l := smallScene(tr, 32, 4).layer(s)
	l.Experts[2] = nil
	return l
}

func badInput(t testing.TB, b Backend, tr triple, spoil func(*moe.Batch), s *source) error {
	l := inputLayer(tr, s)
	x := b.Layer(t, l)
	good := crowd{rows: 5, topK: 2}.batch(l, s)
	bad := part(good, numbers(0, 5))
	spoil(bad)
	out := stale(good)
	wanted := l.Forward(context.Background(), bad, stale(good))
	got := x.Forward(context.Background(), bad, out)
	for _, kind := range []error{moe.ErrInvalid, moe.ErrNotHeld} {
		if errors.Is(got, kind) != errors.Is(wanted, kind) {
			return fmt.Errorf("the error is %w, want one like %w", orNone(got), orNone(wanted))
		}
	}
	if (got == nil) != (wanted == nil) {
		return fmt.Errorf("the error is %w, want one like %w", orNone(got), orNone(wanted))
	}
	if err := agree(x, l, good, true); err != nil {
		return fmt.Errorf("after %w: %w", orNone(wanted), err)
	}
	return nil
}

func orNone(err error) error {
	if err == nil {
		return errors.New("none")
	}
	return err
}

// cancelled runs a batch whose context has ended: an executor may do it all the same.
func cancelled(t testing.TB, b Backend, tr triple, s *source) error {
	l := inputLayer(tr, s)
	x := b.Layer(t, l)
	batch := crowd{rows: 5, topK: 2}.batch(l, s)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	out := stale(batch)
	switch err := x.Forward(ctx, batch, out); {
	case err == nil:
		w, err := want(l, batch)
		if err != nil {
			return err
		}
		if err := samePartials(out, w); err != nil {
			return fmt.Errorf("cancelled, and no error: %w", err)
		}
	case !errors.Is(err, context.Canceled):
		return fmt.Errorf("the error of a cancelled call is %w, want context.Canceled", err)
	}
	return agree(x, l, batch, true)
}
