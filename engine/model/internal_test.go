package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"kvasir/kernels/cpu"
	"kvasir/kernels/variant"
	"kvasir/kernels/vector"
)

// attentionWork is the last rows of a sequence of so many positions, whose keys and values are stored, in
// one micro-batch of a model of one layer with attention.
func attentionWork(t *testing.T, kv KVFormat, v variant.Variant, positions, rows int, r *rand.Rand) *work {
	t.Helper()
	c := Config{Arch: Qwen3MoE, Layers: 1, Heads: 6, KVHeads: 2, HeadDim: 32, Recurrent: []bool{false}}
	m := &Model{Config: c, layout: newLayout(&c, kv, StateF32), ops: vector.For(v), rope: &rope{}}
	m.backend = cpu.New(v, 2)
	t.Cleanup(m.backend.Close)
	seq, err := m.NewMemory(0).NewSequence()
	if err != nil {
		t.Fatal(err)
	}
	if err := seq.reserve(positions); err != nil {
		t.Fatal(err)
	}
	w := newWork(m, 2)
	s := &Step{Seq: seq}
	random := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	w.k, w.v = random(positions*c.KVHeads*c.HeadDim), random(positions*c.KVHeads*c.HeadDim)
	for pos := range positions {
		w.rows = append(w.rows, row{step: s, pos: pos})
	}
	w.storeKV(run{step: s, hi: positions})
	w.rows = w.rows[positions-rows:]
	w.runs = []run{{step: s, hi: rows}}
	w.q, w.o = random(rows*c.Heads*c.HeadDim), random(rows*c.Heads*c.HeadDim)
	return w
}

// kept returns the keys, or the values, of a position and a head as they are stored.
func (w *work) kept(pos, head int, values bool) []float32 {
	l := &w.m.layout
	at := l.keys(0, head)
	if values {
		at += l.head
	}
	at += pos % PagePositions * (l.head / PagePositions)
	x := make([]float32, w.m.HeadDim)
	w.load(x, w.rows[0].step.Seq.pages[pos/PagePositions].Bytes, at, 1)
	return x
}

// attendSimply is what attend is to do, in float64, for one query head of one row.
func (w *work) attendSimply(i, h int) []float64 {
	m := w.m
	q := w.q[(i*m.Heads+h)*m.HeadDim:][:m.HeadDim]
	kv := h / (m.Heads / m.KVHeads)
	out, total := make([]float64, m.HeadDim), 0.0
	for pos := range w.rows[i].pos + 1 {
		dot := 0.0
		for d, k := range w.kept(pos, kv, false) {
			dot += float64(q[d]) * float64(k)
		}
		e := math.Exp(dot / math.Sqrt(float64(m.HeadDim)))
		total += e
		for d, v := range w.kept(pos, kv, true) {
			out[d] += e * float64(v)
		}
	}
	for d := range out {
		out[d] /= total
	}
	return out
}

// TestAttentionIsSoftmaxOverAllPositions stands at the borders of pages and of blocks of positions, with
// one row and with so many that they make several tiles.
func TestAttentionIsSoftmaxOverAllPositions(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for _, v := range variant.Available() {
		for _, kv := range []KVFormat{KVF16, KVQ8, KVF32} {
			for _, tt := range []struct{ positions, rows int }{
				{1, 1}, {31, 31}, {32, 1}, {33, 2}, {64, 33}, {255, 1}, {256, 2}, {257, 3}, {289, 40}, {512, 1}, {513, 300},
			} {
				t.Run(fmt.Sprintf("%s/%s/%d rows of %d", v, kv, tt.rows, tt.positions), func(t *testing.T) {
					w := attentionWork(t, kv, v, tt.positions, tt.rows, r)
					w.attend(w.m.HeadDim)
					worst := 0.0
					for _, i := range []int{0, tt.rows / 2, tt.rows - 1} {
						for h := range w.m.Heads {
							got := w.o[(i*w.m.Heads+h)*w.m.HeadDim:]
							for d, x := range w.attendSimply(i, h) {
								worst = max(worst, math.Abs(x-float64(got[d])))
							}
						}
					}
					if !(worst < 1e-5) {
						t.Errorf("seed %#x: off by %g", seed, worst)
					}
				})
			}
		}
	}
}

// TestMemoryAsksTheSystemForNoMoreThanItsBudget takes and drops blocks that are large enough to be given
// back one by one.
func TestMemoryAsksTheSystemForNoMoreThanItsBudget(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for _, size := range []struct{ page, state int }{{1 << 20, 3 << 20}, {1<<19 + 64, 1<<19 + 128}, {5 << 20, 0}} {
		m := &Model{layout: layout{pageBytes: size.page, stateBytes: size.state}}
		mem := m.NewMemory(16 << 20)
		kinds := []*blocks{&mem.pages, &mem.states}
		var held [2][]*block
		refused := 0
		for turn := range 3000 {
			kind := r.IntN(2)
			if lot := held[kind]; len(lot) > 0 && r.IntN(100) < 30+turn/50%40 {
				i := r.IntN(len(lot))
				mem.drop(kinds[kind], lot[i])
				lot[i] = lot[len(lot)-1]
				held[kind] = lot[:len(lot)-1]
			} else if x, err := mem.take(kinds[kind], true); err == nil {
				held[kind] = append(held[kind], x)
			} else {
				refused++
			}
			used := int64(len(held[0])*size.page + len(held[1])*size.state)
			if mapped := mem.pages.mapped + mem.states.mapped; mem.used != used || mapped < used || mapped > mem.budget {
				t.Fatalf("seed %#x, turn %d: %d bytes are used, counted %d, and %d asked for, of %d", seed, turn, used, mem.used, mapped, mem.budget)
			}
		}
		if refused == 0 {
			t.Errorf("seed %#x: the memory was never full", seed)
		}
	}
}

// TestPagesWithoutKeysAreNotKept has a model of DeltaNet layers alone: its pages take no memory, so no
// budget would ever let prefixes go.
func TestPagesWithoutKeysAreNotKept(t *testing.T) {
	m := &Model{layout: layout{stateBytes: 1 << 10}}
	mem := m.NewMemory(1 << 20)
	for i := range 100 {
		tokens := make([]int32, PagePositions+1)
		tokens[0] = int32(i)
		s, err := mem.Resume(tokens)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.reserve(len(tokens)); err != nil {
			t.Fatal(err)
		}
		s.took(tokens)
		s.Free()
	}
	if s := mem.Stats(); len(mem.prefixes.root.children) != 0 || s.Used != 0 || s.Sequences != 0 {
		t.Errorf("%d prefixes are kept, and %+v", len(mem.prefixes.root.children), s)
	}
}
