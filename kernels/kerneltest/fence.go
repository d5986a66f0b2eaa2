package kerneltest

import (
	"errors"
	"fmt"
	"runtime/debug"
	"testing"
	"unsafe"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// guardSteps runs batches and products whose every buffer stands beside canaries, or beside pages
// that may not be touched.
func guardSteps(b Backend, short bool) []step {
	places := []struct {
		name string
		place
	}{{"canaries", betweenCanaries}, {"guards after", beforeGuard}, {"guards before", afterGuard}}
	list := triplesOf(b, true)
	if short {
		list = fewTriples(b, 4, 1)
	}
	var steps []step
	for _, p := range places {
		for _, tr := range list {
			steps = append(steps, step{p.name + " " + tr.String(), func(t testing.TB, s *source) error {
				f := newFence(t, p.place)
				return f.watch(func() error { return fencedBatches(f, b, tr, s) })
			}})
		}
		if b.MatMul == nil {
			continue
		}
		for _, format := range b.formats() {
			steps = append(steps, step{p.name + " matmul " + format.String(), func(t testing.TB, s *source) error {
				f := newFence(t, p.place)
				return f.watch(func() error { return fencedProducts(f, b, format, s) })
			}})
		}
	}
	return steps
}

// fence is many regions in the same kind of place.
type fence struct {
	t       testing.TB
	place   place
	names   []string
	regions []*region
}

// newFence returns a fence whose regions are there until the test ends.
func newFence(t testing.TB, p place) *fence {
	f := &fence{t: t, place: p}
	t.Cleanup(func() {
		for _, r := range f.regions {
			if err := r.release(); err != nil {
				t.Error(err)
			}
		}
	})
	return f
}

// bytes returns n bytes, which name tells of.
func (f *fence) bytes(name string, n int) []byte {
	r, err := newRegion(n, f.place)
	if err != nil {
		panic(err)
	}
	f.names, f.regions = append(f.names, name), append(f.regions, r)
	return r.data
}

// check returns an error if a canary was written.
func (f *fence) check() error {
	for i, r := range f.regions {
		if err := r.check(); err != nil {
			return fmt.Errorf("%s: %w", f.names[i], err)
		}
	}
	return nil
}

// freeze makes all regions so far read-only, where they are made of pages.
func (f *fence) freeze() {
	for _, r := range f.regions {
		if err := r.freeze(); err != nil {
			panic(err)
		}
	}
}

// watch runs a function and turns it into an error that it touched a guard. A fault on another
// goroutine ends the process: then its trace has the place.
func (f *fence) watch(run func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }:
			err = f.fault(p.Addr())
		case error:
			if !errors.Is(p, errNoGuards) {
				panic(p)
			}
			err = skip(p.Error())
		default:
			panic(p)
		}
	}()
	if err := run(); err != nil {
		return err
	}
	return f.check()
}

// fault tells which region an address belongs to.
func (f *fence) fault(address uintptr) error {
	for i, r := range f.regions {
		if len(r.pages) == 0 || address-addressOf(r.pages) >= uintptr(len(r.pages)) {
			continue
		}
		offset := int64(address) - int64(addressOf(r.data))
		if offset >= 0 && offset < int64(len(r.data)) {
			return fmt.Errorf("%s: byte %d of %d was written, which is to be read only", f.names[i], offset, len(r.data))
		}
		return fmt.Errorf("%s: byte %d of a buffer of %d bytes was touched", f.names[i], offset, len(r.data))
	}
	return fmt.Errorf("memory at %#x was touched, which is no buffer of this test", address)
}

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// copied returns a copy of values in a region.
func copied[T int8 | int32 | uint16 | float32](f *fence, name string, values []T) []T {
	var zero T
	to := Values[T](f.bytes(name, len(values)*int(unsafe.Sizeof(zero))))
	copy(to, values)
	return to
}

func (f *fence) matrix(name string, m *ref.Matrix) ref.Matrix {
	g := *m
	g.Data = f.bytes(name, len(m.Data))
	copy(g.Data, m.Data)
	return g
}

func (f *fence) layer(l *ref.Layer) *ref.Layer {
	g := *l
	g.Experts = nil
	for i, e := range l.Experts {
		name := fmt.Sprintf("expert %d, ", i)
		g.Experts = append(g.Experts, &ref.Expert{
			Gate: f.matrix(name+"gate", &e.Gate), Up: f.matrix(name+"up", &e.Up), Down: f.matrix(name+"down", &e.Down),
		})
	}
	return &g
}

func (f *fence) batch(b *moe.Batch) *moe.Batch {
	c := *b
	c.Q, c.Scales, c.F = copied(f, "Batch.Q", b.Q), copied(f, "Batch.Scales", b.Scales), copied(f, "Batch.F", b.F)
	c.First, c.Expert = copied(f, "Batch.First", b.First), copied(f, "Batch.Expert", b.Expert)
	c.Weight = copied(f, "Batch.Weight", b.Weight)
	return &c
}

// partials returns empty partials with room for a batch and no more, full of what was there before.
func (f *fence) partials(rows, hidden int) *moe.Partials {
	p := &moe.Partials{
		Sum:    Values[int64](f.bytes("Partials.Sum", 8*rows*hidden)),
		Status: Values[moe.Status](f.bytes("Partials.Status", rows)),
	}
	for i := range p.Sum {
		p.Sum[i] = -0x5555555555
	}
	p.Sum, p.Status = p.Sum[:0], p.Status[:0]
	return p
}

func fencedBatches(f *fence, b Backend, tr triple, s *source) error {
	c := smallScene(tr, 32, 2)
	if ref.RowFormat(tr.gate, tr.up) == moe.RowF32 && tr.gate.IsFloat() && tr.up.IsFloat() {
		c.hidden = 35
	}
	l := c.layer(s)
	x := b.Layer(f.t, f.layer(l)) // after its weights, so that it ends before they go
	for _, rows := range []int{1, 2, 7, 19} {
		plain := crowd{rows: rows, topK: 2, kinds: []rowKind{activations, outliers}}.batch(l, s)
		w, err := want(l, plain)
		if err != nil {
			return err
		}
		batch := f.batch(plain)
		f.freeze()
		out := f.partials(rows, c.hidden)
		if err := x.Forward(f.t.Context(), batch, out); err != nil {
			return err
		}
		if err := errors.Join(samePartials(out, w), sameBatch(batch, plain), f.check()); err != nil {
			return fmt.Errorf("%s, %d rows: %w", c, rows, err)
		}
	}
	return nil
}

func fencedProducts(f *fence, b Backend, format quant.Format, s *source) error {
	for i, out := range []int{1, 5, 16, 17} {
		in := sizeFor(1, format) * (1 + i)
		if in < 32 {
			in = 31 + 3*i
		}
		plain := weights{anyDigits, calm}.matrix(format, in, out, s)
		m := f.matrix("weights", plain)
		mul := b.MatMul(f.t, &m)
		for _, rf := range b.rowFormats(format) {
			for _, rows := range []int{1, 3, 8, 17} {
				x := rowsOf(rf, rows, in, s, activations)
				y := make([]float32, rows*out)
				plain.MatMul(y, x, 0, out, new(ref.Scratch))
				for r := range x {
					x[r].Q, x[r].Scales, x[r].F = copied(f, "Row.Q", x[r].Q), copied(f, "Row.Scales", x[r].Scales), copied(f, "Row.F", x[r].F)
				}
				f.freeze()
				dst := Values[float32](f.bytes("dst", 4*rows*out))
				mul(dst, x)
				if err := errors.Join(sameFloats(dst, y), f.check()); err != nil {
					return fmt.Errorf("%s %dx%d times %d %s rows: %w", format, in, out, rows, rf, err)
				}
			}
		}
	}
	return nil
}
