// Package experts holds the routed experts of a model file and computes them on this machine: the local
// end of moe.Experts. A backbone with all experts at home and a worker with a slice of them use the same
// store.
package experts

import (
	"errors"
	"fmt"

	"kvasir/engine/gguf"
	"kvasir/internal/moe"
	"kvasir/kernels/cpu"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// Store is the routed experts of a model, or the part of them that is held, in the form in which they are
// computed on: repacked, or as views of the file, which must stay open and unchanged. It does not change
// after Load and is safe for concurrent use.
type Store struct {
	Hidden int // values a row
	layers []*cpu.Layer
}

// Options are what the file does not say.
type Options struct {
	// Profile is the model's arithmetic profile, one exponent a layer.
	Profile ref.Profile
	// Float is a reference mode for tests: activations stay float32.
	Float bool
	// Backend computes; nil is that of the process, cpu.Default.
	Backend *cpu.Backend
	// Loaded, if set, is told how many more bytes of the file are ready to be computed on, by several
	// goroutines at the same time.
	Loaded func(bytes int)
}

// ErrNoExperts: the file has no routed experts.
var ErrNoExperts = errors.New("experts: the file has no ffn_*_exps tensors; give a mixture-of-experts model")

// Load finds the routed experts of the first layers layers of f, checks their shapes, and repacks their
// weights, whose pages of the file it gives back.
func Load(f *gguf.File, layers int, o Options) (*Store, error) {
	if err := o.Profile.Check(layers); err != nil {
		return nil, err
	}
	backend, err := o.backend()
	if err != nil {
		return nil, err
	}
	arena := cpu.NewArena()
	s := &Store{layers: make([]*cpu.Layer, layers)}
	for i := range s.layers {
		list, err := loadLayer(f, i, o.Float)
		if err != nil {
			return nil, err
		}
		from := cpu.From(&ref.Layer{Number: i, Exponent: o.Profile.Exponents[i], Experts: list})
		from.Done = func(m *ref.Matrix) {
			f.Forget(m.Data)
			if o.Loaded != nil {
				o.Loaded(len(m.Data))
			}
		}
		if s.layers[i], err = backend.NewLayer(arena, from); err != nil {
			return nil, err
		}
		hidden := s.layers[i].Hidden()
		if s.Hidden == 0 {
			s.Hidden = hidden
		}
		if hidden != s.Hidden {
			return nil, fmt.Errorf("layer %d: experts of hidden size %d, others have %d", i, hidden, s.Hidden)
		}
	}
	return s, nil
}

func (o *Options) backend() (*cpu.Backend, error) {
	if o.Backend != nil {
		return o.Backend, nil
	}
	return cpu.Default()
}

// Layers is how many layers the store has.
func (s *Store) Layers() int { return len(s.layers) }

// Experts is how many experts a layer has.
func (s *Store) Experts(layer int) int {
	_, n := s.layers[layer].Held()
	return n
}

// RowFormat is how rows travel to the experts of a layer.
func (s *Store) RowFormat(layer int) moe.RowFormat { return s.layers[layer].Format() }

// loadLayer returns the experts of one layer, at least one.
func loadLayer(f *gguf.File, layer int, float bool) ([]*ref.Expert, error) {
	name := func(role string) string { return fmt.Sprintf("blk.%d.ffn_%s_exps.weight", layer, role) }
	down, err := f.Tensor(name("down"))
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrNoExperts, err)
	}
	downs, err := perExpert(down)
	if err != nil {
		return nil, err
	}
	gates, ups, err := gateAndUp(f, name)
	if err != nil {
		return nil, err
	}
	if len(gates) != len(downs) || len(ups) != len(downs) {
		return nil, fmt.Errorf("layer %d has %d gate, %d up and %d down experts", layer, len(gates), len(ups), len(downs))
	}
	if len(downs) > moe.MaxExperts {
		return nil, fmt.Errorf("layer %d has %d experts; at most %d are supported", layer, len(downs), moe.MaxExperts)
	}
	list := make([]*ref.Expert, len(downs))
	for i := range list {
		list[i] = &ref.Expert{Gate: gates[i], Up: ups[i], Down: downs[i], Float: float}
	}
	return list, nil
}

// gateAndUp returns the gate and up matrices of a layer, which some files keep in one tensor: the rows of
// gate, then those of up, for each expert.
func gateAndUp(f *gguf.File, name func(role string) string) (gates, ups []ref.Matrix, err error) {
	if f.HasTensor(name("gate_up")) {
		fused, err := f.Tensor(name("gate_up"))
		if err != nil {
			return nil, nil, err
		}
		both, err := perExpert(fused)
		if err != nil {
			return nil, nil, err
		}
		for _, m := range both {
			if m.Out%2 != 0 {
				return nil, nil, fmt.Errorf("tensor %s has %d rows an expert, want gate and up alike", fused.Name, m.Out)
			}
			half := len(m.Data) / 2
			gate, up := m, m
			gate.Out, gate.Data = m.Out/2, m.Data[:half:half]
			up.Out, up.Data = m.Out/2, m.Data[half:]
			gates, ups = append(gates, gate), append(ups, up)
		}
		return gates, ups, nil
	}
	gate, err := f.Tensor(name("gate"))
	if err != nil {
		return nil, nil, err
	}
	up, err := f.Tensor(name("up"))
	if err != nil {
		return nil, nil, err
	}
	if gates, err = perExpert(gate); err != nil {
		return nil, nil, err
	}
	ups, err = perExpert(up)
	return gates, ups, err
}

// perExpert cuts a tensor of dims [in, out, experts] into one matrix an expert.
func perExpert(t *gguf.Tensor) ([]ref.Matrix, error) {
	if len(t.Dims) != 3 {
		return nil, fmt.Errorf("tensor %s has %d dimensions, want 3: in, out, experts", t.Name, len(t.Dims))
	}
	if err := quant.Check(t.Format, t.Data); err != nil {
		return nil, fmt.Errorf("tensor %s: %w", t.Name, err)
	}
	in, out, n := t.Dims[0], t.Dims[1], t.Dims[2]
	size := len(t.Data) / n
	list := make([]ref.Matrix, n)
	for i := range list {
		m, err := ref.NewMatrix(t.Format, in, out, t.Data[i*size:(i+1)*size:(i+1)*size])
		if err != nil {
			return nil, fmt.Errorf("tensor %s, expert %d: %w", t.Name, i, err)
		}
		list[i] = m
	}
	return list, nil
}
