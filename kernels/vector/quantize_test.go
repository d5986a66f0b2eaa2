package vector

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"kvasir/internal/moe"
	"kvasir/kernels/ref"
)

var rowFormats = []moe.RowFormat{moe.RowF32, moe.RowQ8K, moe.RowQ8}

// newRow returns a row of n values with stale contents, in the regions if there are some.
func newRow(f moe.RowFormat, n int, regions []*region, where int) moe.Row {
	row := moe.Row{Format: f}
	switch {
	case f == moe.RowF32 && regions == nil:
		row.F = make([]float32, n)
	case f == moe.RowF32:
		row.F = place[float32](regions[0], n, where)
		place[int8](regions[1], 0, where)
	case regions == nil:
		row.Q, row.Scales = make([]int8, n), make([]float32, f.Scales(n))
	default:
		row.Q, row.Scales = place[int8](regions[0], n, where), place[float32](regions[1], f.Scales(n), where)
	}
	for i := range row.Q {
		row.Q[i] = -128
	}
	return row
}

// unlikeRows quantises x as o and as ref do, and says in what they differ.
func unlikeRows(o *Ops, f moe.RowFormat, x []float32, regions []*region, where int) string {
	got, want := newRow(f, len(x), regions, where), newRow(f, len(x), nil, 0)
	st, i := o.QuantizeRow(got, x)
	wantSt, wantI := ref.QuantizeRow(want, x)
	if st != wantSt || i != wantI {
		return fmt.Sprintf("%v at %d, want %v at %d", st, i, wantSt, wantI)
	}
	if d := unlike(got.Scales, want.Scales); d != "" {
		return "scales: " + d
	}
	if d := unlike(got.F, want.F); d != "" {
		return d
	}
	for i := range got.Q {
		if got.Q[i] != want.Q[i] {
			return fmt.Sprintf("q %d of %d is %d, want %d", i, len(x), got.Q[i], want.Q[i])
		}
	}
	return ""
}

func TestQuantizeRowIsThatOfRef(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		r, seed := newRand(t)
		regions := []*region{newRegion(t, 16<<10), newRegion(t, 16<<10), newRegion(t, 16<<10)}
		for turn, n := range append([]int{72, 288, 2880}, lengths...) {
			for kind := range kinds {
				for _, f := range rowFormats {
					where := (turn + kind) % places
					x := place[float32](regions[2], n, where)
					fill(x, kind, r)
					if d := unlikeRows(o, f, x, regions, where); d != "" {
						t.Errorf("seed %#x, %s, %d %s values: %s", seed, f, n, kindNames[kind], d)
					}
					for i, g := range regions {
						if !g.intact() {
							t.Fatalf("seed %#x, %s, %d %s values: wrote outside array %d", seed, f, n, kindNames[kind], i)
						}
					}
				}
			}
		}
	})
}

// TestQuantizeRowRoundsTiesToEven has rows whose values fall between two integers, and whose largest
// values lie at the limits of a block.
func TestQuantizeRowRoundsTiesToEven(t *testing.T) {
	amaxes := []float32{127, 0x1p40, 0x1p-40, 0x1.fffffep-41, 0x1.fffffep39, 0x1.000002p40, 1, 0x1.fffffep0}
	eachVariant(t, func(t *testing.T, o *Ops) {
		for _, amax := range amaxes {
			x := make([]float32, 256+32)
			for i := range x {
				x[i] = float32(amax * float32(float32(i%255-127)+0.5) / 127)
			}
			x[7], x[263] = amax, -amax
			for _, f := range rowFormats {
				if d := unlikeRows(o, f, x, nil, 0); d != "" {
					t.Errorf("%s, values up to %g: %s", f, amax, d)
				}
			}
		}
	})
}

// TestQuantizeRowFindsTheFirstFault puts faults into every place of a row.
func TestQuantizeRowFindsTheFirstFault(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		x := make([]float32, 299)
		for i := range x {
			x[i] = float32(i)
		}
		for at := range x {
			for _, v := range []float32{inf, nan, 0x1.000002p40, -0x1.000002p40} {
				faulty := slices.Clone(x)
				faulty[at], faulty[(at*7+100)%len(x)] = v, 0x1p41
				for _, f := range rowFormats {
					if d := unlikeRows(o, f, faulty, nil, 0); d != "" {
						t.Fatalf("%s, %g at %d: %s", f, v, at, d)
					}
				}
			}
		}
	})
}

func TestQuantizeRowDoesNotAllocate(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		x := make([]float32, 256+70)
		for _, f := range rowFormats {
			row := newRow(f, len(x), nil, 0)
			if allocs := testing.AllocsPerRun(10, func() { o.QuantizeRow(row, x) }); allocs != 0 {
				t.Errorf("%s: %v allocations", f, allocs)
			}
		}
	})
}

func FuzzQuantizeRow(f *testing.F) {
	f.Add([]byte{0, 0, 128, 63, 0, 0, 0, 191})
	f.Add(binary.LittleEndian.AppendUint32(nil, math.Float32bits(inf)))
	f.Fuzz(func(t *testing.T, data []byte) {
		x := make([]float32, min(len(data)/4, 1024))
		for i := range x {
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
		for _, format := range rowFormats {
			if d := unlikeRows(best(), format, x, nil, 0); d != "" {
				t.Errorf("%s: %s", format, d)
			}
		}
	})
}
