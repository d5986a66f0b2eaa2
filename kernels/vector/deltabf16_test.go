package vector

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"kvasir/kernels/quant"
)

// TestDeltaBF16IsDeltaAndRounding has states with every kind of value, also after they are rounded.
func TestDeltaBF16IsDeltaAndRounding(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		r, _ := newRand(t)
		regions := make([]*region, 5)
		for i := range regions {
			regions[i] = newRegion(t, 200<<10)
		}
		for turn, n := range lengths[:len(lengths)-1] {
			for kind := range kinds {
				a := randomArgs(n, (turn+kind)%9, kind, r)
				where := (turn + kind) % places
				if kind == extreme && turn%8 == 0 {
					a.s = math.Float32frombits(0x7fffffff) // as NaNs go: it must not round to a zero
				}
				state := place[byte](regions[4], 2*len(a.m), where)
				for i, v := range a.m {
					binary.LittleEndian.PutUint16(state[2*i:], nearestBF16(v))
				}
				quant.Dequantize(a.m, quant.BF16, state)
				want := &Token{K: a.k, Q: a.q, V: a.y, Out: slices.Clone(a.x), Decay: a.s, Beta: 0.7}
				delta(a.m, a.stride, want)
				for i, v := range a.m {
					a.m[i] = quant.BF16ToF32(nearestBF16(v))
				}
				list := [][]float32{a.k, a.q, a.y, a.x}
				for i, v := range list {
					list[i] = place[float32](regions[i], len(v), where)
					copy(list[i], v)
				}
				got := &Token{K: list[0], Q: list[1], V: list[2], Out: list[3], Decay: a.s, Beta: 0.7}
				o.DeltaBF16(state, a.stride, got)
				back := make([]float32, len(a.m))
				quant.Dequantize(back, quant.BF16, state)
				for i, pair := range [][2][]float32{{got.Out, want.Out}, {back, a.m}, {got.K, a.k}, {got.Q, a.q}, {got.V, a.y}} {
					if d := unlike(pair[0], pair[1]); d != "" {
						t.Errorf("%d %s columns, %d rows, slice %d: %s", n, kindNames[kind], len(a.k), i, d)
					}
				}
				for i, g := range regions {
					if !g.intact() {
						t.Fatalf("%d %s columns, %d rows: wrote outside slice %d", n, kindNames[kind], len(a.k), i)
					}
				}
			}
		}
	})
}

// TestDeltaBF16RoundsEveryUpperHalf makes states of each pattern of the upper 16 bits with the lower ones
// at their ends and where a bfloat16 rounds: one row, on which the new value is all that is left.
func TestDeltaBF16RoundsEveryUpperHalf(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		v, state := make([]float32, 1<<16), make([]byte, 2<<16)
		got, want := make([]float32, len(v)), make([]float32, len(v))
		for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
			for i := range v {
				v[i] = math.Float32frombits(uint32(i)<<16 | low)
				want[i] = quant.BF16ToF32(nearestBF16(v[i]))
				binary.LittleEndian.PutUint16(state[2*i:], 0x8000) // so that -0 comes out as such
			}
			one := []float32{1}
			o.DeltaBF16(state, len(v), &Token{K: one, Q: one, V: v, Out: got, Decay: 1, Beta: 1})
			quant.Dequantize(got, quant.BF16, state)
			if d := unlike(got, want); d != "" {
				t.Errorf("lower bits %#x: %s", low, d)
			}
		}
	})
}

func TestDeltaBF16RefusesOtherLengths(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		v, state := make([]float32, 64), make([]byte, 128)
		token := &Token{K: v[:2], Q: v[:2], V: v[:32], Out: make([]float32, 32)}
		if !panics(func() { o.DeltaBF16(state[:127], 32, token) }) {
			t.Error("a state that is too short did not panic")
		}
		if allocs := testing.AllocsPerRun(5, func() { o.DeltaBF16(state, 32, token) }); allocs != 0 {
			t.Errorf("%v allocations", allocs)
		}
	})
}
