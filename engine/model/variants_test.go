package model_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"kvasir/engine/gguf"
	"kvasir/engine/model"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// contents is what a file is to have, for files that say the same in another way.
type contents struct {
	meta    []gguf.KV
	tensors []*gguf.Tensor
}

// rewritten is the named small model after an edit.
func rewritten(t testing.TB, name string, edit func(c *contents)) *gguf.File {
	t.Helper()
	f := openFile(t, name)
	c := &contents{slices.Clone(f.Meta), slices.Clone(f.Tensors)}
	edit(c)
	var w gguf.Writer
	for _, kv := range c.meta {
		w.Set(kv.Key, kv.Value)
	}
	for _, x := range c.tensors {
		w.Add(x.Name, x.Format, x.Dims, gguf.Bytes(x.Data))
	}
	var out bytes.Buffer
	if _, err := w.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	g, err := gguf.Parse(out.Bytes(), name)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// set gives a key a value.
func (c *contents) set(key string, value any) {
	v, err := gguf.NewValue(value)
	if err != nil {
		panic(err)
	}
	c.remove(key)
	c.meta = append(c.meta, gguf.KV{Key: key, Value: v})
}

func (c *contents) remove(key string) {
	c.meta = slices.DeleteFunc(c.meta, func(kv gguf.KV) bool { return kv.Key == key })
}

// find returns where a tensor is; it must be there.
func (c *contents) find(name string) int {
	return slices.IndexFunc(c.tensors, func(x *gguf.Tensor) bool { return x.Name == name })
}

func (c *contents) drop(name string) {
	i := c.find(name)
	c.tensors = slices.Delete(c.tensors, i, i+1)
}

func (c *contents) has(name string) bool { return c.find(name) >= 0 }

// fuse replaces tensors by one that has their rows, one after the other, for each of so many experts.
func (c *contents) fuse(name string, experts int, parts ...string) {
	var list []*gguf.Tensor
	rows := 0
	for _, p := range parts {
		x := c.tensors[c.find(p)]
		list = append(list, x)
		rows += x.Dims[1]
	}
	var data []byte
	for s := range experts {
		for _, x := range list {
			size := len(x.Data) / experts
			data = append(data, x.Data[s*size:(s+1)*size]...)
		}
	}
	fused := &gguf.Tensor{Name: name, Format: list[0].Format, Dims: []int{list[0].Dims[0], rows}, Data: data}
	if experts > 1 {
		fused.Dims = append(fused.Dims, experts)
	}
	for _, p := range parts {
		c.drop(p)
	}
	c.tensors = append(c.tensors, fused)
}

// fuseAttention fuses queries, keys and values of each layer with attention.
func (c *contents) fuseAttention() {
	for i := range 8 {
		if p := fmt.Sprintf("blk.%d.", i); c.has(p + "attn_q.weight") {
			c.fuse(p+"attn_qkv.weight", 1, p+"attn_q.weight", p+"attn_k.weight", p+"attn_v.weight")
		}
	}
}

// fuseExperts fuses gate and up of each layer's experts.
func (c *contents) fuseExperts() {
	for i := range 8 {
		if p := fmt.Sprintf("blk.%d.", i); c.has(p + "ffn_gate_exps.weight") {
			experts := c.tensors[c.find(p+"ffn_gate_exps.weight")].Dims[2]
			c.fuse(p+"ffn_gate_up_exps.weight", experts, p+"ffn_gate_exps.weight", p+"ffn_up_exps.weight")
		}
	}
}

// tie makes the output matrix that of the embedding, said or unsaid.
func tie(said bool) func(c *contents) {
	return func(c *contents) {
		i := c.find("output.weight")
		embedding := *c.tensors[c.find("token_embd.weight")]
		embedding.Name = "output.weight"
		if said {
			c.tensors[i] = &embedding
		} else {
			c.drop("output.weight")
		}
	}
}

// TestFilesThatSayTheSameGiveTheSameBits has what published files say in one way or another.
func TestFilesThatSayTheSameGiveTheSameBits(t *testing.T) {
	same := func(*contents) {}
	tests := []struct {
		name, file string
		a, b       func(c *contents)
	}{
		{"fused attention", "mini3-q8_0", same, (*contents).fuseAttention},
		{"fused gated attention", "mini35-q8_0", same, (*contents).fuseAttention},
		{"fused experts", "mini3-q8_0", same, (*contents).fuseExperts},
		{"fused experts beside a shared one", "mini35k-q4_k_m", same, (*contents).fuseExperts},
		{"tied output", "mini3-q8_0", tie(true), tie(false)},
		{"tied output, K-quants", "mini35k-q4_k_m", tie(true), tie(false)},
		{"heads a layer", "mini3-q8_0", same, func(c *contents) {
			c.set("qwen3moe.attention.head_count_kv", []uint32{2, 2, 2})
		}},
		{"heads a layer, none in recurrent ones", "mini35-q8_0", same, func(c *contents) {
			c.set("qwen35moe.attention.head_count_kv", []int32{0, 0, 0, 2})
		}},
		{"recurrent layers named", "mini35-q8_0", same, func(c *contents) {
			c.set("qwen35moe.full_attention_interval", uint32(2))
			c.set("qwen35moe.attention.recurrent_layers", []bool{true, true, true, false})
		}},
		{"interval by default", "mini35-q8_0", same, func(c *contents) { c.remove("qwen35moe.full_attention_interval") }},
		{"dimensions of 1 at the end", "mini35-q8_0", same, func(c *contents) {
			for i, x := range c.tensors {
				if len(x.Dims) == 1 && strings.HasSuffix(x.Name, "_shexp.weight") {
					wide := *x
					wide.Dims = []int{x.Dims[0], 1}
					c.tensors[i] = &wide
				}
			}
		}},
		{"tensors in another order", "mini35k-q4_k_m", same, func(c *contents) { slices.Reverse(c.tensors) }},
	}
	prompt := randomTokens(9, 45)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var sums [2]uint32
			for i, edit := range []func(c *contents){tt.a, tt.b} {
				n := newNode(t, rewritten(t, tt.file, edit), nil, false)
				sums[i] = bits(n.logits(t, prompt, 20)...)
			}
			if sums[0] != sums[1] {
				t.Errorf("logits %08x, want %08x", sums[1], sums[0])
			}
		})
	}
}

// TestFilesOfOtherKindsAreNamed has what is sound but not supported, and what contradicts itself.
func TestFilesOfOtherKindsAreNamed(t *testing.T) {
	tests := []struct {
		name, file string
		edit       func(c *contents)
		want       string
	}{
		{"heads that differ", "mini3-q8_0", func(c *contents) {
			c.set("qwen3moe.attention.head_count_kv", []uint32{2, 1, 2})
		}, "head_count_kv differs between layers (2 and 1)"},
		{"no heads at all", "mini35-q8_0", func(c *contents) {
			c.set("qwen35moe.attention.head_count_kv", []uint32{2, 2, 2, 0})
		}, "head_count_kv is 0"},
		{"too few heads", "mini35-q8_0", func(c *contents) {
			c.set("qwen35moe.attention.head_count_kv", []uint32{2, 2})
		}, "head_count_kv"},
		{"few recurrent layers", "mini35-q8_0", func(c *contents) {
			c.set("qwen35moe.attention.recurrent_layers", []bool{true})
		}, "recurrent_layers has 1 entries for 4 layers"},
		{"short fused attention", "mini3-q8_0", func(c *contents) {
			c.fuse("blk.0.attn_qkv.weight", 1, "blk.0.attn_q.weight", "blk.0.attn_k.weight")
		}, "blk.0.attn_qkv.weight is"},
		{"scaled tensor", "mini3-q8_0", func(c *contents) {
			c.tensors = append(c.tensors, &gguf.Tensor{Name: "blk.0.attn_q.scale", Format: quant.F32, Dims: []int{1}, Data: make([]byte, 4)})
		}, "blk.0.attn_q.scale"},
		{"scaled rope", "mini3-q8_0", func(c *contents) { c.set("qwen3moe.rope.scaling.type", "yarn") }, `rope scaling "yarn"`},
		{"another architecture", "mini3-q8_0", func(c *contents) { c.set("general.architecture", "llama") }, `architecture "llama"; supported are`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := rewritten(t, tt.file, tt.edit)
			_, err := model.Load(f, model.Options{Profile: ref.DefaultProfile(profileLayers(tt.file))})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
			if strings.Contains(tt.want, "supported") && !errors.Is(err, model.ErrUnsupported) {
				t.Errorf("error %v is not ErrUnsupported", err)
			}
		})
	}
}

// profileLayers is how many layers a small model has.
func profileLayers(file string) int {
	if strings.HasPrefix(file, "mini3-") {
		return 3
	}
	return 4
}
