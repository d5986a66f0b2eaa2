package model_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"kvasir/engine/model"
	"kvasir/kernels/variant"
)

// memoryModels are one with attention alone and one with DeltaNet layers.
var memoryModels = []string{"mini3-q8_0", "mini35-q8_0"}

// randomTokens returns n tokens of the small models' vocabulary.
func randomTokens(seed uint64, n int) []int32 {
	rng := rand.New(rand.NewPCG(seed, 7))
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(rng.IntN(500))
	}
	return ids
}

// feed takes tokens in chunks and returns the checksum of the logits after the last.
func feed(t testing.TB, n node, seq *model.Sequence, tokens []int32, chunk int) uint32 {
	t.Helper()
	s := &model.Step{Seq: seq}
	for len(tokens) > 0 {
		k := min(chunk, len(tokens))
		s.Tokens, tokens, s.Want = tokens[:k], tokens[k:], model.None
		if len(tokens) == 0 {
			s.Want = model.Last
		}
		if err := n.Forward(context.Background(), n.experts, []*model.Step{s}); err != nil {
			t.Fatal(err)
		}
		if s.Err != nil {
			t.Fatal(s.Err)
		}
	}
	return bits(s.Logits)
}

// alone is what feed returns for a sequence that shares nothing.
func alone(t testing.TB, n node, tokens []int32) uint32 {
	seq := n.NewSequence()
	defer seq.Free()
	return feed(t, n, seq, tokens, len(tokens))
}

func TestSameBitsForAnyStore(t *testing.T) {
	prompt := randomTokens(1, 270)
	best := slices.Max(variant.Available())
	for _, file := range []string{"mini3k-q4_k_m", "mini35-q8_0", "mini35k-q4_k_m"} {
		for _, o := range []model.Options{{KV: model.KVF16}, {KV: model.KVQ8}, {KV: model.KVF32, State: model.StateBF16}} {
			if o.KV == model.KVQ8 && file == "mini35-q8_0" {
				continue // its heads are no whole blocks
			}
			t.Run(fmt.Sprintf("%s/%s/%s", file, o.KV, o.State), func(t *testing.T) {
				var want uint32
				for _, v := range variant.Available() {
					o.Backend = newBackend(t, v)
					f := openFile(t, file)
					n := newNodeWith(t, f, o)
					chunks := []int{300, 7, 64}
					if v == variant.Portable || testing.Short() && v != best {
						chunks = chunks[:1] // it is slow, or emulated
					}
					for _, chunk := range chunks {
						seq := n.NewSequence()
						got := feed(t, n, seq, prompt, chunk)
						seq.Free()
						if want == 0 {
							want = got
						}
						if got != want {
							t.Errorf("%s, chunks of %d: logits %08x, want %08x", v, chunk, got, want)
						}
					}
				}
			})
		}
	}
}

func TestQ8RefusesHeadsThatAreNoWholeBlocks(t *testing.T) {
	f := openFile(t, "mini3-q8_0") // heads of 16
	_, err := model.Load(f, model.Options{Profile: profileOf(t, f), KV: model.KVQ8})
	if !errors.Is(err, model.ErrUnsupported) {
		t.Errorf("error %v", err)
	}
}

// TestNoLogitsLeaveTheSame asks for the logits of some positions only: the last layer then drops the
// other rows.
func TestNoLogitsLeaveTheSame(t *testing.T) {
	for _, file := range memoryModels {
		n := openNode(t, filepath.Join(mini, file+".gguf"), nil, false)
		prompt := randomTokens(2, 40)
		all := n.logits(t, prompt, len(prompt))
		steps := []*model.Step{
			{Seq: n.NewSequence(), Tokens: prompt[:17], Want: model.None},
			{Seq: n.NewSequence(), Tokens: prompt[:9], Want: model.Last},
			{Seq: n.NewSequence(), Tokens: prompt[:23], Want: model.All},
			{Seq: n.NewSequence(), Tokens: prompt[:1], Want: model.None},
		}
		if err := n.Forward(context.Background(), n.experts, steps); err != nil {
			t.Fatal(err)
		}
		if len(steps[0].Logits) != 0 || len(steps[3].Logits) != 0 {
			t.Errorf("%s: logits that nobody wanted", file)
		}
		if got, want := bits(steps[1].Logits), bits(all[8]); got != want {
			t.Errorf("%s: last logits %08x, want %08x", file, got, want)
		}
		if got, want := bits(steps[2].Logits), bits(all[:23]...); got != want {
			t.Errorf("%s: all logits %08x, want %08x", file, got, want)
		}
		if got, want := feed(t, n, steps[0].Seq, prompt[17:], 40), bits(all[39]); got != want {
			t.Errorf("%s: after a chunk without logits %08x, want %08x", file, got, want)
		}
	}
}

func TestSinkGetsWhatLogitsWould(t *testing.T) {
	n := openNode(t, filepath.Join(mini, "mini35-q8_0.gguf"), nil, false)
	steps := make([]*model.Step, 70)
	got, want := make([][]float32, len(steps)), make([][]float32, len(steps))
	for round := range 2 {
		for i := range steps {
			steps[i] = &model.Step{Seq: n.NewSequence(), Tokens: randomTokens(uint64(i), 1+i%9), Want: model.All}
			if round == 1 {
				steps[i].Sink = func(logits []float32) {
					got[i] = append(got[i], logits...)
					clear(logits)
				}
			}
		}
		if err := n.Forward(context.Background(), n.experts, steps); err != nil {
			t.Fatal(err)
		}
		for i, s := range steps {
			if round == 0 {
				want[i] = s.Logits
			} else if s.Logits != nil || bits(got[i]) != bits(want[i]) {
				t.Errorf("step %d: %d values in the sink, %d wanted", i, len(got[i]), len(want[i]))
			}
		}
	}
}

func TestForkGoesOnAsTheOriginal(t *testing.T) {
	for _, file := range memoryModels {
		n := openNode(t, filepath.Join(mini, file+".gguf"), nil, false)
		n.memory = n.NewMemory(1 << 30)
		for _, past := range []int{1, 31, 32, 33, 64, 70} {
			prompt := randomTokens(3, past)
			one := n.NewSequence()
			feed(t, n, one, prompt, past)
			two, err := one.Fork()
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range []*model.Sequence{one, two} {
				more := randomTokens(uint64(10+i), 40)
				if got, want := feed(t, n, s, more, 40), alone(t, n, append(slices.Clone(prompt), more...)); got != want {
					t.Errorf("%s, after %d tokens, sequence %d: logits %08x, want %08x", file, past, i, got, want)
				}
			}
			one.Free()
			two.Free()
			if s := n.memory.Stats(); s.Sequences != 0 || s.Used != s.Cached {
				t.Errorf("%s: %+v after all were freed", file, s)
			}
		}
	}
}

// TestResumeTakesUpWhatIsKnown lets three prompts with one beginning follow each other.
func TestResumeTakesUpWhatIsKnown(t *testing.T) {
	for _, file := range memoryModels {
		n := openNode(t, filepath.Join(mini, file+".gguf"), nil, false)
		n.memory = n.NewMemory(1 << 30)
		system := randomTokens(4, 100) // three full pages and a bit
		for i := range 4 {
			prompt := append(slices.Clone(system), randomTokens(uint64(20+i), 30)...)
			s, err := n.memory.Resume(prompt)
			if err != nil {
				t.Fatal(err)
			}
			// Attention's pages are known to the second; the state that DeltaNet needs is saved where the
			// second parts from the first, and known to the third.
			want := 96
			if i == 0 || i == 1 && file == "mini35-q8_0" {
				want = 0
			}
			if s.Len() != want {
				t.Errorf("%s, prompt %d: %d tokens were known, want %d", file, i, s.Len(), want)
			}
			if got, want := feed(t, n, s, prompt[s.Len():], 50), alone(t, n, prompt); got != want {
				t.Errorf("%s, prompt %d: logits %08x, want %08x", file, i, got, want)
			}
			s.Free()
		}
		// A prompt that is known as a whole: its last token is still to be taken.
		again := append(slices.Clone(system), randomTokens(20, 30)...)[:96]
		s, err := n.memory.Resume(again)
		if err != nil {
			t.Fatal(err)
		}
		if s.Len() >= 96 {
			t.Errorf("%s: nothing is left to compute of a known prompt", file)
		}
		s.Free()
		if st := n.memory.Stats(); st.Sequences != 0 || st.Used != st.Cached || st.Used == 0 {
			t.Errorf("%s: %+v after all were freed", file, st)
		}
	}
}

// TestMemoryIsBounded fills a budget: kept prefixes go first, those that were left longest ago, and then
// sequences are refused and stay as they were.
func TestMemoryIsBounded(t *testing.T) {
	for _, file := range memoryModels {
		n := openNode(t, filepath.Join(mini, file+".gguf"), nil, false)
		budget := 3 * n.SequenceBytes(64)
		n.memory = n.NewMemory(budget)
		for i := range 20 { // each leaves prefixes
			s := n.NewSequence()
			feed(t, n, s, randomTokens(uint64(i), 64), 64)
			s.Free()
		}
		if st := n.memory.Stats(); st.Used > budget || st.Cached != st.Used || st.Used == 0 {
			t.Errorf("%s: %+v with a budget of %d", file, st, budget)
		}
		var held []*model.Sequence
		for range 3 {
			s := n.NewSequence()
			feed(t, n, s, randomTokens(uint64(100+len(held)), 64), 64)
			held = append(held, s)
		}
		if s, err := n.memory.NewSequence(); err == nil { // without a state it takes its memory later
			s.Free()
		} else if !errors.Is(err, model.ErrMemory) {
			t.Errorf("%s: a fourth sequence: %v", file, err)
		}
		last := held[2]
		step := &model.Step{Seq: last, Tokens: []int32{5}}
		if err := n.Forward(context.Background(), n.experts, []*model.Step{step}); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(step.Err, model.ErrMemory) || last.Len() != 64 || last.Err() != nil {
			t.Fatalf("%s: error %v, sequence of %d tokens has error %v", file, step.Err, last.Len(), last.Err())
		}
		held[0].Free()
		prompt := append(randomTokens(102, 64), 5)
		if got, want := feed(t, n, last, []int32{5}, 1), aloneElsewhere(t, n, prompt); got != want {
			t.Errorf("%s: when there was room again: logits %08x, want %08x", file, got, want)
		}
		held[1].Free()
		last.Free()
		if st := n.memory.Stats(); st.Sequences != 0 || st.Used != st.Cached {
			t.Errorf("%s: %+v after all were freed", file, st)
		}
	}
}

// aloneElsewhere is alone in a memory of its own.
func aloneElsewhere(t testing.TB, n node, tokens []int32) uint32 {
	n.memory = n.NewMemory(0)
	return alone(t, n, tokens)
}

// TestManySequencesAtOnce lets goroutines begin, go on, fork and end sequences that share beginnings, in a
// memory that is too small for all.
func TestManySequencesAtOnce(t *testing.T) {
	for _, file := range memoryModels {
		n := openNode(t, filepath.Join(mini, file+".gguf"), nil, false)
		prompts := make([][]int32, 12)
		want := make([]uint32, len(prompts))
		for i := range prompts {
			prompts[i] = append(randomTokens(uint64(i%3), 70), randomTokens(uint64(50+i), 5+i)...)
			want[i] = alone(t, n, prompts[i])
		}
		n.memory = n.NewMemory(3 * n.SequenceBytes(96))
		var wg sync.WaitGroup
		for worker := range 4 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(worker), 3))
				for range 30 {
					i := rng.IntN(len(prompts))
					if got, ok := attempt(n, prompts[i], rng.IntN(2) == 0); ok && got != want[i] {
						t.Errorf("%s, prompt %d: logits %08x, want %08x", file, i, got, want[i])
					}
				}
			})
		}
		wg.Wait()
		if st := n.memory.Stats(); st.Sequences != 0 || st.Used != st.Cached {
			t.Errorf("%s: %+v after all were freed", file, st)
		}
	}
}

// attempt runs a prompt if there is memory for it.
func attempt(n node, prompt []int32, fork bool) (sum uint32, ok bool) {
	s, err := n.memory.Resume(prompt)
	if err != nil {
		return 0, false
	}
	defer s.Free()
	step := &model.Step{Seq: s, Tokens: prompt[s.Len() : len(prompt)-1], Want: model.None}
	if len(step.Tokens) > 0 {
		if n.Forward(context.Background(), n.experts, []*model.Step{step}) != nil || step.Err != nil {
			return 0, false
		}
	}
	if fork {
		f, err := s.Fork()
		if err != nil {
			return 0, false
		}
		defer f.Free()
		step.Seq = f
	}
	step.Tokens, step.Want = prompt[len(prompt)-1:], model.Last
	if n.Forward(context.Background(), n.experts, []*model.Step{step}) != nil || step.Err != nil {
		return 0, false
	}
	return bits(step.Logits), true
}
