package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"kvasir/engine"
	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/engine/model"
	"kvasir/internal/moe"
	"kvasir/kernels/cpu"
	"kvasir/kernels/matmul"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
)

// modelRig is a model that is ready to be measured.
type modelRig struct {
	file    *gguf.File
	model   *model.Model
	experts *counter
	backend *cpu.Backend
	took    time.Duration // to load
	before  int64         // bytes that were resident before it was loaded; 0: not known
	after   int64
	cost    modelCost
	remove  func() // of a file that was made for this run
}

// loadModel opens a file and everything in it that is computed with.
func loadModel(path string) (*modelRig, error) {
	backend, err := cpu.Default()
	if err != nil {
		return nil, err
	}
	runtime.GC()
	r := &modelRig{backend: backend, before: resident()}
	start := time.Now()
	if r.file, err = gguf.Open(path); err != nil {
		return nil, err
	}
	if err := r.load(path); err != nil {
		_ = r.file.Close() // read only: nothing is lost
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r.took, r.after = time.Since(start), resident()
	r.cost, err = costOf(r.file, &r.model.Config, backend.Variant())
	if err != nil {
		_ = r.file.Close() // as above
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func (r *modelRig) load(path string) error {
	if err := r.file.Check(); err != nil {
		return err
	}
	c, err := model.ReadConfig(r.file)
	if err != nil {
		return err
	}
	profile := ref.DefaultProfile(c.Layers)
	switch data, err := os.ReadFile(path + engine.ProfileSuffix); {
	case err == nil:
		if profile, err = ref.ParseProfile(data); err != nil {
			return fmt.Errorf("profile: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if r.model, err = model.Load(r.file, model.Options{Profile: profile}); err != nil {
		return err
	}
	store, err := experts.Load(r.file, c.Layers, experts.Options{Profile: profile})
	if err != nil {
		return err
	}
	r.experts = &counter{Experts: experts.NewLocal(store)}
	return nil
}

func (r *modelRig) close() {
	r.model.Close()
	_ = r.file.Close() // read only: nothing is lost
	if r.remove != nil {
		r.remove()
	}
}

// settings fills in what the model is.
func (r *modelRig) settings(s *ModelSettings) {
	c := &r.model.Config
	s.Arch, s.Layers, s.Hidden, s.Experts, s.TopK, s.FFN, s.Vocab = c.Arch, c.Layers, c.Hidden, c.Experts, c.TopK, c.FFN, c.Vocab
	s.Quant, s.File = r.cost.format.String(), r.file.Size
	s.Load = round(r.took.Seconds())
	if r.after > 0 {
		s.Resident = round(float64(r.after) / 1e6)
		s.Held = round(float64(r.after-r.before) / 1e6)
	}
}

// counter counts the experts that are touched on the way to an executor.
type counter struct {
	moe.Experts
	calls   atomic.Int64 // layers, of micro-batches
	touched atomic.Int64 // experts, once for each call
	picks   atomic.Int64
}

// counts is what a counter has counted.
type counts struct {
	calls, touched, picks int64
}

func (c *counter) count() counts { return counts{c.calls.Load(), c.touched.Load(), c.picks.Load()} }

func (c counts) less(d counts) counts {
	return counts{c.calls - d.calls, c.touched - d.touched, c.picks - d.picks}
}

// Forward implements moe.Experts.
func (c *counter) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	var seen [moe.MaxExperts]bool
	n := int64(0)
	for _, e := range b.Expert {
		if !seen[e] {
			seen[e] = true
			n++
		}
	}
	c.calls.Add(1)
	c.touched.Add(n)
	c.picks.Add(int64(len(b.Expert)))
	return c.Experts.Forward(ctx, b, out)
}

// modelCost is what computing takes, in bytes of weights as they are read and in products of them.
type modelCost struct {
	format quant.Format // of the experts' gates
	layers int

	dense  int64 // bytes that every micro-batch reads, without the head
	head   int64
	expert int64 // bytes of one routed expert

	denseProducts  int64 // a token, without the head
	headProducts   int64
	expertProducts int64 // a pick
}

// costOf adds up the tensors of the trunk.
func costOf(f *gguf.File, c *model.Config, v variant.Variant) (modelCost, error) {
	k := modelCost{layers: c.Layers}
	gate, err := f.Tensor("blk.0.ffn_gate_exps.weight")
	if err != nil {
		if gate, err = f.Tensor("blk.0.ffn_gate_up_exps.weight"); err != nil {
			return k, err
		}
	}
	k.format = gate.Format
	for _, t := range f.Tensors {
		var layer int
		n, _ := fmt.Sscanf(t.Name, "blk.%d.", &layer)
		bytes, products := tensorCost(t, v)
		switch {
		case n == 1 && layer >= c.Layers: // MTP
		case strings.Contains(t.Name, "_exps."):
			if layer == 0 {
				k.expert += bytes / int64(c.Experts)
				k.expertProducts += products / int64(c.Experts)
			}
		case t.Name == "output.weight":
			k.head, k.headProducts = bytes, products
		case t.Name == "token_embd.weight":
			if !f.HasTensor("output.weight") {
				k.head, k.headProducts = bytes, products
			}
		default:
			k.dense += bytes
			k.denseProducts += products
		}
	}
	return k, nil
}

// tensorCost is the bytes that computing with a tensor reads, and the products of one row with it: none with
// a vector, which is not multiplied as matrices are.
func tensorCost(t *gguf.Tensor, v variant.Variant) (bytes, products int64) {
	bytes = int64(len(t.Data))
	if len(t.Dims) < 2 || strings.Contains(t.Name, "conv1d") {
		return bytes, 0
	}
	values := t.Values()
	if n, err := matmul.PackedBytes(t.Format, t.Dims[0], values/t.Dims[0]); err == nil && matmul.For(v) != nil {
		bytes = int64(n)
	}
	return bytes, int64(values)
}

// bytes is how much of the weights is read: what is dense by each micro-batch.
func (k *modelCost) bytes(c counts) float64 {
	batches := float64(c.calls) / float64(k.layers)
	return float64(batches*float64(k.dense+k.head)) + float64(float64(c.touched)*float64(k.expert))
}

// products is how many products of weights so many tokens take, after so many of which the logits are
// wanted. Attention and the states of DeltaNet are beside that. The last layer needs less of tokens whose
// logits are not wanted: of its experts that is counted.
func (k *modelCost) products(tokens, wanted int, c counts) float64 {
	return float64(float64(tokens)*float64(k.denseProducts)) + float64(float64(wanted)*float64(k.headProducts)) +
		float64(float64(c.picks)*float64(k.expertProducts))
}
