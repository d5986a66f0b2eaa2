package synth

import (
	"fmt"
	"slices"
	"strings"

	"kvasir/kernels/quant"
)

// preset is a shape with the name to ask for it by.
type preset struct {
	name  string
	shape Shape
}

// presets: anchor is a small whole model of 1.4 GB on which speeds are compared, mini the smallest Qwen35MoE
// that has blocks of 256. The dimensions of the published models are those of config.json in the repositories
// Qwen/Qwen3-30B-A3B, Qwen/Qwen3-235B-A22B, Qwen/Qwen3.5-35B-A3B and Qwen/Qwen3.5-122B-A10B of
// huggingface.co, the values of text_config for the latter two.
var presets = []preset{
	{"anchor", Shape{
		Arch: Qwen3MoE, Context: 32768, Vocab: 512, Hidden: 2048, Layers: 4, Heads: 16, KVHeads: 4, HeadDim: 128,
		RopeBase: 1e6, Experts: 128, TopK: 8, FFN: 768, Format: quant.Q4K,
	}},
	{"mini", Shape{
		Arch: Qwen35MoE, Context: 4096, Vocab: 512, Hidden: 256, Layers: 4, Heads: 4, KVHeads: 2, HeadDim: 64,
		RopeBase: 1e7, Experts: 16, TopK: 4, FFN: 256, SharedFFN: 256, Interval: 4, KeyHeads: 2, ValHeads: 4, State: 64,
		Conv: 4, Format: quant.Q4K,
	}},
	{"qwen3-30b-a3b", Shape{
		Arch: Qwen3MoE, Context: 40960, Vocab: 151936, Hidden: 2048, Layers: 48, Heads: 32, KVHeads: 4, HeadDim: 128,
		RopeBase: 1e6, Experts: 128, TopK: 8, FFN: 768, Format: quant.Q4K,
	}},
	{"qwen3-235b-a22b", Shape{
		Arch: Qwen3MoE, Context: 40960, Vocab: 151936, Hidden: 4096, Layers: 94, Heads: 64, KVHeads: 4, HeadDim: 128,
		RopeBase: 1e6, Experts: 128, TopK: 8, FFN: 1536, Format: quant.Q4K,
	}},
	{"qwen3.5-35b-a3b", Shape{
		Arch: Qwen35MoE, Context: 262144, Vocab: 248320, Hidden: 2048, Layers: 40, Heads: 16, KVHeads: 2, HeadDim: 256,
		RopeBase: 1e7, Experts: 256, TopK: 8, FFN: 512, SharedFFN: 512, Interval: 4, KeyHeads: 16, ValHeads: 32,
		State: 128, Conv: 4, MTP: 1, Format: quant.Q4K,
	}},
	{"qwen3.5-122b-a10b", Shape{
		Arch: Qwen35MoE, Context: 262144, Vocab: 248320, Hidden: 3072, Layers: 48, Heads: 32, KVHeads: 2, HeadDim: 256,
		RopeBase: 1e7, Experts: 256, TopK: 8, FFN: 1024, SharedFFN: 1024, Interval: 4, KeyHeads: 16, ValHeads: 64,
		State: 128, Conv: 4, MTP: 1, Format: quant.Q4K,
	}},
}

// Presets names the shapes that Like knows.
func Presets() []string {
	var names []string
	for i := range presets {
		names = append(names, presets[i].name)
	}
	return names
}

// Like returns the shape of that name.
func Like(name string) (Shape, error) {
	i := slices.IndexFunc(presets, func(p preset) bool { return p.name == strings.ToLower(name) })
	if i < 0 {
		return Shape{}, fmt.Errorf("%w: nothing is like %q; there are %s", ErrShape, name, strings.Join(Presets(), ", "))
	}
	s := presets[i].shape
	s.Name = "random, like " + presets[i].name
	return s, nil
}
