package experts

import (
	"context"
	"fmt"
	"slices"

	"kvasir/internal/moe"
	"kvasir/kernels/cpu"
	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// SyntheticShape is the dimensions of a layer with random weights.
type SyntheticShape struct {
	Hidden  int // values a row
	FFN     int // values between gate and down
	Experts int
	Format  quant.Format // of gate, up and down
}

// Bytes is how many bytes the weights take.
func (s SyntheticShape) Bytes() (int, error) {
	up, err := s.Format.RowBytes(s.Hidden)
	if err != nil {
		return 0, err
	}
	down, err := s.Format.RowBytes(s.FFN)
	if err != nil {
		return 0, err
	}
	return s.Experts * (2*s.FFN*up + s.Hidden*down), nil
}

// Synthetic returns a store of one layer with random weights, the same ones for the same shape and seed
// on every machine, so that sizes can be tried without a model.
func Synthetic(s SyntheticShape, seed uint64) (*Store, error) {
	if s.Experts < 1 || s.Experts > moe.MaxExperts || s.Hidden < 1 || s.Hidden > moe.MaxHidden || s.FFN < 1 {
		return nil, fmt.Errorf("a layer of %d experts, hidden size %d and FFN %d; want 1 to %d experts, hidden 1 to %d, FFN at least 1",
			s.Experts, s.Hidden, s.FFN, moe.MaxExperts, moe.MaxHidden)
	}
	size, err := s.Bytes()
	if err != nil {
		return nil, err
	}
	backend, err := cpu.Default()
	if err != nil {
		return nil, err
	}
	ly, err := backend.NewLayer(cpu.NewArena(), cpu.Source{
		Exponent: ref.DefaultExponent,
		Experts:  s.Experts,
		Expert: func(i int) (*ref.Expert, error) {
			data := make([]byte, size/s.Experts)
			quant.Synthetic(data, s.Format, seed+uint64(i))
			return cutExpert(data, s)
		},
	})
	if err != nil {
		return nil, err
	}
	return &Store{Hidden: s.Hidden, layers: []*cpu.Layer{ly}}, nil
}

// cutExpert makes an expert of its bytes: gate, up, down.
func cutExpert(data []byte, s SyntheticShape) (*ref.Expert, error) {
	up, err := s.Format.RowBytes(s.Hidden)
	if err != nil {
		return nil, err
	}
	n := s.FFN * up
	e := &ref.Expert{}
	if e.Gate, err = ref.NewMatrix(s.Format, s.Hidden, s.FFN, data[:n:n]); err != nil {
		return e, err
	}
	if e.Up, err = ref.NewMatrix(s.Format, s.Hidden, s.FFN, data[n:2*n:2*n]); err != nil {
		return e, err
	}
	if e.Down, err = ref.NewMatrix(s.Format, s.FFN, s.Hidden, data[2*n:]); err != nil {
		return e, err
	}
	return e, e.Check()
}

// Tune returns the store with the exponents that a profile measured over b would give its layer, and that
// profile. The rule wants thousands of rows; random weights make them all alike, so those of b are counted
// as often as it takes.
func (s *Store) Tune(ctx context.Context, b *moe.Batch) (*Store, ref.Profile, error) {
	g := NewGauge(NewLocal(s), ref.DefaultProfile(len(s.layers)))
	if err := g.Forward(ctx, b, &moe.Partials{}); err != nil {
		return nil, ref.Profile{}, err
	}
	rows := g.medians[b.Layer]
	for len(rows) > 0 && len(g.medians[b.Layer]) < ref.MinRows {
		g.medians[b.Layer] = append(g.medians[b.Layer], rows...)
	}
	p, err := g.Profile("synthetic")
	if err != nil {
		return nil, p, err
	}
	tuned := &Store{Hidden: s.Hidden, layers: slices.Clone(s.layers)}
	for i, l := range s.layers {
		tuned.layers[i] = l.WithExponent(p.Exponents[i])
	}
	return tuned, p, nil
}
