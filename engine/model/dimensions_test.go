package model_test

import (
	"testing"

	"kvasir/engine/model"
	"kvasir/engine/synth"
)

// like is the shape of a published model.
func like(t testing.TB, name string) synth.Shape {
	t.Helper()
	s, err := synth.Like(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRowsOfLargeModelsRun has models whose rows, heads and states are those of the largest published
// ones, with few layers, experts and tokens, and holds their logits to those of other chunks.
func TestRowsOfLargeModelsRun(t *testing.T) {
	if testing.Short() {
		t.Skip("short run: these models have 300 MB")
	}
	large := like(t, "qwen3.5-122b-a10b")
	large.Layers = large.Interval // all but one are recurrent
	wide := like(t, "qwen3-235b-a22b")
	wide.Layers = 2
	for _, s := range []synth.Shape{large, wide} {
		s.Experts, s.TopK, s.Vocab = 4, 2, 264
		t.Run(s.Name, func(t *testing.T) {
			n := synthesized(t, s)
			prompt := randomTokens(1, 34)
			for i := range prompt {
				prompt[i] %= int32(s.Vocab)
			}
			want := n.logits(t, prompt, len(prompt))
			if margin(want[len(want)-1]) == 0 || bits(want[0]) == bits(want[1]) {
				t.Error("the logits tell nothing apart")
			}
			if got, want := bits(n.logits(t, prompt, 7)...), bits(want...); got != want {
				t.Errorf("chunks of 7: logits %08x, in one chunk %08x", got, want)
			}
		})
	}
}

// TestModelsOfOneKindOfLayerRun has models of DeltaNet layers alone, and of gated attention alone.
func TestModelsOfOneKindOfLayerRun(t *testing.T) {
	for _, interval := range []int{1, 8} {
		s := smallestShape(model.Qwen35MoE)
		s.Interval = interval
		n := synthesized(t, s)
		n.memory = n.NewMemory(4 * n.SequenceBytes(100))
		prompt := make([]int32, 70)
		for i := range prompt {
			prompt[i] = int32(i)
		}
		want := alone(t, n, prompt)
		for range 3 {
			q, err := n.memory.Resume(prompt)
			if err != nil {
				t.Fatal(err)
			}
			if got := feed(t, n, q, prompt[q.Len():], 7); got != want {
				t.Errorf("interval %d, after %d known tokens: logits %08x, want %08x", interval, q.Len(), got, want)
			}
			f, err := q.Fork()
			if err != nil {
				t.Fatal(err)
			}
			if a, b := feed(t, n, q, []int32{1}, 1), feed(t, n, f, []int32{1}, 1); a != b {
				t.Errorf("interval %d: logits %08x, of a fork %08x", interval, a, b)
			}
			q.Free()
			f.Free()
		}
		if st := n.memory.Stats(); st.Sequences != 0 || st.Used != st.Cached {
			t.Errorf("interval %d: %+v after all were freed", interval, st)
		}
	}
}

// config is what a file of that shape says of what its sequences keep.
func config(s synth.Shape) model.Config {
	c := model.Config{
		Arch: s.Arch, Layers: s.Layers, KVHeads: s.KVHeads, HeadDim: s.HeadDim, Recurrent: make([]bool, s.Layers),
		Delta: model.DeltaConfig{Conv: s.Conv, State: s.State, KeyHeads: s.KeyHeads, ValHeads: s.ValHeads},
	}
	for i := range c.Recurrent {
		c.Recurrent[i] = s.Arch == model.Qwen35MoE && (i+1)%s.Interval != 0
	}
	return c
}

func TestMemoryOfPublishedModels(t *testing.T) {
	tests := []struct {
		name            string
		kv              model.KVFormat
		state           model.StateFormat
		fixed, perToken int64
	}{
		// 36 layers of 64 heads of 128 x 128, and 3 inputs of a convolution of 12288; 12 layers of 2 heads
		// of 256 keys and as many values.
		{"qwen3.5-122b-a10b", model.KVF32, model.StateF32, 36 * (4*64*128*128 + 4*3*12288), 12 * 2 * 2 * 256 * 4},
		{"qwen3.5-122b-a10b", model.KVF16, model.StateF32, 150_994_944 + 5_308_416, 24_576},
		{"qwen3.5-122b-a10b", model.KVQ8, model.StateF32, 156_303_360, 13_056},
		{"qwen3.5-122b-a10b", model.KVF16, model.StateBF16, 150_994_944/2 + 5_308_416, 24_576},
		{"qwen3.5-35b-a3b", model.KVF16, model.StateF32, 30 * (4*32*128*128 + 4*3*8192), 20_480},
		{"qwen3-235b-a22b", model.KVF16, model.StateF32, 0, 94 * 2 * 4 * 128 * 2},
		{"qwen3-30b-a3b", model.KVF16, model.StateBF16, 0, 98_304},
	}
	for _, tt := range tests {
		c := config(like(t, tt.name))
		fixed, perToken := c.MemoryPerSequence(tt.kv, tt.state)
		if fixed != tt.fixed || perToken != tt.perToken {
			t.Errorf("%s, %s, %s: %d bytes and %d a token, want %d and %d",
				tt.name, tt.kv, tt.state, fixed, perToken, tt.fixed, tt.perToken)
		}
	}
	c := config(like(t, "qwen3.5-122b-a10b"))
	f32, _ := c.MemoryPerSequence(model.KVF16, model.StateF32)
	bf16, _ := c.MemoryPerSequence(model.KVF16, model.StateBF16)
	delta := 2 * (f32 - bf16) // BF16 halves the DeltaNet states alone
	if delta != 150_994_944 || 512*delta != 77_309_411_328 {
		t.Errorf("the DeltaNet states of a sequence take %d bytes, of 512 %d; want 151 MB and 77 GB", delta, 512*delta)
	}
}

// TestMemoryIsAsSaid compares what sequences take with what was said of them.
func TestMemoryIsAsSaid(t *testing.T) {
	for _, o := range []model.Options{{}, {KV: model.KVQ8}, {KV: model.KVF32, State: model.StateBF16}} {
		n := newNodeWith(t, openFile(t, "mini35k-q4_k_m"), o)
		fixed, perToken := n.MemoryPerSequence(o.KV, o.State)
		for _, tokens := range []int{1, 31, 32, 33, 100} {
			s := n.NewSequence()
			feed(t, n, s, randomTokens(1, tokens), tokens)
			pages := (tokens + model.PagePositions - 1) / model.PagePositions
			want := fixed + int64(pages)*model.PagePositions*perToken
			if used := n.memory.Stats().Used; used != want || n.SequenceBytes(tokens) != want {
				t.Errorf("%s, %s: %d tokens take %d bytes, and are said to take %d; want %d",
					o.KV, o.State, tokens, used, n.SequenceBytes(tokens), want)
			}
			s.Free()
		}
	}
}
