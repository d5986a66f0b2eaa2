package schedule

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/engine/model"
	"kvasir/internal/moe"
	"kvasir/kernels/cpu"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
)

// node is a small model with all its experts at home, on two threads.
type node struct {
	*model.Model
	experts moe.Experts
}

func openNode(t *testing.T, name string) node {
	t.Helper()
	f, err := gguf.Open("../model/testdata/mini/" + name + ".gguf")
	if err != nil {
		t.Fatal(err)
	}
	all := variant.Available()
	b := cpu.New(all[len(all)-1], 2)
	t.Cleanup(func() {
		b.Close()
		_ = f.Close()
	})
	c, err := model.ReadConfig(f)
	if err != nil {
		t.Fatal(err)
	}
	p := ref.DefaultProfile(c.Layers)
	m, err := model.Load(f, model.Options{Profile: p, Backend: b})
	if err != nil {
		t.Fatal(err)
	}
	store, err := experts.Load(f, c.Layers, experts.Options{Profile: p, Backend: b})
	if err != nil {
		t.Fatal(err)
	}
	return node{m, experts.NewLocal(store)}
}

// alone returns the answer to an ask of a sequence that has the model to itself.
func (n node) alone(t *testing.T, a ask) answer {
	mem := n.NewMemory(0)
	var step *model.Step
	defer func() { step.Seq.Free() }()
	return a.alone(n.Vocab, n.Context, func(tokens []int32, more int) []float32 {
		if len(tokens) == len(a.tokens) { // another choice begins
			if step != nil {
				step.Seq.Free()
			}
			seq, err := mem.NewSequence()
			if err != nil {
				t.Fatal(err)
			}
			step = &model.Step{Seq: seq}
		}
		step.Tokens = tokens[len(tokens)-more:]
		if err := n.Forward(context.Background(), n.experts, []*model.Step{step}); err != nil || step.Err != nil {
			t.Fatal(err, step.Err)
		}
		return step.Logits
	})
}

// TestModelGivesEachWhatItGivesItAlone runs a thousand requests of random lengths, some of which
// are cancelled, through a model with little memory and two micro-batches under way, and compares
// tokens and the checksum of all logits with those of a sequence that has the model to itself. Many
// prompts begin alike. Then nothing is left in the memory but what is kept for prompts to come.
func TestModelGivesEachWhatItGivesItAlone(t *testing.T) {
	for _, tt := range []struct {
		name string
		room int // longest sequences that the memory holds
	}{{"mini35-q8_0", 6}, {"mini3k-q4_k_m", 4}} {
		t.Run(tt.name, func(t *testing.T) { throng(t, openNode(t, tt.name), tt.room) })
	}
}

func throng(t *testing.T, n node, room int) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	requests, kinds := 1000, 60
	if testing.Short() {
		requests, kinds = 40, 10
	}
	starts := [][]int32{{}, randomTokens(rng, n.Vocab, 70), randomTokens(rng, n.Vocab, 40)}
	asks := make([]ask, kinds)
	for i := range asks {
		start := starts[rng.IntN(len(starts))]
		asks[i] = ask{
			tokens: append(start[:len(start):len(start)], randomTokens(rng, n.Vocab, 1+rng.IntN(50))...),
			limit:  1 + rng.IntN(40), choices: 1 + max(0, rng.IntN(8)-5), seed: uint32(i), ends: rng.IntN(2) == 0,
			class: Class(rng.IntN(2)), kind: i,
		}
	}
	alone := make([]func() answer, kinds)
	for i, a := range asks {
		alone[i] = sync.OnceValue(func() answer { return n.alone(t, a) })
	}
	mem := n.NewMemory(int64(room) * n.SequenceBytes(170))
	s, err := New(Config{
		Model: n.Model, Memory: mem, Experts: n.experts, Rows: 128, Flights: 2, Sequences: 40, Waiting: requests,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.core.grow = 8 // so that memory runs out now and then
	s.mu.Unlock()
	for range 5 { // whether memory runs out is chance: five times is enough
		chance(t, s, requests, rng, func() ask { return asks[rng.IntN(kinds)] }, func(a ask) answer { return alone[a.kind]() })
		if s.Stats().Preemptions > 0 || testing.Short() {
			break
		}
	}
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if st := s.Stats(); st.Preemptions == 0 && !testing.Short() {
		t.Error("nobody was preempted")
	}
	if m := mem.Stats(); m.Sequences != 0 || m.Used != m.Cached {
		t.Errorf("the memory is not free: %+v", m)
	}
}

func randomTokens(rng *rand.Rand, vocab, n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(rng.IntN(vocab))
	}
	return tokens
}

// TestLargestRequestRuns gives the memory that one sequence takes at most, and no more, to requests
// that begin alike: what is kept of those before never stands in the way of the next.
func TestLargestRequestRuns(t *testing.T) {
	n := openNode(t, "mini35-q8_0")
	rng := rand.New(rand.NewPCG(1, 2))
	s, err := New(Config{Model: n.Model, Memory: n.NewMemory(n.SequenceBytes(530)), Experts: n.experts, Flights: 2})
	if err != nil {
		t.Fatal(err)
	}
	start := randomTokens(rng, n.Vocab, 70)
	var wg sync.WaitGroup
	for i := range 6 {
		a := ask{tokens: append(start[:70:70], randomTokens(rng, n.Vocab, 60)...), limit: 400, choices: 1, seed: uint32(i)}
		wg.Go(func() {
			if got, err := a.run(t, s); err != nil || !got.equal(n.alone(t, a)) {
				t.Errorf("request %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
}
