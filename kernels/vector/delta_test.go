package vector

import (
	"fmt"
	"slices"
	"testing"
)

// delta is what Delta is to do, a column at a time.
func delta(state []float32, stride int, t *Token) {
	for b := range t.V {
		sum := float32(0)
		for a, k := range t.K {
			state[a*stride+b] = float32(state[a*stride+b] * t.Decay)
			sum += float32(state[a*stride+b] * k)
		}
		d := float32(t.Beta * (t.V[b] - sum))
		sum = 0
		for a, k := range t.K {
			state[a*stride+b] += float32(k * d)
			sum += float32(state[a*stride+b] * t.Q[a])
		}
		t.Out[b] = sum
	}
}

func TestDeltaGivesTheBitsOfItsDefinition(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		r, _ := newRand(t)
		regions := make([]*region, 5)
		for i := range regions {
			regions[i] = newRegion(t, 200<<10)
		}
		for turn, n := range lengths[:len(lengths)-1] {
			for kind := range kinds {
				a := randomArgs(n, (turn+kind)%9, kind, r)
				want := &Token{K: a.k, Q: a.q, V: a.y, Out: slices.Clone(a.x), Decay: a.s, Beta: 0.7}
				wantState := slices.Clone(a.m)
				delta(wantState, a.stride, want)
				list := [][]float32{a.k, a.q, a.y, a.x, a.m}
				for i, v := range list {
					list[i] = place[float32](regions[i], len(v), (turn+kind)%places)
					copy(list[i], v)
				}
				got := &Token{K: list[0], Q: list[1], V: list[2], Out: list[3], Decay: a.s, Beta: 0.7}
				o.Delta(list[4], a.stride, got)
				for i, pair := range [][2][]float32{{got.Out, want.Out}, {list[4], wantState}, {got.K, a.k}, {got.Q, a.q}, {got.V, a.y}} {
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

// TestDeltaOfColumnsIsThatOfTheState runs tokens over a whole state, and over its columns one block after
// the other.
func TestDeltaOfColumnsIsThatOfTheState(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		r, _ := newRand(t)
		const s, tokens = 128, 7
		whole := make([]float32, s*s)
		fill(whole, ordinary, r)
		for _, block := range []int{32, 64, 20} {
			whole, parts := slices.Clone(whole), slices.Clone(whole)
			list := make([]Token, tokens)
			for i := range list {
				v := make([]float32, 5*s)
				fill(v, ordinary, r)
				o.Scale(v[:2*s], 0.03)
				list[i] = Token{K: v[:s], Q: v[s : 2*s], V: v[2*s : 3*s], Out: v[3*s : 4*s], Decay: 0.9, Beta: 0.6}
				o.Delta(whole, s, &list[i])
			}
			for lo := 0; lo < s; lo += block {
				hi := min(lo+block, s)
				for i := range list {
					part := list[i]
					part.V, part.Out = part.V[lo:hi], make([]float32, hi-lo)
					o.Delta(parts[lo:], s, &part)
					if d := unlike(part.Out, list[i].Out[lo:hi]); d != "" {
						t.Fatalf("token %d, columns from %d, %d at a time: %s", i, lo, block, d)
					}
				}
			}
			if d := unlike(parts, whole); d != "" {
				t.Errorf("state, %d columns at a time: %s", block, d)
			}
		}
	})
}

func TestDeltaRefusesOtherLengths(t *testing.T) {
	eachVariant(t, func(t *testing.T, o *Ops) {
		v := make([]float32, 64)
		for name, f := range map[string]func(){
			"state":  func() { o.Delta(v[:63], 32, &Token{K: v[:2], Q: v[:2], V: v[:32], Out: v[:32]}) },
			"stride": func() { o.Delta(v, -1, &Token{K: v[:2], Q: v[:2], V: v[:32], Out: v[:32]}) },
			"q":      func() { o.Delta(v, 32, &Token{K: v[:2], Q: v[:1], V: v[:32], Out: v[:32]}) },
			"out":    func() { o.Delta(v, 32, &Token{K: v[:2], Q: v[:2], V: v[:32], Out: v[:31]}) },
		} {
			if !panics(f) {
				t.Errorf("%s did not panic", name)
			}
		}
		token := &Token{K: v[:2], Q: v[:2], V: make([]float32, 32), Out: make([]float32, 32)}
		if allocs := testing.AllocsPerRun(5, func() { o.Delta(v, 32, token) }); allocs != 0 {
			t.Errorf("%v allocations", allocs)
		}
	})
}

// BenchmarkDelta has one token for each of many states of 64 KiB, or 32 tokens for each. In blocks, a
// state is four arrays of 32 columns.
func BenchmarkDelta(b *testing.B) {
	r, _ := newRand(b)
	const s = 128
	v := make([]float32, 4*s)
	fill(v, ordinary, r)
	o := best()
	o.Scale(v[:2*s], 0.03)
	token := Token{K: v[:s], Q: v[s : 2*s], V: v[2*s : 3*s], Out: v[3*s : 4*s], Decay: 1, Beta: 0.6}
	blocks := func(state []float32, tokens int) {
		for lo := 0; lo < s; lo += 32 {
			part := token
			part.V, part.Out = part.V[lo:lo+32], part.Out[lo:lo+32]
			for range tokens {
				o.Delta(state[lo*s:], 32, &part)
			}
		}
	}
	all := make([]float32, 1024*s*s)
	fill(all, ordinary, r)
	for _, states := range []int{1, 1024} {
		for name, f := range map[string]func(state []float32){
			"whole":               func(state []float32) { o.Delta(state, s, &token) },
			"blocks":              func(state []float32) { blocks(state, 1) },
			"blocks of 32 tokens": func(state []float32) { blocks(state, 32) },
		} {
			b.Run(fmt.Sprintf("%d/%s", states, name), func(b *testing.B) {
				at := 0
				for b.Loop() {
					at = (at + 1) % states
					f(all[at*s*s:][:s*s])
				}
			})
		}
	}
}
