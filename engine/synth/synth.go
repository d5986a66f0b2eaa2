// Package synth writes model files with random weights: GGUF files of any dimensions, up to those of the
// largest models, so that sizes and speeds can be tried without anybody's weights.
//
// What holds:
//
//  1. A file depends on its shape and seed alone: the same bytes on every machine, with any number of
//     threads (TestBytesDoNotDependOnThreads).
//  2. Weights are about 0 with a deviation of 0.02 to 0.05, embeddings of 32 times that, norms about 1: so
//     activations stay in range through any number of layers, tokens stay different from one another, and
//     all experts are picked. No two blocks are alike by design.
//  3. Names, metadata and formats are those of published files: Kvasir and llama.cpp read them.
//  4. A file appears whole or not at all (Write).
package synth

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"kvasir/internal/moe"
	"kvasir/kernels/quant"
)

// Architectures that can be made: general.architecture of the file.
const (
	Qwen3MoE  = "qwen3moe"
	Qwen35MoE = "qwen35moe"
)

// Shape is the dimensions of a model. Those of gated DeltaNet, the shared expert and MTP are of Qwen35MoE
// only.
type Shape struct {
	Name    string // general.name
	Arch    string
	Context int // positions
	Vocab   int // tokens
	Hidden  int // values a row
	Layers  int // without MTP blocks

	Heads, KVHeads, HeadDim int // of attention
	RopeBase                float64

	Experts, TopK, FFN int // routed, of a layer

	SharedFFN int
	Interval  int // every so many layers one has attention, the others gated DeltaNet
	KeyHeads  int // of gated DeltaNet
	ValHeads  int
	State     int // values of one of its heads
	Conv      int // taps of its convolution
	MTP       int // multi-token prediction blocks

	Format quant.Format // of the experts and all large matrices
}

// ErrShape is wrapped by errors about dimensions that no model can have.
var ErrShape = errors.New("synth: bad dimensions")

// Formats returns the formats that weights can have.
func Formats() []quant.Format {
	return []quant.Format{
		quant.F32, quant.F16, quant.BF16, quant.Q8_0, quant.Q4K, quant.Q5K, quant.Q6K, quant.MXFP4,
	}
}

// ParseFormat finds a format by its name, in any case.
func ParseFormat(name string) (quant.Format, error) {
	var names []string
	for _, f := range Formats() {
		if strings.EqualFold(f.String(), name) {
			return f, nil
		}
		names = append(names, f.String())
	}
	return 0, fmt.Errorf("%w: format %q; there are %s", ErrShape, name, strings.Join(names, ", "))
}

// Limits of single dimensions. Where package model or moe have one it is theirs.
const (
	headsMost = 1 << 12
	dimMost   = 1 << 12
	ffnMost   = 1 << 16
	vocabMost = 1 << 20
	ctxMost   = 1 << 24
)

// Check returns an error, wrapping ErrShape, that names the first dimension that is wrong.
func (s *Shape) Check() error {
	if s.Arch != Qwen3MoE && s.Arch != Qwen35MoE {
		return fmt.Errorf("%w: architecture %q; there are %s and %s", ErrShape, s.Arch, Qwen3MoE, Qwen35MoE)
	}
	for _, d := range s.dimensions() {
		if d.value < d.lo || d.value > d.hi {
			return fmt.Errorf("%w: %s is %d, want %d to %d", ErrShape, d.name, d.value, d.lo, d.hi)
		}
	}
	if !slices.Contains(Formats(), s.Format) {
		return fmt.Errorf("%w: format %s cannot be made", ErrShape, s.Format)
	}
	return s.checkRelations()
}

// dimension is one number with its limits.
type dimension struct {
	name          string
	value, lo, hi int
}

func (s *Shape) dimensions() []dimension {
	list := []dimension{
		{"context", s.Context, 1, ctxMost},
		{"vocab", s.Vocab, vocabLeast, vocabMost},
		{"hidden", s.Hidden, 1, moe.MaxHidden},
		{"layers", s.Layers, 1, moe.MaxLayers - s.MTP},
		{"heads", s.Heads, 1, headsMost},
		{"kv-heads", s.KVHeads, 1, s.Heads},
		{"head-dim", s.HeadDim, 4, dimMost},
		{"experts", s.Experts, 1, moe.MaxExperts},
		{"topk", s.TopK, 1, min(moe.MaxTopK, s.Experts)},
		{"ffn", s.FFN, 1, ffnMost},
	}
	if s.Arch == Qwen3MoE {
		return append(list, dimension{"mtp", s.MTP, 0, 0})
	}
	return append(list,
		dimension{"mtp", s.MTP, 0, 1},
		dimension{"shared-ffn", s.SharedFFN, 1, ffnMost},
		dimension{"interval", s.Interval, 1, moe.MaxLayers},
		dimension{"key-heads", s.KeyHeads, 1, headsMost},
		dimension{"value-heads", s.ValHeads, 1, headsMost},
		dimension{"state", s.State, 1, dimMost},
		dimension{"conv", s.Conv, 2, 64},
	)
}

func (s *Shape) checkRelations() error {
	switch {
	case s.Heads%s.KVHeads != 0:
		return fmt.Errorf("%w: %d heads cannot share %d kv-heads evenly", ErrShape, s.Heads, s.KVHeads)
	case s.HeadDim%2 != 0:
		return fmt.Errorf("%w: head-dim %d is odd, and its values turn in pairs", ErrShape, s.HeadDim)
	case s.Arch == Qwen35MoE && s.ValHeads%s.KeyHeads != 0:
		return fmt.Errorf("%w: %d value-heads cannot share %d key-heads evenly", ErrShape, s.ValHeads, s.KeyHeads)
	}
	block, _ := s.Format.Block()
	rows := []struct {
		name  string
		value int
	}{{"hidden", s.Hidden}, {"ffn", s.FFN}, {"heads x head-dim", s.Heads * s.HeadDim}}
	if s.Arch == Qwen35MoE {
		rows = append(rows, []struct {
			name  string
			value int
		}{{"shared-ffn", s.SharedFFN}, {"value-heads x state", s.ValHeads * s.State}}...)
	}
	for _, r := range rows {
		if r.value%block != 0 {
			return fmt.Errorf("%w: %s is %d, want a multiple of %d, the block of %s; change it, or take another format",
				ErrShape, r.name, r.value, block, s.Format)
		}
	}
	return nil
}

// ropeDims is how many values of a head turn: all, or in Qwen35MoE a quarter.
func (s *Shape) ropeDims() int {
	if s.Arch == Qwen3MoE {
		return s.HeadDim
	}
	return max(2, s.HeadDim/4&^1)
}

// ropeSections divides the turning pairs between time, height and width as evenly as it goes.
func (s *Shape) ropeSections() []int32 {
	n := s.ropeDims() / 2
	time := (n + 2) / 3
	height := (n - time + 1) / 2
	return []int32{int32(time), int32(height), int32(n - time - height), 0}
}

// recurrent reports whether a layer of the trunk has gated DeltaNet instead of attention.
func (s *Shape) recurrent(layer int) bool {
	return s.Arch == Qwen35MoE && layer < s.Layers && (layer+1)%s.Interval != 0
}
