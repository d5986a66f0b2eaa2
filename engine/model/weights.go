package model

import (
	"fmt"

	"sync"
	"sync/atomic"

	"kvasir/engine/gguf"
	"kvasir/internal/moe"
	"kvasir/kernels/cpu"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// layer holds the dense weights of one layer: attention or DeltaNet, router, shared expert. Matrices are
// as the backend wants them, repacked or views of the file; vectors are copied.
type layer struct {
	attnNorm []float32
	ffnNorm  []float32

	attn  *attention // nil in a recurrent layer
	delta *deltaNet  // nil in a layer with attention

	router    *cpu.Matrix
	rowFormat moe.RowFormat // in which rows travel to the experts
	shared    *sharedExpert // nil for qwen3moe
}

type attention struct {
	q, k, v, out *cpu.Matrix
	qNorm, kNorm []float32
	gated        bool // q yields a gate beside each query head
}

type deltaNet struct {
	qkv, z, beta, alpha, out *cpu.Matrix
	conv                     []float32 // Conv taps x Channels
	dtBias, a                []float32 // one a value head
	norm                     []float32 // one a value of a head
}

type sharedExpert struct {
	gate, up, down *cpu.Matrix
	mix            []float32 // its sigmoid weighs the shared expert
}

// loader takes tensors out of a file and keeps the first error.
type loader struct {
	f       *gguf.File
	c       *Config
	backend *cpu.Backend
	arena   *cpu.Arena
	float   bool // rows of float32 for all matrices
	loaded  func(bytes int)
	err     error
}

func (l *loader) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

func (l *loader) tensor(name string, dims ...int) *gguf.Tensor {
	if l.err != nil {
		return nil
	}
	t, err := l.f.Tensor(name)
	if err != nil {
		l.fail(err)
		return nil
	}
	if !sameDims(t.Dims, dims) {
		l.fail(fmt.Errorf("tensor %s is %v, want %v", name, t.Dims, dims))
		return nil
	}
	if l.has(trimWeight(name) + ".scale") {
		l.fail(fmt.Errorf("%w: tensor %s.scale; scaled tensors are not supported", ErrUnsupported, trimWeight(name)))
		return nil
	}
	return t
}

func (l *loader) has(name string) bool { return l.f.HasTensor(name) }

func trimWeight(name string) string {
	const suffix = ".weight"
	if len(name) > len(suffix) && name[len(name)-len(suffix):] == suffix {
		return name[:len(name)-len(suffix)]
	}
	return name
}

// sameDims compares dimensions, ones at the end aside.
func sameDims(have, want []int) bool {
	for len(have) > len(want) && have[len(have)-1] == 1 {
		have = have[:len(have)-1]
	}
	if len(have) != len(want) {
		return false
	}
	for i := range have {
		if have[i] != want[i] {
			return false
		}
	}
	return true
}

// matrix returns a matrix of out rows of in values, for dense products with rows in the format that its
// own asks for.
func (l *loader) matrix(name string, in, out int) *cpu.Matrix {
	t := l.tensor(name, in, out)
	if t == nil {
		return nil
	}
	return l.rows(t, 0, out, l.takes(t.Format))
}

// takes is the format of the rows that weights are multiplied with.
func (l *loader) takes(weights quant.Format) moe.RowFormat {
	if l.float {
		return moe.RowF32
	}
	return ref.HiddenFormat(weights)
}

// rows returns rows lo to hi-1 of a tensor of two dimensions, for dense products with rows of a format, and
// gives back the file's pages where they are not needed for that any more.
func (l *loader) rows(t *gguf.Tensor, lo, hi int, format moe.RowFormat) *cpu.Matrix {
	size := len(t.Data) / t.Dims[1]
	m := ref.Matrix{Format: t.Format, In: t.Dims[0], Out: hi - lo, Data: t.Data[lo*size : hi*size]}
	p := l.prepare(t.Name, &m, format)
	if p != nil && !p.Keeps() {
		l.f.Forget(m.Data)
	}
	return p
}

// prepare brings m into the form in which the backend computes.
func (l *loader) prepare(name string, m *ref.Matrix, format moe.RowFormat) *cpu.Matrix {
	p, err := l.backend.NewMatrix(l.arena, m, format)
	if err != nil {
		l.fail(fmt.Errorf("tensor %s: %w", name, err))
		return nil
	}
	l.loaded(len(m.Data))
	return p
}

// embedding returns the table of tokens, whose rows are looked up.
func (l *loader) embedding(name string) ref.Matrix {
	c := l.c
	t := l.tensor(name, c.Hidden, c.Vocab)
	if t == nil {
		return ref.Matrix{}
	}
	m, err := ref.NewMatrix(t.Format, c.Hidden, c.Vocab, t.Data)
	if err == nil {
		err = quant.Check(t.Format, t.Data)
	}
	if err != nil {
		l.fail(fmt.Errorf("tensor %s: %w", name, err))
	}
	return m
}

// router returns a matrix whose rows are float32 whatever its own format.
func (l *loader) router(name string) *cpu.Matrix {
	t := l.tensor(name, l.c.Hidden, l.c.Experts)
	if t == nil {
		return nil
	}
	return l.rows(t, 0, l.c.Experts, moe.RowF32)
}

// layers loads all layers, several at a time since one matrix is repacked by one thread.
func (l *loader) layers() []layer {
	list := make([]layer, l.c.Layers)
	loaders := make([]loader, l.c.Layers)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(l.backend.Threads(), len(list)) {
		wg.Go(func() {
			for i := int(next.Add(1) - 1); i < len(list); i = int(next.Add(1) - 1) {
				own := &loaders[i]
				*own = *l
				list[i] = own.layer(i)
			}
		})
	}
	wg.Wait()
	for i := range loaders {
		l.fail(loaders[i].err)
	}
	return list
}

// vector returns n values as float32.
func (l *loader) vector(name string, n int) []float32 {
	return l.floats(name, n)
}

// floats returns a tensor of the given dimensions as float32, whatever its format.
func (l *loader) floats(name string, dims ...int) []float32 {
	t := l.tensor(name, dims...)
	if t == nil {
		return nil
	}
	n := 1
	for _, d := range dims {
		n *= d
	}
	if err := quant.Check(t.Format, t.Data); err != nil {
		l.fail(fmt.Errorf("tensor %s: %w", name, err))
		return nil
	}
	v := make([]float32, n)
	quant.Dequantize(v, t.Format, t.Data)
	return v
}

func (l *loader) layer(i int) layer {
	c := l.c
	p := fmt.Sprintf("blk.%d.", i)
	ly := layer{
		attnNorm: l.vector(p+"attn_norm.weight", c.Hidden),
		router:   l.router(p + "ffn_gate_inp.weight"),
	}
	norm := "ffn_norm.weight"
	if c.Arch == Qwen35MoE {
		norm = "post_attention_norm.weight"
	}
	ly.ffnNorm = l.vector(p+norm, c.Hidden)
	if c.Recurrent[i] {
		ly.delta = l.deltaNet(p)
	} else {
		ly.attn = l.attention(p)
	}
	if c.Arch == Qwen35MoE && c.SharedFFN > 0 {
		ly.shared = &sharedExpert{
			gate: l.matrix(p+"ffn_gate_shexp.weight", c.Hidden, c.SharedFFN),
			up:   l.matrix(p+"ffn_up_shexp.weight", c.Hidden, c.SharedFFN),
			down: l.matrix(p+"ffn_down_shexp.weight", c.SharedFFN, c.Hidden),
			mix:  l.vector(p+"ffn_gate_inp_shexp.weight", c.Hidden),
		}
	}
	ly.rowFormat = l.rowFormat(p)
	return ly
}

// rowFormat is how rows travel to the routed experts of a layer: it follows from their gate and up.
func (l *loader) rowFormat(p string) moe.RowFormat {
	c := l.c
	if fused := p + "ffn_gate_up_exps.weight"; l.has(fused) {
		if t := l.tensor(fused, c.Hidden, 2*c.FFN, c.Experts); t != nil {
			return ref.RowFormat(t.Format, t.Format)
		}
		return 0
	}
	gate := l.tensor(p+"ffn_gate_exps.weight", c.Hidden, c.FFN, c.Experts)
	up := l.tensor(p+"ffn_up_exps.weight", c.Hidden, c.FFN, c.Experts)
	if gate == nil || up == nil {
		return 0
	}
	return ref.RowFormat(gate.Format, up.Format)
}

func (l *loader) attention(p string) *attention {
	c := l.c
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	a := &attention{
		gated: c.Arch == Qwen35MoE,
		out:   l.matrix(p+"attn_output.weight", q, c.Hidden),
		qNorm: l.vector(p+"attn_q_norm.weight", c.HeadDim),
		kNorm: l.vector(p+"attn_k_norm.weight", c.HeadDim),
	}
	if a.gated {
		q *= 2
	}
	if name := p + "attn_qkv.weight"; l.has(name) {
		a.q, a.k, a.v = l.fusedQKV(name, q, kv)
		return a
	}
	a.q = l.matrix(p+"attn_q.weight", c.Hidden, q)
	a.k = l.matrix(p+"attn_k.weight", c.Hidden, kv)
	a.v = l.matrix(p+"attn_v.weight", c.Hidden, kv)
	return a
}

// fusedQKV cuts one tensor into its query, key and value rows.
func (l *loader) fusedQKV(name string, q, kv int) (mq, mk, mv *cpu.Matrix) {
	t := l.tensor(name, l.c.Hidden, q+2*kv)
	if t == nil {
		return
	}
	format := l.takes(t.Format)
	mq = l.rows(t, 0, q, format)
	mk = l.rows(t, q, q+kv, format)
	mv = l.rows(t, q+kv, q+2*kv, format)
	return
}

func (l *loader) deltaNet(p string) *deltaNet {
	c, d := l.c, l.c.Delta
	return &deltaNet{
		qkv:    l.matrix(p+"attn_qkv.weight", c.Hidden, d.Channels()),
		z:      l.matrix(p+"attn_gate.weight", c.Hidden, d.Inner()),
		beta:   l.matrix(p+"ssm_beta.weight", c.Hidden, d.ValHeads),
		alpha:  l.matrix(p+"ssm_alpha.weight", c.Hidden, d.ValHeads),
		out:    l.matrix(p+"ssm_out.weight", d.Inner(), c.Hidden),
		conv:   transpose(l.floats(p+"ssm_conv1d.weight", d.Conv, d.Channels()), d.Conv),
		dtBias: l.vector(p+"ssm_dt.bias", d.ValHeads),
		a:      l.vector(p+"ssm_a", d.ValHeads),
		norm:   l.vector(p+"ssm_norm.weight", d.State),
	}
}

// transpose turns rows of n values into n rows.
func transpose(x []float32, n int) []float32 {
	rows := len(x) / n
	out := make([]float32, len(x))
	for r := range rows {
		for i := range n {
			out[i*rows+r] = x[r*n+i]
		}
	}
	return out
}
