package synth

import (
	"fmt"

	"kvasir/kernels/quant"
)

// tensor is one tensor of the file, and what its values are like.
type tensor struct {
	name   string
	format quant.Format
	dims   []int
	values span // of F32; none: weights
}

// span is where random values lie, evenly.
type span struct{ lo, hi float32 }

var (
	weights = span{}
	norms   = span{0.8, 1.2}
	taps    = span{-0.5, 0.5} // of the convolution
	biases  = span{-2, 2}     // of the time step
	decays  = span{-1, -0.05} // ssm_a, always negative
)

// embedding is the tensor whose values are larger than others'.
const embedding = "token_embd.weight"

// tensors lists the tensors of the file in its order, with the names and dimensions that llama.cpp gives
// them (src/models/qwen3moe.cpp, src/models/qwen35moe.cpp).
func (s *Shape) tensors() []tensor {
	l := &list{s: s}
	l.matrix(embedding, s.Hidden, s.Vocab)
	l.vector("output_norm.weight", norms, s.Hidden)
	l.matrix("output.weight", s.Hidden, s.Vocab)
	for i := range s.Layers + s.MTP {
		l.layer(i)
	}
	return l.tensors
}

// list collects tensors.
type list struct {
	s       *Shape
	prefix  string // of the layer
	tensors []tensor
}

// matrix adds a large matrix, or one for each expert.
func (l *list) matrix(name string, dims ...int) {
	l.tensors = append(l.tensors, tensor{l.prefix + name, l.s.Format, dims, weights})
}

// vector adds what stays F32 in every file.
func (l *list) vector(name string, values span, dims ...int) {
	l.tensors = append(l.tensors, tensor{l.prefix + name, quant.F32, dims, values})
}

func (l *list) layer(i int) {
	s := l.s
	l.prefix = fmt.Sprintf("blk.%d.", i)
	l.vector("attn_norm.weight", norms, s.Hidden)
	if s.recurrent(i) {
		l.deltaNet()
	} else {
		l.attention()
	}
	norm := "ffn_norm.weight"
	if s.Arch == Qwen35MoE {
		norm = "post_attention_norm.weight"
	}
	l.vector(norm, norms, s.Hidden)
	l.vector("ffn_gate_inp.weight", weights, s.Hidden, s.Experts)
	l.matrix("ffn_gate_exps.weight", s.Hidden, s.FFN, s.Experts)
	l.matrix("ffn_up_exps.weight", s.Hidden, s.FFN, s.Experts)
	l.matrix("ffn_down_exps.weight", s.FFN, s.Hidden, s.Experts)
	if s.Arch == Qwen35MoE {
		l.vector("ffn_gate_inp_shexp.weight", weights, s.Hidden)
		l.matrix("ffn_gate_shexp.weight", s.Hidden, s.SharedFFN)
		l.matrix("ffn_up_shexp.weight", s.Hidden, s.SharedFFN)
		l.matrix("ffn_down_shexp.weight", s.SharedFFN, s.Hidden)
	}
	if i >= s.Layers {
		l.matrix("nextn.eh_proj.weight", 2*s.Hidden, s.Hidden)
		l.vector("nextn.enorm.weight", norms, s.Hidden)
		l.vector("nextn.hnorm.weight", norms, s.Hidden)
		l.vector("nextn.shared_head_norm.weight", norms, s.Hidden)
	}
}

func (l *list) attention() {
	s := l.s
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	gated := q
	if s.Arch == Qwen35MoE {
		gated = 2 * q // a gate beside each query head
	}
	l.matrix("attn_q.weight", s.Hidden, gated)
	l.matrix("attn_k.weight", s.Hidden, kv)
	l.matrix("attn_v.weight", s.Hidden, kv)
	l.matrix("attn_output.weight", q, s.Hidden)
	l.vector("attn_q_norm.weight", norms, s.HeadDim)
	l.vector("attn_k_norm.weight", norms, s.HeadDim)
}

func (l *list) deltaNet() {
	s := l.s
	inner := s.ValHeads * s.State
	channels := 2*s.KeyHeads*s.State + inner
	l.matrix("attn_qkv.weight", s.Hidden, channels)
	l.matrix("attn_gate.weight", s.Hidden, inner)
	l.vector("ssm_conv1d.weight", taps, s.Conv, channels)
	l.vector("ssm_dt.bias", biases, s.ValHeads)
	l.vector("ssm_a", decays, s.ValHeads)
	l.matrix("ssm_beta.weight", s.Hidden, s.ValHeads)
	l.matrix("ssm_alpha.weight", s.Hidden, s.ValHeads)
	l.vector("ssm_norm.weight", norms, s.State)
	l.matrix("ssm_out.weight", inner, s.Hidden)
}
