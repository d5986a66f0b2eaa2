package model_test

import (
	"math"
	"os"
	"testing"

	"kvasir/engine/gguf"
	"kvasir/engine/model"
	"kvasir/engine/tiny"
	"kvasir/kernels/ref"
)

func tinyNode(t testing.TB, profile *ref.Profile, float bool) node {
	t.Helper()
	return newNode(t, tinyFile(t), profile, float)
}

func tinyFile(t testing.TB) *gguf.File {
	t.Helper()
	f, err := gguf.Parse(tiny.Model(), tiny.Name)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

const tinyRefs = "../tiny/testdata/ref/kvasir-tiny-q4_k_m-"

// TestTinyStaysNearLlamaCpp holds kvasir-tiny as shipped, at E = 20, to llama.cpp's logits as shipped,
// over all its reference prompts: mean cosine at least 0.9997, and the same argmax wherever llama.cpp's
// margin exceeds 0.3. llama.cpp had its keys and values in F32; the bars are those of F16 as well.
func TestTinyStaysNearLlamaCpp(t *testing.T) {
	for _, kv := range []model.KVFormat{model.KVF32, model.KVF16} {
		t.Run(kv.String(), func(t *testing.T) {
			checkTiny(t, newNodeWith(t, tinyFile(t), model.Options{KV: kv}))
		})
	}
}

func checkTiny(t *testing.T, n node) {
	t.Helper()
	var sum float64
	var rows, differ int
	var widest float32 // margin at which an argmax differs
	for name, prompt := range tinyPrompts(t) {
		r := readReference(t, tinyRefs+name, prompt)
		for i, got := range n.logits(t, r.tokens, 512) {
			want := r.logits[i]
			sum += cosine(got, want)
			rows++
			if argmax(got) == argmax(want) {
				continue
			}
			differ++
			widest = max(widest, margin(want))
			if margin(want) > 0.3 {
				t.Errorf("%s, position %d: argmax %d, llama.cpp has %d by %.3f",
					name, i, argmax(got), argmax(want), margin(want))
			}
		}
	}
	mean := sum / float64(rows)
	t.Logf("%d positions: mean cosine %.5f; argmax differs at %d, where the margin is at most %.3f", rows, mean, differ, widest)
	if mean < 0.9997 {
		t.Errorf("mean cosine %.5f, bar 0.9997", mean)
	}
}

// TestTinyWithProfileStaysNearFloat holds kvasir-tiny with its measured profile to the logits of float
// activations: its mean distance (1 - cosine) is at most 1.3 times llama.cpp's own.
func TestTinyWithProfileStaysNearFloat(t *testing.T) {
	p, err := ref.ParseProfile(tiny.Profile())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range []model.KVFormat{model.KVF32, model.KVF16} {
		t.Run(kv.String(), func(t *testing.T) {
			checkTinyProfile(t, newNodeWith(t, tinyFile(t), model.Options{Profile: p, KV: kv}))
		})
	}
}

func checkTinyProfile(t *testing.T, n node) {
	t.Helper()
	var ours, theirs float64
	rows := 0
	for name, prompt := range tinyPrompts(t) {
		float := readReference(t, tinyRefs+"deq-"+name, prompt)
		native := readReference(t, tinyRefs+name, prompt)
		got := n.logits(t, float.tokens, 512)
		for i := range got {
			// The two runs of llama.cpp are compared as far as they took the same tokens.
			if i < len(native.tokens) && i < len(float.tokens) && native.tokens[i] != float.tokens[i] {
				break
			}
			ours += 1 - cosine(got[i], float.logits[i])
			theirs += 1 - cosine(native.logits[i], float.logits[i])
			rows++
		}
	}
	ours, theirs = ours/float64(rows), theirs/float64(rows)
	t.Logf("%d positions: mean distance to float %.5f, llama.cpp's own %.5f, ratio %.2f", rows, ours, theirs, ours/theirs)
	if math.IsNaN(ours) || ours > 1.3*theirs {
		t.Errorf("mean distance %.5f, bar 1.3 x %.5f", ours, theirs)
	}
}

// TestTinyFloatMatchesLlamaCpp holds the float mode to the dequantised references of kvasir-tiny.
func TestTinyFloatMatchesLlamaCpp(t *testing.T) {
	if testing.Short() {
		t.Skip("short run: the small references cover the float mode")
	}
	n := tinyNode(t, nil, true)
	for name, prompt := range tinyPrompts(t) {
		if _, err := os.Stat(tinyRefs + "deq-" + name + ".npy"); err != nil {
			t.Fatal(err)
		}
		checkFloat(t, n, readReference(t, tinyRefs+"deq-"+name, prompt), name)
	}
}
