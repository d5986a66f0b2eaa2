package matmul

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/kerneltest"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// TestTilesTouchOnlyWhatIsTheirs puts panels, records and results between pages that may not be touched.
func TestTilesTouchOnlyWhatIsTheirs(t *testing.T) {
	for _, k := range kernels(t) {
		for _, f := range formats {
			t.Run(fmt.Sprintf("%s/%s", k.Variant(), f), func(t *testing.T) {
				sizes := []int{256, 512}
				if f.IsBlock32() {
					sizes = []int{32, 224, 288}
				}
				for _, in := range sizes {
					for _, rows := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 65} {
						testGuarded(t, k, f, in, 17, rows, kerneltest.Guarded)
						testGuarded(t, k, f, in, 17, rows, kerneltest.GuardedLow)
					}
				}
			})
		}
	}
}

func testGuarded(t *testing.T, k *Kernel, f quant.Format, in, out, rows int, guarded func(testing.TB, int) []byte) {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(in), uint64(rows)))
	m := randomMatrix(t, rng, f, in, out)
	size, err := PackedBytes(f, in, out)
	if err != nil {
		t.Fatal(err)
	}
	// Pack wants whole lines; here the panels end where the memory does.
	l, _ := layoutOf(f)
	p := Packed{Format: f, In: in, Out: out, layout: l, blocks: in / l.values, data: guarded(t, size)}
	for i := range p.Panels() {
		packPanel(&p, p.panel(i), &m, i*PanelRows)
	}
	x := randomRows(rng, f, rows, in)
	recs := Records{format: x[0].Format, values: in, stride: RecordsBytes(in, 1), data: guarded(t, RecordsBytes(in, rows))}
	var list Rows
	for i := range x {
		recs.Set(i, x[i])
		list.Add(&recs, i)
	}
	got := kerneltest.Values[float32](guarded(t, 4*rows*out))
	k.Mul(NewWork(), &Product{M: &p, Hi: p.Panels(), X: list, Dst: got, Stride: out})
	compare(t, &m, x, got)
}

// compare fails the test unless got is W x, bit for bit.
func compare(t *testing.T, m *ref.Matrix, x []moe.Row, got []float32) {
	t.Helper()
	want := make([]float32, len(got))
	var s ref.Scratch
	m.MatMul(want, x, 0, m.Out, &s)
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s, %d rows of %d: row %d, value %d is %g, want %g",
				m.Format, len(x), m.In, i/m.Out, i%m.Out, got[i], want[i])
		}
	}
}
