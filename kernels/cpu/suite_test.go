package cpu

import (
	"slices"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/kerneltest"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
)

// backend is a variant, as the suite sees it.
func backend(v variant.Variant, threads int) kerneltest.Backend {
	open := func(t testing.TB) *Backend {
		b := New(v, threads)
		t.Cleanup(b.Close)
		return b
	}
	return kerneltest.Backend{
		Name: v.String(),
		Layer: func(t testing.TB, l *ref.Layer) moe.Experts {
			ly, err := open(t).NewLayer(NewArena(), From(l))
			if err != nil {
				t.Fatal(err)
			}
			return ly
		},
		MatMul: func(t testing.TB, m *ref.Matrix) func(dst []float32, x []moe.Row) {
			b := open(t)
			made := map[moe.RowFormat]*Matrix{}
			return func(dst []float32, x []moe.Row) {
				f := x[0].Format
				if made[f] == nil {
					var err error
					if made[f], err = b.NewMatrix(NewArena(), m, f); err != nil {
						t.Fatal(err)
					}
				}
				b.MatMul(dst, made[f], x)
			}
		},
		Threads: func(n int) kerneltest.Backend { return backend(v, n) },
	}
}

// variants returns every variant there is; with -short the best one alone, so that an emulated processor
// has one variant to get through: the one that needs what it has.
func variants() []variant.Variant {
	list := variant.Available()
	if testing.Short() {
		return list[len(list)-1:]
	}
	return list
}

func TestSuite(t *testing.T) {
	for _, v := range variants() {
		t.Run(v.String(), func(t *testing.T) { kerneltest.Suite(t, backend(v, 3)) })
	}
}

func FuzzSuite(f *testing.F) {
	list := variant.Available()
	kerneltest.Fuzz(f, backend(slices.Max(list), 2))
}
