package synth

import (
	"kvasir/engine/gguf"
	"kvasir/kernels/quant"
)

// fileTypes are what general.file_type says of a file whose weights are in a format (llama.h, llama_ftype).
var fileTypes = map[quant.Format]uint32{
	quant.F32: 0, quant.F16: 1, quant.Q8_0: 7, quant.Q4K: 15, quant.Q5K: 17, quant.Q6K: 18, quant.BF16: 32,
	quant.MXFP4: 38,
}

// writer returns a writer of the file, whose tensors have no data yet.
func (s *Shape) writer(tensors []tensor) *gguf.Writer {
	w := &gguf.Writer{}
	set := func(key string, value any) { w.Set(s.Arch+"."+key, value) }
	num := func(key string, value int) { set(key, uint32(value)) }
	w.Set("general.architecture", s.Arch)
	w.Set("general.type", "model")
	w.Set("general.name", s.Name)
	w.Set("general.file_type", fileTypes[s.Format])
	w.Set("general.quantization_version", uint32(2))
	num("block_count", s.Layers+s.MTP)
	num("context_length", s.Context)
	num("embedding_length", s.Hidden)
	num("attention.head_count", s.Heads)
	num("attention.head_count_kv", s.KVHeads)
	num("attention.key_length", s.HeadDim)
	num("attention.value_length", s.HeadDim)
	set("attention.layer_norm_rms_epsilon", float32(1e-6))
	num("rope.dimension_count", s.ropeDims())
	set("rope.freq_base", float32(s.RopeBase))
	num("expert_count", s.Experts)
	num("expert_used_count", s.TopK)
	num("expert_feed_forward_length", s.FFN)
	if s.Arch == Qwen35MoE {
		num("expert_shared_feed_forward_length", s.SharedFFN)
		set("rope.dimension_sections", s.ropeSections())
		num("full_attention_interval", s.Interval)
		num("ssm.conv_kernel", s.Conv)
		num("ssm.state_size", s.State)
		num("ssm.group_count", s.KeyHeads)
		num("ssm.time_step_rank", s.ValHeads)
		num("ssm.inner_size", s.ValHeads*s.State)
		num("nextn_predict_layers", s.MTP)
	}
	s.tokenizer(w)
	for i := range tensors {
		t := &tensors[i]
		w.Add(t.name, t.format, t.dims, nil)
	}
	return w
}

func (s *Shape) tokenizer(w *gguf.Writer) {
	pre := "qwen2"
	if s.Arch == Qwen35MoE {
		pre = "qwen35"
	}
	v := newVocabulary(s.Vocab)
	w.Set("tokenizer.ggml.model", "gpt2")
	w.Set("tokenizer.ggml.pre", pre)
	w.Set("tokenizer.ggml.tokens", v.tokens)
	w.Set("tokenizer.ggml.token_type", v.types)
	w.Set("tokenizer.ggml.merges", v.merges)
	w.Set("tokenizer.ggml.eos_token_id", v.special(imEnd))
	w.Set("tokenizer.ggml.bos_token_id", v.special(endOfText))
	w.Set("tokenizer.ggml.padding_token_id", v.special(pad))
	w.Set("tokenizer.ggml.add_bos_token", false)
	w.Set("tokenizer.chat_template", chatML)
}
