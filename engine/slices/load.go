package slices

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"

	"kvasir/engine/experts"
	"kvasir/internal/moe"
	"kvasir/kernels/ref"
	"kvasir/wire"
)

// Executor computes on the experts of some bundles. It implements moe.Experts, does not change, and is
// safe for concurrent use. Its memory goes back, layer by layer, when nothing refers to it any more.
type Executor struct {
	hidden int
	layers map[int]*layer
	mode   mode
}

// mode is what must be equal for a layer to be used again.
type mode struct {
	float   bool
	backend any
}

// layer is the experts of one layer.
type layer struct {
	part     *experts.Part
	exponent int
	from     []origin // what it was made from
}

// origin is where experts come from.
type origin struct {
	lo, hi   int
	identity any
}

// Load makes an executor of bundles. Layers that previous has, from the same weights, are not repacked
// anew; previous may be nil and may be computing meanwhile. Weights are compared with their hashes: an
// error that wraps ErrDamaged says that a bundle of the cache must be got again.
//
// The exponents of the layers are those that the slices say, else those of o.Profile if it has any, else
// ref.DefaultExponent. The bundles may be closed when Load has returned.
func Load(bundles []*Bundle, o experts.Options, previous *Executor) (*Executor, error) {
	return LoadContext(context.Background(), bundles, o, previous)
}

// LoadContext is Load that gives up when ctx ends.
func LoadContext(ctx context.Context, bundles []*Bundle, o experts.Options, previous *Executor) (*Executor, error) {
	byLayer, err := group(bundles)
	if err != nil {
		return nil, err
	}
	x := &Executor{layers: map[int]*layer{}, mode: mode{o.Float, o.Backend}}
	if previous != nil {
		// Layers that an earlier change has left are outside the heap: the collector does not feel them.
		runtime.GC()
	}
	for _, list := range byLayer {
		number := list[0].Slice.Layer
		exponent, err := exponentOf(list, o.Profile)
		if err != nil {
			return nil, err
		}
		l := previous.reuse(x.mode, number, exponent, origins(list))
		if l == nil {
			if l, err = loadLayer(ctx, list, exponent, o); err != nil {
				return nil, err
			}
		} else if o.Loaded != nil {
			for _, b := range list {
				o.Loaded(int(b.Bytes()))
			}
		}
		if x.hidden == 0 {
			x.hidden = l.part.Hidden()
		}
		if h := l.part.Hidden(); h != x.hidden {
			return nil, fmt.Errorf("layer %d: experts of hidden size %d, others have %d", number, h, x.hidden)
		}
		x.layers[number] = l
	}
	return x, nil
}

// group sorts bundles by layer and experts, and refuses those that overlap.
func group(bundles []*Bundle) (byLayer [][]*Bundle, err error) {
	list := slices.Clone(bundles)
	slices.SortFunc(list, func(a, b *Bundle) int {
		return cmp.Or(cmp.Compare(a.Slice.Layer, b.Slice.Layer), cmp.Compare(a.Slice.Lo, b.Slice.Lo))
	})
	for i, b := range list {
		if i == 0 || list[i-1].Slice.Layer != b.Slice.Layer {
			byLayer = append(byLayer, nil)
		} else if last := list[i-1].Slice; last.Hi > b.Slice.Lo {
			return nil, fmt.Errorf("%s and %s overlap", name(last), name(b.Slice))
		}
		n := len(byLayer) - 1
		byLayer[n] = append(byLayer[n], b)
	}
	return byLayer, nil
}

func exponentOf(list []*Bundle, p ref.Profile) (int, error) {
	s := list[0].Slice
	for _, b := range list {
		if b.Slice.Exponent != s.Exponent {
			return 0, fmt.Errorf("layer %d was assigned with two exponents", s.Layer)
		}
	}
	e := ref.DefaultExponent
	switch {
	case s.Exponent != 0:
		e = s.Exponent - wire.ExponentBias
	case s.Layer < len(p.Exponents):
		e = p.Exponents[s.Layer]
	}
	if e < ref.MinExponent || e > ref.MaxExponent {
		return 0, fmt.Errorf("layer %d has exponent %d, want %d to %d", s.Layer, e, ref.MinExponent, ref.MaxExponent)
	}
	return e, nil
}

func origins(list []*Bundle) []origin {
	from := make([]origin, len(list))
	for i, b := range list {
		from[i] = origin{b.Slice.Lo, b.Slice.Hi, b.identity}
	}
	return from
}

// reuse returns a layer that x has already, or nil.
func (x *Executor) reuse(m mode, number, exponent int, from []origin) *layer {
	if x == nil || x.mode != m {
		return nil
	}
	l := x.layers[number]
	if l == nil || !slices.Equal(l.from, from) {
		return nil
	}
	if l.exponent == exponent {
		return l
	}
	return &layer{part: l.part.WithExponent(exponent), exponent: exponent, from: l.from}
}

// loadLayer repacks the experts of one layer.
func loadLayer(ctx context.Context, list []*Bundle, exponent int, o experts.Options) (*layer, error) {
	first, last := list[0], list[len(list)-1]
	held := 0
	by := make([]*Bundle, last.Slice.Hi) // bundle of each expert
	for _, b := range list {
		if !slices.Equal(b.head.shape, first.head.shape) {
			return nil, fmt.Errorf("%w: %s and %s differ in their tensors", ErrOther, name(first.Slice), name(b.Slice))
		}
		held += b.head.count()
		for i := b.Slice.Lo; i < b.Slice.Hi; i++ {
			by[i] = b
		}
	}
	keep := make([]any, len(list))
	for i, b := range list {
		keep[i] = b.hold()
	}
	part, err := experts.NewPart(experts.PartSource{
		Layer: first.Slice.Layer, Experts: last.Slice.Hi, Held: held, Exponent: exponent,
		Shape: first.head.shape,
		Expert: func(i int) ([][]byte, error) {
			if b := by[i]; b != nil && ctx.Err() == nil {
				return b.expert(i - b.Slice.Lo)
			}
			return nil, context.Cause(ctx)
		},
		Done: forgetOf(list),
		Keep: keep,
	}, o)
	if err != nil {
		return nil, err
	}
	if part.Keeps() {
		for _, b := range list {
			b.keep()
		}
	}
	return &layer{part: part, exponent: exponent, from: origins(list)}, nil
}

// forgetOf returns what gives pages back, where all bundles are alike: the pages of one must not be given
// back by another, which may not know that they are memory of their own.
func forgetOf(list []*Bundle) func([]byte) {
	for _, b := range list {
		if b.file != list[0].file {
			return nil
		}
	}
	return list[0].forget
}

// Forward computes all picks of b, if all are held, and returns moe.ErrNotHeld if not.
func (x *Executor) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	l := x.layers[b.Layer]
	if l == nil {
		return fmt.Errorf("%w: layer %d", moe.ErrNotHeld, b.Layer)
	}
	return l.part.Forward(ctx, b, out)
}

// Hidden returns how many values a row has; 0 if there are no layers.
func (x *Executor) Hidden() int { return x.hidden }
