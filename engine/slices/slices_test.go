package slices

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/engine/synth"
	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
	"kvasir/wire"
	"kvasir/wire/link"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("kvasir/kernels/cpu.(*team).help")) // cpu.Default stays
}

// kind is a layer of a model for tests.
type kind struct {
	format      quant.Format // of gate and up
	down        quant.Format
	hidden, ffn int
	experts     int
	fused       bool // gate and up in one tensor
}

// kinds are layers in the formats that matter: those that are repacked, and one that is not.
var kinds = []kind{
	{quant.Q4K, quant.Q6K, 256, 256, 6, false},
	{quant.Q6K, quant.Q4K, 256, 512, 6, true},
	{quant.Q8_0, quant.Q8_0, 256, 96, 6, false},
	{quant.BF16, quant.BF16, 256, 64, 6, false},
	{quant.MXFP4, quant.Q8_0, 256, 32, 6, true},
}

// write writes a model of these layers, and returns its path.
func write(t testing.TB, list ...kind) string {
	t.Helper()
	w := &gguf.Writer{}
	w.Set("general.name", "test")
	for i, k := range list {
		add := func(role string, f quant.Format, in, out int) {
			size, err := f.RowBytes(in)
			if err != nil {
				t.Fatal(err)
			}
			data := make([]byte, size*out*k.experts)
			quant.Synthetic(data, f, uint64(i)<<8|uint64(len(role)))
			w.Add(fmt.Sprintf("blk.%d.ffn_%s_exps.weight", i, role), f, []int{in, out, k.experts}, gguf.Bytes(data))
		}
		if k.fused {
			add("gate_up", k.format, k.hidden, 2*k.ffn)
		} else {
			add("gate", k.format, k.hidden, k.ffn)
			add("up", k.format, k.hidden, k.ffn)
		}
		add("down", k.down, k.ffn, k.hidden)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteTo(f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t testing.TB, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func source(t testing.TB, f *gguf.File, layers int) *Source {
	t.Helper()
	s, err := NewSource(f, layers)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func offered(t testing.TB, s *Source, layer, lo, hi int) wire.Slice {
	t.Helper()
	x, err := s.Slice(t.Context(), layer, lo, hi)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func cache(t testing.TB, dir string, limit int64) *Cache {
	t.Helper()
	c, err := OpenCache(dir, limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // some tests close it themselves
	return c
}

func get(t testing.TB, c *Cache, s wire.Slice, from link.SliceReader, o GetOptions) *Bundle {
	t.Helper()
	b, err := c.Get(context.Background(), s, from, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func load(t testing.TB, list []*Bundle, o experts.Options, previous *Executor) *Executor {
	t.Helper()
	x, err := Load(list, o, previous)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// batch is rows that pick among experts lo to hi-1.
func batch(t testing.TB, layer int, f moe.RowFormat, hidden, lo, hi int) *moe.Batch {
	t.Helper()
	const rows, picks = 5, 3
	b, err := moe.NewBatch(moe.Shape{Layer: layer, Hidden: hidden, Format: f}, rows, rows*picks)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(uint64(layer), uint64(lo)))
	x := make([]float32, hidden)
	for range rows {
		var e [picks]uint16
		var w [picks]float32
		for i := range e {
			e[i], w[i] = uint16(lo+r.IntN(hi-lo)), r.Float32()
		}
		row := b.Row(b.Grow(e[:], w[:]))
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		if f == moe.RowF32 {
			copy(row.F, x)
		} else if s, _ := ref.QuantizeRow(row, x); s != moe.OK {
			t.Fatal(s)
		}
	}
	return b
}

// same compares what two executors make of a batch.
func same(t testing.TB, got, want moe.Experts, b *moe.Batch) {
	t.Helper()
	var g, w moe.Partials
	if err := want.Forward(context.Background(), b, &w); err != nil {
		t.Fatal(err)
	}
	if err := got.Forward(context.Background(), b, &g); err != nil {
		t.Fatal(err)
	}
	for i, v := range w.Sum {
		if g.Sum[i] != v {
			t.Fatalf("layer %d: sum %d is %d, want %d", b.Layer, i, g.Sum[i], v)
		}
	}
	nonzero := false
	for _, v := range w.Sum {
		nonzero = nonzero || v != 0
	}
	if !nonzero || !bytes.Equal(statuses(&g), statuses(&w)) {
		t.Fatalf("layer %d: statuses %v, want %v; sums are zero: %v", b.Layer, g.Status, w.Status, !nonzero)
	}
}

func statuses(p *moe.Partials) (b []byte) {
	for _, s := range p.Status {
		b = append(b, byte(s))
	}
	return b
}

// A slice that went through a backbone and a cache has the bits of the whole model, and nothing else.
func TestFetchedSlicesHaveTheBitsOfTheModel(t *testing.T) {
	f := open(t, write(t, kinds...))
	store, err := experts.Load(f, len(kinds), experts.Options{Profile: ref.DefaultProfile(len(kinds))})
	if err != nil {
		t.Fatal(err)
	}
	whole := experts.NewLocal(store)
	s := source(t, f, len(kinds))
	c := cache(t, t.TempDir(), 0)
	for layer, k := range kinds {
		for _, r := range [][2]int{{0, k.experts}, {1, 4}, {5, 6}} {
			slice := offered(t, s, layer, r[0], r[1])
			var last int64
			b := get(t, c, slice, s.Read, GetOptions{Progress: func(done, total int64) {
				if done < last || done > total {
					t.Errorf("progress went from %d to %d of %d", last, done, total)
				}
				last = done
			}})
			if last != b.head.size() {
				t.Errorf("progress ended with %d of %d", last, b.head.size())
			}
			direct, err := FromFile(f, slice)
			if err != nil {
				t.Fatal(err)
			}
			for how, b := range map[string]*Bundle{"cache": b, "file": direct} {
				x := load(t, []*Bundle{b}, experts.Options{}, nil)
				same(t, x, whole, batch(t, layer, store.RowFormat(layer), k.hidden, r[0], r[1]))
				if err := refuses(x, batch(t, layer, store.RowFormat(layer), k.hidden, 0, k.experts)); r[1]-r[0] < k.experts && !errors.Is(err, moe.ErrNotHeld) {
					t.Errorf("%s: layer %d, experts not held: %v", how, layer, err)
				}
				if err := refuses(x, batch(t, layer+1, store.RowFormat(layer), k.hidden, r[0], r[1])); !errors.Is(err, moe.ErrNotHeld) {
					t.Errorf("%s: another layer: %v", how, err)
				}
			}
		}
	}
}

func refuses(x moe.Experts, b *moe.Batch) error {
	var p moe.Partials
	return x.Forward(context.Background(), b, &p)
}

// A whole model in each format, its layers divided between two workers that have nothing but a cache.
func TestSlicesOfAWholeModel(t *testing.T) {
	for _, format := range []quant.Format{quant.Q4K, quant.Q6K, quant.Q8_0, quant.BF16} {
		shape := synth.Shape{
			Name: "slices", Arch: synth.Qwen3MoE, Context: 64, Vocab: 300, Hidden: 256, Layers: 2, Heads: 2, KVHeads: 1,
			HeadDim: 128, RopeBase: 1e6, Experts: 8, TopK: 2, FFN: 256, Format: format,
		}
		plan, err := shape.Plan()
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "model.gguf")
		if err := plan.Write(context.Background(), path, synth.Options{Seed: 7}); err != nil {
			t.Fatal(err)
		}
		f := open(t, path)
		store, err := experts.Load(f, shape.Layers, experts.Options{Profile: ref.DefaultProfile(shape.Layers)})
		if err != nil {
			t.Fatal(err)
		}
		s := source(t, f, shape.Layers)
		for _, ranges := range [][][3]int{{{0, 0, 8}, {1, 0, 3}}, {{1, 3, 8}}} {
			c := cache(t, t.TempDir(), 0)
			var list []*Bundle
			for _, r := range ranges {
				list = append(list, get(t, c, offered(t, s, r[0], r[1], r[2]), s.Read, GetOptions{}))
			}
			x := load(t, list, experts.Options{}, nil)
			for _, r := range ranges {
				same(t, x, experts.NewLocal(store), batch(t, r[0], store.RowFormat(r[0]), shape.Hidden, r[1], r[2]))
			}
		}
	}
}
