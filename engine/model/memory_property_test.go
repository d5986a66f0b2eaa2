package model_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"kvasir/engine/model"
	"kvasir/engine/synth"
	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

// smallest is a model so small that thousands of sequences take no time, of one layer with attention and
// one more: with DeltaNet where the architecture has that.
func smallest(t testing.TB, arch string) node {
	t.Helper()
	return synthesized(t, smallestShape(arch))
}

func smallestShape(arch string) synth.Shape {
	return synth.Shape{
		Arch: arch, Context: 4096, Vocab: 264, Hidden: 32, Layers: 2, Heads: 2, KVHeads: 1, HeadDim: 16, RopeBase: 1e4,
		Experts: 2, TopK: 1, FFN: 32, SharedFFN: 32, Interval: 2, KeyHeads: 1, ValHeads: 2, State: 16, Conv: 4,
		Format: quant.Q8_0,
	}
}

// synthesized is a model of that shape, with random weights.
func synthesized(t testing.TB, s synth.Shape) node {
	t.Helper()
	p, err := s.Plan()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := p.Write(context.Background(), path, synth.Options{Seed: 1}); err != nil {
		t.Fatal(err)
	}
	return openNode(t, path, nil, false)
}

// TestSharingIsNeverSeen holds sequences that share pages and states, fork, fail, lack memory and end in
// any order to sequences that share nothing: the same bits; memory is refused only if what the sequences
// would hold without sharing does not fit; and nothing is left at the end.
func TestSharingIsNeverSeen(t *testing.T) {
	if testing.Short() {
		t.Skip("short run: TestSharedMemoryAtOnce shares memory as well")
	}
	for _, arch := range []string{model.Qwen3MoE, model.Qwen35MoE} {
		t.Run(arch, func(t *testing.T) {
			n := smallest(t, arch)
			resumed, refused := 0, 0
			rapid.Check(t, func(r *rapid.T) {
				w := newSharing(r, n)
				r.Repeat(map[string]func(*rapid.T){
					"begin":      w.begin,
					"begin anew": w.begin,
					"go on":      w.more,
					"fork":       w.fork,
					"fail":       w.fail,
					"free":       w.free,
					"":           w.check,
				})
				w.end(r)
				resumed += w.resumed
				refused += w.refused
			})
			t.Logf("%d tokens were known from others, memory was refused %d times", resumed, refused)
			if resumed == 0 || refused == 0 {
				t.Error("nothing was shared, or memory was never short: the test does not see what it is for")
			}
		})
	}
}

// sharing is a memory under test beside one without sharing.
type sharing struct {
	n             node
	memory, apart *model.Memory
	tokens, most  int // the budget: for so many sequences of so many tokens
	budget        int64
	live          []*twins
	longest       int // tokens to which sequences go on
	phrases       [][]int32
	lengths       []int // of phrases
	chunks        []int

	resumed, refused int // how often the test saw what it is for
}

// twins are a sequence of each memory with the same tokens.
type twins struct {
	seq, twin *model.Sequence
	tokens    []int32
	reserved  int // tokens for which there is room
	broken    bool
}

func newSharing(r *rapid.T, n node) *sharing {
	w := &sharing{
		n: n, apart: n.NewMemory(0), longest: 200,
		lengths: []int{1, 5, 31, 32, 32, 33, 64, 64, 96}, chunks: []int{1000, 7, 31, 32, 33, 64},
	}
	for i := range 2 {
		p := randomTokens(uint64(i), 97)
		for k := range p {
			p[k] %= 264
		}
		w.phrases = append(w.phrases, p)
	}
	w.tokens = rapid.IntRange(64, 300).Draw(r, "tokens")
	w.most = rapid.IntRange(1, 12).Draw(r, "sequences")
	w.budget = n.SequenceBytes(w.tokens) * int64(w.most)
	w.memory = n.NewMemory(w.budget)
	return w
}

// text draws tokens that others are likely to have drawn as well.
func (w *sharing) text(r *rapid.T, parts int) (tokens []int32) {
	for range rapid.IntRange(1, parts).Draw(r, "parts") {
		p := rapid.SampledFrom(w.phrases).Draw(r, "phrase")
		tokens = append(tokens, p[:rapid.SampledFrom(w.lengths).Draw(r, "length")]...)
	}
	return tokens
}

// held is what all sequences would take without sharing.
func (w *sharing) held() (bytes int64) {
	for _, s := range w.live {
		bytes += w.n.SequenceBytes(s.reserved)
	}
	return bytes
}

// lacks handles an error of asking for so many bytes.
func (w *sharing) lacks(r *rapid.T, err error, more int64) bool {
	if err == nil {
		return false
	}
	if !errors.Is(err, model.ErrMemory) {
		r.Fatal(err)
	}
	if held := w.held(); held+more <= w.budget {
		r.Fatalf("%v: %d bytes are held and %d asked for, of %d", err, held, more, w.budget)
	}
	w.refused++
	return true
}

func (w *sharing) begin(r *rapid.T) {
	prompt := w.text(r, 3)
	seq, err := w.memory.Resume(prompt)
	if w.lacks(r, err, w.n.SequenceBytes(0)) {
		return
	}
	known := seq.Len()
	if known >= len(prompt) || known%model.PagePositions != 0 {
		r.Fatalf("%d of %d tokens are known", known, len(prompt))
	}
	w.resumed += known
	twin, err := w.apart.NewSequence()
	if err != nil {
		r.Fatal(err)
	}
	s := &twins{seq: seq, twin: twin, tokens: slices.Clone(prompt[:known]), reserved: known}
	w.live = append(w.live, s)
	if known > 0 {
		w.forward(r, &model.Step{Seq: twin, Tokens: prompt[:known], Want: model.None})
	}
	chunk := rapid.SampledFrom(w.chunks).Draw(r, "chunk")
	for rest := prompt[known:]; len(rest) > 0; {
		k := min(chunk, len(rest))
		if !w.feed(r, []*twins{s}, [][]int32{rest[:k]}) {
			return
		}
		rest = rest[k:]
	}
}

// forward takes steps that cannot fail.
func (w *sharing) forward(r *rapid.T, steps ...*model.Step) {
	if err := w.n.Forward(context.Background(), w.n.experts, steps); err != nil {
		r.Fatal(err)
	}
}

// feed takes tokens with several sequences in one call, and reports whether there was memory for all.
func (w *sharing) feed(r *rapid.T, list []*twins, tokens [][]int32) (all bool) {
	steps := make([]*model.Step, len(list))
	for i, s := range list {
		steps[i] = &model.Step{Seq: s.seq, Tokens: tokens[i]}
	}
	w.forward(r, steps...)
	all = true
	for i, s := range list {
		next := len(s.tokens) + len(tokens[i])
		more := w.n.SequenceBytes(next) - w.n.SequenceBytes(s.reserved)
		if w.lacks(r, steps[i].Err, more) {
			all = false
			if s.seq.Len() != len(s.tokens) || s.seq.Err() != nil {
				r.Fatalf("a refused sequence of %d tokens has %d, and error %v", len(s.tokens), s.seq.Len(), s.seq.Err())
			}
			continue
		}
		s.reserved = next
		s.tokens = append(s.tokens, tokens[i]...)
		twin := &model.Step{Seq: s.twin, Tokens: tokens[i]}
		w.forward(r, twin)
		if s.seq.Len() != len(s.tokens) || bits(steps[i].Logits) != bits(twin.Logits) {
			r.Fatalf("after %d tokens: %d, logits %08x, alone %08x", len(s.tokens), s.seq.Len(), bits(steps[i].Logits), bits(twin.Logits))
		}
	}
	return all
}

// pick draws one that is not broken, or ends the action.
func (w *sharing) pick(r *rapid.T) *twins {
	var sound []*twins
	for _, s := range w.live {
		if !s.broken && len(s.tokens) < w.longest {
			sound = append(sound, s)
		}
	}
	if len(sound) == 0 {
		r.Skip("no sequence")
	}
	return rapid.SampledFrom(sound).Draw(r, "sequence")
}

func (w *sharing) more(r *rapid.T) {
	var list []*twins
	var tokens [][]int32
	for range rapid.IntRange(1, 4).Draw(r, "sequences") {
		if s := w.pick(r); !slices.Contains(list, s) {
			list, tokens = append(list, s), append(tokens, w.text(r, 1))
		}
	}
	w.feed(r, list, tokens)
}

func (w *sharing) fork(r *rapid.T) {
	s := w.pick(r)
	seq, err := s.seq.Fork()
	if w.lacks(r, err, w.n.SequenceBytes(len(s.tokens))) {
		return
	}
	twin, err := s.twin.Fork()
	if err != nil {
		r.Fatal(err)
	}
	w.live = append(w.live, &twins{seq: seq, twin: twin, tokens: slices.Clone(s.tokens), reserved: len(s.tokens)})
}

// spoiling faults the first row of the first layer, whose result is none: what follows from it must stay
// with its sequence.
type spoiling struct{ moe.Experts }

func (s spoiling) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	err := s.Experts.Forward(ctx, b, out)
	if b.Layer == 0 {
		clear(out.Row(0))
		out.Fault(0, moe.NonFinite)
	}
	return err
}

// fail has the experts fail in the middle of a step, or fault one of its rows.
func (w *sharing) fail(r *rapid.T) {
	s := w.pick(r)
	step := &model.Step{Seq: s.seq, Tokens: w.text(r, 2)}
	var e moe.Experts = spoiling{w.n.experts}
	whole := rapid.Bool().Draw(r, "all")
	if whole {
		e = nowhere{}
	}
	err := w.n.Forward(context.Background(), e, []*model.Step{step})
	if errors.Is(step.Err, model.ErrMemory) {
		w.lacks(r, step.Err, w.n.SequenceBytes(len(s.tokens)+len(step.Tokens))-w.n.SequenceBytes(s.reserved))
		return
	}
	s.broken, s.reserved = true, len(s.tokens)+len(step.Tokens)
	if (err != nil) != whole || step.Err == nil || s.seq.Err() == nil {
		r.Fatalf("failed with %v, in the step %v, in the sequence %v", err, step.Err, s.seq.Err())
	}
	if f, err := s.seq.Fork(); err == nil {
		f.Free()
		r.Fatal("a sequence that cannot go on was forked")
	}
}

func (w *sharing) free(r *rapid.T) {
	if len(w.live) == 0 {
		r.Skip("no sequence")
	}
	i := rapid.IntRange(0, len(w.live)-1).Draw(r, "which")
	w.live[i].seq.Free()
	w.live[i].seq.Free() // once more is nothing
	w.live[i].twin.Free()
	w.live = slices.Delete(w.live, i, i+1)
}

func (w *sharing) check(r *rapid.T) {
	s := w.memory.Stats()
	if s.Sequences != len(w.live) || s.Used > w.budget || s.Cached < 0 || s.Used-s.Cached > w.held() || s.Used < s.Cached {
		r.Fatalf("%+v with %d sequences that would hold %d bytes alone, of %d", s, len(w.live), w.held(), w.budget)
	}
}

// end frees all, and has new sequences take the whole memory.
func (w *sharing) end(r *rapid.T) {
	w.freeAll(r)
	for range w.most {
		s := &twins{}
		var err error
		if s.seq, err = w.memory.NewSequence(); err != nil {
			r.Fatal(err)
		}
		if s.twin, err = w.apart.NewSequence(); err != nil {
			r.Fatal(err)
		}
		w.live = append(w.live, s)
		if !w.feed(r, []*twins{s}, [][]int32{make([]int32, w.tokens)}) {
			r.Fatal("sequences do not get all of the memory")
		}
	}
	w.freeAll(r)
	if s := w.apart.Stats(); s.Used != 0 || s.Sequences != 0 {
		r.Fatalf("without sharing %+v is left", s)
	}
}

func (w *sharing) freeAll(r *rapid.T) {
	for _, s := range w.live {
		s.seq.Free()
		s.twin.Free()
	}
	w.live = nil
	if s := w.memory.Stats(); s.Sequences != 0 || s.Used != s.Cached {
		r.Fatalf("%+v after all were freed", s)
	}
}
