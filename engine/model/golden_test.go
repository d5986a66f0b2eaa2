package model_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"kvasir/engine/model"
	"kvasir/kernels/variant"
)

// goldenLogits are checksums of the logits of prompt p64 as shipped, at exponent 20, for each way to keep
// keys, values and states. Heads of 16 values are no whole blocks of Q8_0.
var goldenLogits = []struct {
	file  string
	kv    model.KVFormat
	state model.StateFormat
	sum   uint32
}{
	{"mini35-f32", model.KVF32, model.StateF32, 0xe8f3447f},
	{"mini35-q8_0", model.KVF32, model.StateF32, 0x0315a288},
	{"mini35k-q4_k_m", model.KVF32, model.StateF32, 0x8cf397bf},
	{"mini3-f32", model.KVF32, model.StateF32, 0x66869b9d},
	{"mini3-q8_0", model.KVF32, model.StateF32, 0xec373947},
	{"mini3k-q4_k_m", model.KVF32, model.StateF32, 0xd17c3029},

	{"mini35-f32", model.KVF16, model.StateF32, 0xfa13dc5e},
	{"mini35-q8_0", model.KVF16, model.StateF32, 0xa182dcad},
	{"mini35k-q4_k_m", model.KVF16, model.StateF32, 0x6f14dc12},
	{"mini3-f32", model.KVF16, model.StateF32, 0x62c2387e},
	{"mini3-q8_0", model.KVF16, model.StateF32, 0xaafcfa74},
	{"mini3k-q4_k_m", model.KVF16, model.StateF32, 0x3d80293e},

	{"mini35k-q4_k_m", model.KVQ8, model.StateF32, 0x94580d7f},
	{"mini3k-q4_k_m", model.KVQ8, model.StateF32, 0x49b14064},

	{"mini35-f32", model.KVF16, model.StateBF16, 0x4d8149dd},
	{"mini35-q8_0", model.KVF16, model.StateBF16, 0x2181517f},
	{"mini35k-q4_k_m", model.KVF16, model.StateBF16, 0x1decb9b1},
	{"mini35k-q4_k_m", model.KVQ8, model.StateBF16, 0x79acf55b},
}

// goldenLong is the same of 300 tokens, which are more than attention sums at a time.
const goldenLong = 0xe63730cc

// goldenTiny is the same of kvasir-tiny and its prompt "hello", with keys and values in F32 and in F16.
var goldenTiny = map[model.KVFormat]uint32{model.KVF32: 0xb539cce4, model.KVF16: 0x18ea94c2}

// TestGoldenLogits holds the whole forward pass, with every variant of the kernels, to checksums. They
// are the same on every processor and at every GOAMD64 level, which CI runs; a change of the arithmetic
// shows here first.
func TestGoldenLogits(t *testing.T) {
	prompt := readIDs(t, filepath.Join(mini, "p64.ids"))
	for _, v := range variant.Available() {
		b := newBackend(t, v)
		for _, g := range goldenLogits {
			t.Run(fmt.Sprintf("%s/%s/%s/%s", v, g.file, g.kv, g.state), func(t *testing.T) {
				n := newNodeWith(t, openFile(t, g.file), model.Options{Backend: b, KV: g.kv, State: g.state})
				if got := bits(n.logits(t, prompt, 512)...); got != g.sum {
					t.Errorf("logits %08x, want %08x", got, g.sum)
				}
			})
		}
		n := newNodeWith(t, openFile(t, "mini3-q8_0"), model.Options{Backend: b})
		if got := bits(n.logits(t, randomTokens(1, 300), 512)...); got != goldenLong {
			t.Errorf("%s: logits of 300 tokens %08x, want %08x", v, got, goldenLong)
		}
	}
}
