package model_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"kvasir/engine/model"
	"kvasir/internal/moe"
)

// TestSharedMemoryAtOnce lets goroutines begin sequences that begin alike, fork them, fork the forks, go on
// with several in one call, and give them up in mid-step, in a memory that is too small for all.
func TestSharedMemoryAtOnce(t *testing.T) {
	for _, arch := range []string{model.Qwen3MoE, model.Qwen35MoE} {
		t.Run(arch, func(t *testing.T) {
			seed := rand.Uint64()
			n := smallest(t, arch)
			w := newAtOnce(t, n)
			var wg sync.WaitGroup
			for worker := range 6 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(worker)))
					for range 40 {
						w.family(r)
					}
				})
			}
			wg.Wait()
			if s := w.memory.Stats(); s.Sequences != 0 || s.Used != s.Cached || s.Used > s.Budget || s.Used == 0 {
				t.Errorf("seed %#x: %+v after all were freed", seed, s)
			}
			if w.right == 0 {
				t.Errorf("seed %#x: not one came to its end", seed)
			}
			t.Logf("%d logits were right, %d times there was no memory", w.right, w.refused)
		})
	}
}

// atOnce is a memory for several goroutines, and what comes of each text alone.
type atOnce struct {
	t      *testing.T
	n      node
	memory *model.Memory
	texts  [][]int32
	want   []uint32 // after each text

	mu             sync.Mutex
	right, refused int
}

func newAtOnce(t *testing.T, n node) *atOnce {
	w := &atOnce{t: t, n: n, memory: n.NewMemory(3 * n.SequenceBytes(96))}
	for i := range 12 {
		text := append(randomTokens(uint64(i%3), 64+i%2), randomTokens(uint64(10+i), 1+3*i)...)
		for k := range text {
			text[k] %= int32(n.Vocab)
		}
		w.texts = append(w.texts, text)
		w.want = append(w.want, alone(t, n, text))
	}
	return w
}

// family begins one text, forks it before its last token, and has all take that in one call.
func (w *atOnce) family(r *rand.Rand) {
	i := r.IntN(len(w.texts))
	text := w.texts[i]
	s, err := w.memory.Resume(text)
	if w.lacks(err) {
		return
	}
	family := []*model.Sequence{s}
	defer func() {
		r.Shuffle(len(family), func(i, k int) { family[i], family[k] = family[k], family[i] })
		for _, s := range family {
			s.Free()
		}
	}()
	last := len(text) - 1
	for chunk := 1 + r.IntN(70); s.Len() < last; {
		step := &model.Step{Seq: s, Tokens: text[s.Len():min(s.Len()+chunk, last)], Want: model.None}
		if !w.forward(r, step) {
			return
		}
	}
	for range r.IntN(3) {
		f, err := family[r.IntN(len(family))].Fork()
		if w.lacks(err) {
			break
		}
		family = append(family, f)
	}
	var steps []*model.Step
	for _, s := range family {
		steps = append(steps, &model.Step{Seq: s, Tokens: text[last:]})
	}
	if !w.forward(r, steps...) {
		return
	}
	for _, s := range steps {
		if got := bits(s.Logits); got != w.want[i] {
			w.t.Errorf("text %d: logits %08x, want %08x", i, got, w.want[i])
		}
	}
	w.mu.Lock()
	w.right += len(steps)
	w.mu.Unlock()
}

// forward takes steps, and reports whether all went well. Some calls are cancelled in the middle.
func (w *atOnce) forward(r *rand.Rand, steps ...*model.Step) bool {
	e := w.n.experts
	if r.IntN(10) == 0 {
		e = quitting{e}
	}
	err := w.n.Forward(context.Background(), e, steps)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			w.t.Error(err)
		}
		return false
	}
	return !slices.ContainsFunc(steps, func(s *model.Step) bool { return w.lacks(s.Err) })
}

// lacks reports whether there was an error, which must be that there is no memory.
func (w *atOnce) lacks(err error) bool {
	if err == nil {
		return false
	}
	if !errors.Is(err, model.ErrMemory) {
		w.t.Error(err)
	}
	w.mu.Lock()
	w.refused++
	w.mu.Unlock()
	return true
}

// quitting is cancelled in the second layer.
type quitting struct{ moe.Experts }

func (q quitting) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	if b.Layer == 1 {
		return context.Canceled
	}
	return q.Experts.Forward(ctx, b, out)
}

// TestThousandsOfShortSequencesLeaveNothing begins and ends them in a memory of a few.
func TestThousandsOfShortSequencesLeaveNothing(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for _, arch := range []string{model.Qwen3MoE, model.Qwen35MoE} {
		n := smallest(t, arch)
		memory := n.NewMemory(20 * n.SequenceBytes(40))
		var live []*model.Sequence
		for range 3000 {
			if len(live) == 20 || len(live) > 0 && r.IntN(3) == 0 {
				i := r.IntN(len(live))
				live[i].Free()
				live = slices.Delete(live, i, i+1)
				continue
			}
			tokens := make([]int32, 1+r.IntN(40))
			for i := range tokens {
				tokens[i] = int32(r.IntN(2)) // so that beginnings are alike now and then
			}
			if r.IntN(4) > 0 {
				tokens = tokens[:min(len(tokens), 3)]
			}
			s, err := memory.Resume(tokens)
			if err != nil {
				t.Fatalf("seed %#x, %s: %d sequences of 40 tokens live, room for 20: %v", seed, arch, len(live), err)
			}
			live = append(live, s)
			step := &model.Step{Seq: s, Tokens: tokens[s.Len():], Want: model.None}
			if err := n.Forward(context.Background(), n.experts, []*model.Step{step}); err != nil || step.Err != nil {
				t.Fatalf("seed %#x, %s: %v, %v", seed, arch, err, step.Err)
			}
		}
		for _, s := range live {
			s.Free()
		}
		if s := memory.Stats(); s.Sequences != 0 || s.Used != s.Cached || s.Used > s.Budget {
			t.Errorf("seed %#x, %s: %+v after all were freed", seed, arch, s)
		}
	}
}
