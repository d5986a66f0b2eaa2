package kerneltest

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// model is an executor written out step by step, so that each step can be replaced by a wrong one.
// What is nil is right.
type model struct {
	layer *ref.Layer

	dot     func(m *ref.Matrix, o int, x moe.Row) float32
	check   func(x moe.Row) moe.Status
	hidden  func(g, u float32) float32
	add     func(sum []int64, y []float32, w float32, exponent int) moe.Status
	combine func(a, b moe.Status) moe.Status
	picks   func(expert []uint16, weight []float32) ([]uint16, []float32)
}

func (m *model) fill() {
	if m.dot == nil {
		m.dot = (*ref.Matrix).Dot
	}
	if m.check == nil {
		m.check = func(x moe.Row) moe.Status { st, _ := ref.CheckRow(x); return st }
	}
	if m.hidden == nil {
		m.hidden = gated
	}
	if m.add == nil {
		m.add = ref.AddPick
	}
	if m.combine == nil {
		m.combine = func(a, b moe.Status) moe.Status { return max(a, b) }
	}
	if m.picks == nil {
		m.picks = func(expert []uint16, weight []float32) ([]uint16, []float32) { return expert, weight }
	}
}

func finite(x float32) bool { return !math.IsNaN(float64(x)) && !math.IsInf(float64(x), 0) }

func gated(g, u float32) float32 {
	if !finite(g) || !finite(u) {
		return nan
	}
	return float32(ref.Silu(g) * u)
}

func (m *model) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	m.fill()
	if err := checkBatch(m.layer, b); err != nil {
		return err
	}
	out.Reset(b.Rows, b.Hidden)
	for r := range b.Rows {
		expert, weight := m.picks(b.Picks(r))
		status, sum := moe.OK, make([]int64, b.Hidden)
		for i, n := range expert {
			y, st := m.expert(m.layer.Experts[n], b.Row(r))
			if st == moe.OK {
				st = m.add(sum, y, weight[i], m.layer.Exponent)
			}
			status = m.combine(status, st)
		}
		if status == moe.OK {
			copy(out.Row(r), sum)
		}
		out.Fault(r, status)
	}
	return nil
}

func (m *model) expert(e *ref.Expert, x moe.Row) ([]float32, moe.Status) {
	if st := m.check(x); st != moe.OK {
		return nil, st
	}
	h := make([]float32, e.Gate.Out)
	for o := range h {
		h[o] = m.hidden(m.dot(&e.Gate, o, x), m.dot(&e.Up, o, x))
	}
	row := newRow(ref.HiddenFormat(e.Down.Format), len(h))
	if st, _ := ref.QuantizeRow(row, h); st != moe.OK {
		return nil, st
	}
	y := make([]float32, e.Down.Out)
	for o := range y {
		if y[o] = m.dot(&e.Down, o, row); !finite(y[o]) {
			return nil, moe.NonFinite
		}
	}
	return y, moe.OK
}

// built returns a backend of models.
func built(m model) Backend {
	m.fill()
	return Backend{
		Layer: func(_ testing.TB, l *ref.Layer) moe.Experts { c := m; c.layer = l; return &c },
		MatMul: func(_ testing.TB, w *ref.Matrix) func([]float32, []moe.Row) {
			return func(dst []float32, x []moe.Row) {
				for r := range x {
					for o := range w.Out {
						dst[r*w.Out+o] = m.dot(w, o, x[r])
					}
				}
			}
		},
	}
}

// The integer dot products, with a place for each mistake.
type mistakes struct {
	term  func(acc, d, da float32, i int32) float32 // what a block adds, without minimums
	sum   func(q []int8, a []int8) int32            // 32 products
	value func(f quant.Format, q int8) int8
	scale func(f quant.Format, block []byte, d float32) float32
	zeros bool // blocks of MXFP4 below 80 are no zeros
}

func (k mistakes) dot(m *ref.Matrix, o int, x moe.Row) float32 {
	if x.Format == moe.RowF32 {
		return m.Dot(o, x)
	}
	_, size := m.Format.Block()
	w := m.Data[o*len(m.Data)/m.Out:]
	var acc float32
	for n, da := range x.Scales {
		block := w[n*size : (n+1)*size]
		if m.Format.IsBlock32() {
			acc = k.block32(acc, m.Format, block, x.Q[32*n:32*n+32], da)
		} else {
			acc = k.blockK(acc, m.Format, block, x.Q[256*n:256*n+256], da)
		}
	}
	return acc
}

func (k mistakes) block32(acc float32, f quant.Format, block []byte, a []int8, da float32) float32 {
	var b quant.Block32
	if k.zeros && f == quant.MXFP4 && block[0] > 0 && block[0] < 80 {
		quant.Decode32(&b, f, append([]byte{80}, block[1:]...))
		b.D = math.Float32frombits(uint32(block[0]-1) << 23)
	} else {
		quant.Decode32(&b, f, block)
	}
	if k.value != nil {
		for i, q := range b.Q {
			b.Q[i] = k.value(f, q)
		}
	}
	if k.scale != nil {
		b.D = k.scale(f, block, b.D)
	}
	return k.added(acc, b.D, da, k.products(b.Q[:], a))
}

func (k mistakes) blockK(acc float32, f quant.Format, block []byte, a []int8, da float32) float32 {
	var b quant.BlockK
	quant.DecodeK(&b, f, block)
	if k.scale != nil {
		b.D = k.scale(f, block, b.D)
	}
	var i, mins int32
	for j := range 8 {
		lo, hi := 32*j, 32*j+32
		if b.Scale[2*j] == b.Scale[2*j+1] {
			i += int32(b.Scale[2*j]) * k.products(b.Q[lo:hi], a[lo:hi])
		} else {
			i += int32(b.Scale[2*j])*k.products(b.Q[lo:lo+16], a[lo:lo+16]) +
				int32(b.Scale[2*j+1])*k.products(b.Q[lo+16:hi], a[lo+16:hi])
		}
		for _, v := range a[lo:hi] {
			mins += int32(b.Min[j]) * int32(v)
		}
	}
	if f == quant.Q6K {
		return k.added(acc, b.D, da, i)
	}
	t := float32(float32(b.D*da) * float32(i))
	return acc + (t - float32(float32(b.DMin*da)*float32(mins)))
}

func (k mistakes) products(q, a []int8) int32 {
	if k.sum != nil {
		return k.sum(q, a)
	}
	var sum int32
	for i := range q {
		sum += int32(q[i]) * int32(a[i])
	}
	return sum
}

func (k mistakes) added(acc, d, da float32, i int32) float32 {
	if k.term != nil {
		return k.term(acc, d, da, i)
	}
	return acc + float32(float32(d*da)*float32(i))
}

// wrapped is an executor that does something else before or after the right one.
type wrapped struct {
	moe.Experts
	before func(b *moe.Batch)
	after  func(b *moe.Batch, out *moe.Partials)
}

func (w *wrapped) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	if w.before != nil {
		w.before(b)
	}
	err := w.Experts.Forward(ctx, b, out)
	if err == nil && w.after != nil {
		w.after(b, out)
	}
	return err
}

// around is the right backend with something before and after each batch.
func around(before func(b *moe.Batch), after func(b *moe.Batch, out *moe.Partials)) Backend {
	b := good()
	b.Layer = func(t testing.TB, l *ref.Layer) moe.Experts {
		return &wrapped{good().Layer(t, l), before, after}
	}
	return b
}

func before(f func(b *moe.Batch)) Backend { return around(f, nil) }

func after(f func(b *moe.Batch, out *moe.Partials)) Backend { return around(nil, f) }

// multiplying is the right backend with another product.
func multiplying(mul func(right func([]float32, []moe.Row), m *ref.Matrix, dst []float32, x []moe.Row)) Backend {
	b := good()
	b.MatMul = func(t testing.TB, m *ref.Matrix) func([]float32, []moe.Row) {
		right := good().MatMul(t, m)
		return func(dst []float32, x []moe.Row) { mul(right, m, dst, x) }
	}
	return b
}

// findings returns the errors of those steps of a check whose names begin with prefix, up to the
// first.
func findings(t *testing.T, b Backend, name, prefix string) error {
	t.Helper()
	at := slices.IndexFunc(checks, func(c check) bool { return c.name == name })
	if at < 0 {
		t.Fatalf("no check %q", name)
	}
	ran := false
	for _, st := range checks[at].steps(b, true) {
		if !strings.HasPrefix(st.name, prefix) {
			continue
		}
		ran = true
		err := st.run(t, seedOf(name, st.name))
		var why skip
		if errors.As(err, &why) {
			t.Skip(why)
		}
		if err != nil {
			return err
		}
	}
	if !ran {
		t.Fatalf("no step of %s begins with %q", name, prefix)
	}
	return nil
}

// TestWrongBackendsAreFound plants one mistake at a time, and asks those checks that are there for
// it. The same model without a mistake passes them.
func TestWrongBackendsAreFound(t *testing.T) {
	for _, w := range slices.Concat(arithmeticMistakes(), stepMistakes(), batchMistakes(), bufferMistakes(), callMistakes(),
		inputMistakes(), productMistakes()) {
		t.Run(w.name, func(t *testing.T) {
			for _, c := range w.checks {
				name, prefix, _ := strings.Cut(c, "/")
				err := findings(t, w.b, name, prefix)
				if err == nil {
					t.Errorf("%s found nothing", c)
				} else if strings.Contains(err.Error(), "BUG") {
					t.Errorf("%s: %v", c, err)
				} else {
					t.Logf("%s: %v", c, err)
				}
			}
		})
	}
}

func TestModelWithoutMistakePasses(t *testing.T) {
	for name, b := range map[string]Backend{"model": built(model{}), "dot": built(model{dot: mistakes{}.dot}),
		"around": around(nil, nil)} {
		for _, c := range []string{"golden", "extreme", "faults"} {
			if err := findings(t, b, c, ""); err != nil {
				t.Errorf("%s, %s: %v", name, c, err)
			}
		}
	}
}

type wrongBackend struct {
	name   string
	checks []string // check, or check/beginning of a step
	b      Backend
}
