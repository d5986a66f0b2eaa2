// Package model is the backbone: the forward pass of Qwen3-MoE and Qwen3.5-MoE files, all but the routed
// experts, which are reached only through moe.Experts.
//
// What each step computes is told in the file that has it: attention.go, deltanet.go, router.go. Two
// rules hold for all of them, and tests hold the package to both:
//
//  1. A row's result does not depend on its neighbours: the same bits come out for a sequence alone, in
//     a batch of 512, and for a prompt in one chunk or many. So every sum has a fixed order that knows
//     only the row and its position.
//  2. The bits do not depend on the machine: float multiplications stand inside conversions, so that
//     none is fused, and no library function of unknown rounding is used.
package model

import (
	"fmt"
	"sync"

	"kvasir/engine/gguf"
	"kvasir/internal/moe"
	"kvasir/kernels/cpu"
	"kvasir/kernels/ref"
	"kvasir/kernels/vector"
)

// Model is the dense part of a model file. It is safe for concurrent use by different sequences.
type Model struct {
	Config
	profile ref.Profile
	layout  layout
	backend *cpu.Backend
	ops     *vector.Ops

	embed  ref.Matrix
	norm   []float32
	head   *cpu.Matrix
	layers []layer
	rope   *rope

	works   sync.Pool // *work
	travels travels
}

// Options are what the file does not say.
type Options struct {
	// Profile is the model's arithmetic profile, one exponent a layer. Backbone and executors must hold
	// the same one.
	Profile ref.Profile
	// Float is a reference mode for tests: activations stay float32 instead of int8 rows.
	Float bool
	// KV and State are how sequences keep what they know. The bits of a model's output depend on them.
	KV    KVFormat
	State StateFormat
	// Backend computes; nil is that of the process, cpu.Default.
	Backend *cpu.Backend
	// Loaded, if set, is told how many more bytes of the file are ready to be computed on, by several
	// goroutines at the same time.
	Loaded func(bytes int)
}

// Close gives back the page-locked memory that the model keeps between one Forward and the next. It still works,
// and keeps none from then on.
func (m *Model) Close() { m.travels.close() }

// Load reads the dense part of f, which must stay open and unchanged as long as the model is used: the
// backend repacks what it multiplies with, and the rest stays where the file has it.
func Load(f *gguf.File, o Options) (*Model, error) {
	c, err := ReadConfig(f)
	if err != nil {
		return nil, err
	}
	if err := o.Profile.Check(c.Layers); err != nil {
		return nil, err
	}
	if o.Backend == nil {
		if o.Backend, err = cpu.Default(); err != nil {
			return nil, err
		}
	}
	if err := c.checkStore(o.KV); err != nil {
		return nil, err
	}
	m := &Model{Config: c, layout: newLayout(&c, o.KV, o.State), profile: o.Profile, backend: o.Backend, ops: vector.For(o.Backend.Variant())}
	l := &loader{f: f, c: &m.Config, backend: o.Backend, arena: cpu.NewArena(), float: o.Float, loaded: o.Loaded}
	if l.loaded == nil {
		l.loaded = func(int) {}
	}
	const table = "token_embd.weight"
	m.embed = l.embedding(table)
	m.norm = l.vector("output_norm.weight", c.Hidden)
	if l.has("output.weight") {
		m.head = l.matrix("output.weight", c.Hidden, c.Vocab)
	} else if l.err == nil {
		m.head = l.prepare(table, &m.embed, l.takes(m.embed.Format))
		f.Forget(m.embed.Data) // a few of its rows will be read again
	}
	if l.err == nil {
		m.layers = l.layers()
	}
	if l.err != nil {
		return nil, l.err
	}
	if o.Float {
		for i := range m.layers {
			m.layers[i].rowFormat = moe.RowF32
		}
	}
	m.rope = newRope(c.RopeDims, c.RopeBase, c.RopeSections)
	m.works.New = func() any { return newWork(m, o.Backend.Threads()) }
	return m, nil
}

// RowFormat is how rows travel to the routed experts of a layer.
func (m *Model) RowFormat(layer int) moe.RowFormat { return m.layers[layer].rowFormat }

// RowError says which value of which row went wrong.
type RowError struct {
	Layer  int        // the number of layers stands for the head
	Pos    int        // position of the token in its sequence
	Index  int        // value within the row, or -1 where the fault is not one value's
	Where  string     // what was being computed
	Status moe.Status // Range or NonFinite
}

func (e *RowError) Error() string {
	what := map[moe.Status]string{
		moe.NonFinite: "is NaN or infinite",
		moe.Range:     "is too large for the arithmetic",
		moe.Wide:      "needs sums of 64 bits, which no executor offered",
	}[e.Status]
	at := ""
	if e.Index >= 0 {
		at = fmt.Sprintf(", value %d", e.Index)
	}
	layer := "head"
	if e.Layer >= 0 {
		layer = fmt.Sprintf("layer %d", e.Layer)
	}
	return fmt.Sprintf("%s, position %d%s: %s %s; the model file may be damaged", layer, e.Pos, at, e.Where, what)
}
