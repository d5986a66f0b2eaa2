package model

import (
	"errors"
	"fmt"

	"kvasir/engine/gguf"
	"kvasir/internal/moe"
)

// Architectures that Load accepts: general.architecture of the file.
const (
	Qwen3MoE  = "qwen3moe"
	Qwen35MoE = "qwen35moe"
)

// ErrUnsupported is wrapped by errors about a file that is sound but asks for what Kvasir does not do.
var ErrUnsupported = errors.New("unsupported model")

// Config is the shape of a model, read from a file's metadata. Keys are those of llama.cpp's GGUF files.
type Config struct {
	Arch     string
	Name     string // general.name; may be empty
	Context  int    // positions that the model was made for
	Hidden   int    // values a row
	Vocab    int    // tokens
	Layers   int    // trunk layers; MTP blocks follow them in the file
	MTP      int    // multi-token prediction blocks, read and kept, not run
	Eps      float32
	Heads    int // query heads
	KVHeads  int // key and value heads
	HeadDim  int // values of a query or key head
	ValueDim int // values of a value head

	RopeDims     int     // values of a head that turn
	RopeBase     float64 // base of the angles
	RopeSections []int   // multi-section rope of qwen35moe; nil otherwise

	Experts   int // routed experts a layer
	TopK      int // picks a row
	FFN       int // values between gate and down of a routed expert
	SharedFFN int // the same of the shared expert; 0 without one

	Recurrent []bool // for each trunk layer: gated DeltaNet instead of attention; all false for qwen3moe
	Delta     DeltaConfig
}

// DeltaConfig is the shape of the gated DeltaNet layers of qwen35moe.
type DeltaConfig struct {
	Conv     int // taps of the causal convolution
	State    int // values of a key or value head
	KeyHeads int
	ValHeads int
}

// Channels is the width of the convolution: queries, keys and values side by side.
func (d DeltaConfig) Channels() int { return d.State * (2*d.KeyHeads + d.ValHeads) }

// Inner is the width of the values.
func (d DeltaConfig) Inner() int { return d.State * d.ValHeads }

// ReadConfig reads and checks the metadata of a model file.
func ReadConfig(f *gguf.File) (Config, error) {
	c := Config{}
	var err error
	if c.Arch, err = f.String("general.architecture"); err != nil {
		return c, err
	}
	if c.Arch != Qwen3MoE && c.Arch != Qwen35MoE {
		return c, fmt.Errorf("%w: architecture %q; supported are %s and %s", ErrUnsupported, c.Arch, Qwen3MoE, Qwen35MoE)
	}
	r := reader{f: f, arch: c.Arch}
	c.Name = r.str("general.name", "")
	c.Context = r.need("context_length", 1<<30)
	c.Hidden = r.need("embedding_length", moe.MaxHidden)
	blocks := r.need("block_count", moe.MaxLayers)
	c.Heads = r.need("attention.head_count", 1<<12)
	c.Eps = r.eps()
	c.Experts = r.need("expert_count", moe.MaxExperts)
	c.TopK = r.need("expert_used_count", min(moe.MaxTopK, max(c.Experts, 1)))
	if r.err != nil {
		return c, r.err
	}
	c.HeadDim = r.num("attention.key_length", c.Hidden/c.Heads, 1<<12)
	c.ValueDim = r.num("attention.value_length", c.Hidden/c.Heads, 1<<12)
	c.RopeDims = r.num("rope.dimension_count", c.HeadDim, 1<<12)
	c.RopeBase = r.float("rope.freq_base", 10000)
	c.FFN = r.num("expert_feed_forward_length", r.num("feed_forward_length", 0, 1<<20)/c.TopK, 1<<16)
	if s := r.str(c.Arch+".rope.scaling.type", "none"); s != "none" {
		r.fail(fmt.Errorf("%w: rope scaling %q; only none is supported", ErrUnsupported, s))
	}
	if c.Arch == Qwen35MoE {
		c.readQwen35(&r, blocks)
	} else {
		c.Layers = blocks
		c.Recurrent = make([]bool, blocks)
	}
	c.KVHeads = r.kvHeads(&c)
	if c.Vocab = r.vocab(); r.err != nil {
		return c, r.err
	}
	return c, c.check()
}

func (c *Config) readQwen35(r *reader, blocks int) {
	c.MTP = r.num("nextn_predict_layers", 0, blocks-1)
	c.Layers = blocks - c.MTP
	c.SharedFFN = r.num("expert_shared_feed_forward_length", r.num("feed_forward_length", 0, 1<<20), 1<<16)
	c.RopeSections = r.ints("rope.dimension_sections", 4)
	c.Delta = DeltaConfig{
		Conv:     r.need("ssm.conv_kernel", 64),
		State:    r.need("ssm.state_size", 1<<12),
		KeyHeads: r.need("ssm.group_count", 1<<12),
		ValHeads: r.need("ssm.time_step_rank", 1<<12),
	}
	if inner := r.need("ssm.inner_size", 1<<20); r.err == nil && inner != c.Delta.Inner() {
		r.fail(fmt.Errorf("%s.ssm.inner_size is %d, want state_size x time_step_rank = %d", r.arch, inner, c.Delta.Inner()))
	}
	interval := r.num("full_attention_interval", 4, moe.MaxLayers)
	c.Recurrent = make([]bool, c.Layers)
	for i := range c.Recurrent {
		c.Recurrent[i] = interval > 0 && (i+1)%interval != 0
	}
	if own := r.bools("attention.recurrent_layers"); own != nil && r.err == nil {
		if len(own) < c.Layers {
			r.fail(fmt.Errorf("%s.attention.recurrent_layers has %d entries for %d layers", r.arch, len(own), c.Layers))
			return
		}
		copy(c.Recurrent, own)
	}
}

// check holds the relations between the numbers; single limits are the reader's.
func (c *Config) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("model metadata: "+format, args...)
	}
	switch {
	case c.KVHeads < 1 || c.Heads%c.KVHeads != 0:
		return bad("%d heads cannot share %d key/value heads evenly", c.Heads, c.KVHeads)
	case c.HeadDim < 1 || c.ValueDim < 1:
		return bad("heads of %d and %d values", c.HeadDim, c.ValueDim)
	case c.HeadDim != c.ValueDim:
		return bad("key heads of %d values and value heads of %d; only equal ones are supported", c.HeadDim, c.ValueDim)
	case c.RopeDims < 2 || c.RopeDims%2 != 0 || c.RopeDims > c.HeadDim:
		return bad("rope turns %d of %d values of a head; want an even number that fits", c.RopeDims, c.HeadDim)
	case c.Arch == Qwen3MoE && c.RopeDims != c.HeadDim:
		return bad("rope turns %d of %d values of a head; %s turns all", c.RopeDims, c.HeadDim, c.Arch)
	case !(c.RopeBase >= 1 && c.RopeBase <= 1e12):
		return bad("rope base %v, want 1 to 1e12", c.RopeBase)
	case !(c.Eps >= 0 && c.Eps <= 1):
		return bad("rms epsilon %v, want 0 to 1", c.Eps)
	case c.FFN < 1:
		return bad("expert_feed_forward_length is missing")
	case c.Arch == Qwen35MoE && c.Delta.ValHeads%c.Delta.KeyHeads != 0:
		return bad("%d DeltaNet value heads cannot share %d key heads evenly", c.Delta.ValHeads, c.Delta.KeyHeads)
	}
	return nil
}

// A reader reads keys of one architecture and keeps the first error.
type reader struct {
	f    *gguf.File
	arch string
	err  error
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *reader) has(key string) bool { return r.f.Has(r.arch + "." + key) }

// need reads a number from 1 to most that must be there.
func (r *reader) need(key string, most int) int {
	if !r.has(key) {
		_, err := r.f.Uint(r.arch + "." + key)
		r.fail(err)
		return 0
	}
	n := r.num(key, 0, most)
	if n < 1 {
		r.fail(fmt.Errorf("%s.%s is %d, want 1 to %d", r.arch, key, n, most))
	}
	return n
}

// num reads a number from 0 to most, or def where the key is missing.
func (r *reader) num(key string, def, most int) int {
	if !r.has(key) {
		return def
	}
	n, err := r.f.Uint(r.arch + "." + key)
	switch {
	case err != nil:
		r.fail(err)
	case most < 0 || n > uint64(most):
		r.fail(fmt.Errorf("%s.%s is %d, want at most %d", r.arch, key, n, most))
	default:
		return int(n)
	}
	return 0
}

func (r *reader) float(key string, def float64) float64 {
	if !r.has(key) {
		return def
	}
	v, err := r.f.Float(r.arch + "." + key)
	if err != nil {
		r.fail(err)
	}
	return v
}

func (r *reader) eps() float32 {
	v, err := r.f.Float(r.arch + ".attention.layer_norm_rms_epsilon")
	if err != nil {
		r.fail(err)
	}
	return float32(v)
}

func (r *reader) str(key, def string) string {
	if !r.f.Has(key) {
		return def
	}
	s, err := r.f.String(key)
	if err != nil {
		r.fail(err)
	}
	return s
}

// ints reads an array of exactly n small numbers.
func (r *reader) ints(key string, n int) []int {
	v, err := r.f.Ints(r.arch + "." + key)
	if err != nil {
		r.fail(err)
		return nil
	}
	if len(v) != n {
		r.fail(fmt.Errorf("%s.%s has %d entries, want %d", r.arch, key, len(v), n))
		return nil
	}
	out := make([]int, n)
	for i, x := range v {
		if x < 0 || x > 1<<12 {
			r.fail(fmt.Errorf("%s.%s: entry %d is %d, want 0 to %d", r.arch, key, i, x, 1<<12))
			return nil
		}
		out[i] = int(x)
	}
	return out
}

func (r *reader) bools(key string) []bool {
	if !r.has(key) {
		return nil
	}
	v, err := r.f.Bools(r.arch + "." + key)
	if err != nil {
		r.fail(err)
	}
	return v
}

// kvHeads reads the number of key/value heads, which may be an array with one entry a layer; the layers
// with attention must agree.
func (r *reader) kvHeads(c *Config) int {
	key := r.arch + ".attention.head_count_kv"
	if !r.f.Has(key) {
		return c.Heads
	}
	if n, err := r.f.Uint(key); err == nil {
		if n > uint64(c.Heads) {
			r.fail(fmt.Errorf("%s is %d, more than the %d heads", key, n, c.Heads))
			return 0
		}
		return int(n)
	}
	list, err := r.f.Ints(key)
	if err != nil {
		r.fail(err)
		return 0
	}
	kv := int64(0)
	for i, n := range list {
		if i >= len(c.Recurrent) || c.Recurrent[i] {
			continue
		}
		if kv != 0 && n != kv {
			r.fail(fmt.Errorf("%w: %s differs between layers (%d and %d)", ErrUnsupported, key, kv, n))
			return 0
		}
		kv = n
	}
	if kv < 1 || kv > int64(c.Heads) {
		r.fail(fmt.Errorf("%s is %d, want 1 to %d", key, kv, c.Heads))
		return 0
	}
	return int(kv)
}

// vocab is the number of tokens: the tokenizer's, or the width of the embedding in a file without one.
func (r *reader) vocab() int {
	t, err := r.f.Tensor("token_embd.weight")
	if err != nil {
		r.fail(err)
		return 0
	}
	if len(t.Dims) != 2 {
		r.fail(fmt.Errorf("tensor token_embd.weight has %d dimensions, want 2", len(t.Dims)))
		return 0
	}
	return t.Dims[1]
}
