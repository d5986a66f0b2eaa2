package slices

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/internal/moe"
	"kvasir/wire"
)

// maxOffers bounds the slices that a Source remembers: a placement that changes for ever must not fill
// the memory. The oldest is forgotten, and known again when Slice is asked for it.
const maxOffers = 1 << 16

// Source serves bundles out of a model file, and is safe for concurrent use. It serves the slices that
// Slice was asked for, and no others: the hashes of their experts are known then. The file must stay open
// and unchanged.
type Source struct {
	file   *gguf.File
	layers []*sourceLayer // by layer; nil where there are no routed experts
	keep   keeper

	mu     sync.Mutex
	offers map[wire.Hash]offer // what may be read; under mu
	order  []wire.Hash         // of offers, oldest first; under mu
}

// offer is a slice that may be read.
type offer struct{ layer, lo, hi int }

// sourceLayer is the experts of a layer.
type sourceLayer struct {
	slice *experts.Slice
	shape experts.Shape

	turn   chan struct{}  // holds a token while hashes are made, or looked at
	hashes []experts.Hash // nil until they are asked for; under turn, and not changed once it is set
}

// NewSource returns a source for the first layers layers of f.
func NewSource(f *gguf.File, layers int) (*Source, error) {
	list, err := experts.Slices(f)
	if err != nil {
		return nil, err
	}
	if layers < 1 || layers > moe.MaxLayers {
		return nil, fmt.Errorf("%d layers, want 1 to %d", layers, moe.MaxLayers)
	}
	s := &Source{file: f, layers: make([]*sourceLayer, layers), offers: map[wire.Hash]offer{}}
	for _, l := range list {
		if l.Layer >= layers {
			continue
		}
		shape := l.Shape()
		if err := shape.Check(); err != nil {
			return nil, fmt.Errorf("layer %d: %w", l.Layer, err)
		}
		s.layers[l.Layer] = &sourceLayer{slice: l, shape: shape, turn: make(chan struct{}, 1)}
	}
	return s, nil
}

// layer returns a layer that has routed experts.
func (s *Source) layer(n int) (*sourceLayer, error) {
	if n < 0 || n >= len(s.layers) || s.layers[n] == nil {
		return nil, fmt.Errorf("%w: layer %d has no experts in %s", moe.ErrNotHeld, n, s.file.Name)
	}
	return s.layers[n], nil
}

// ExpertBytes returns how much memory one expert of a layer takes when it is ready to be computed on; 0 if
// there is none.
func (s *Source) ExpertBytes(layer int) int64 {
	l, err := s.layer(layer)
	if err != nil {
		return 0
	}
	return l.shape.Memory()
}

// Slice returns experts lo to hi-1 of a layer with their hash, which may be read from then on. The first
// time that a layer is asked for its experts are hashed, by all threads, which takes about a second a
// GB; KeepIn spares that after a restart. It returns soon after ctx has ended.
func (s *Source) Slice(ctx context.Context, layer, lo, hi int) (wire.Slice, error) {
	l, err := s.layer(layer)
	if err != nil {
		return wire.Slice{}, err
	}
	if lo < 0 || lo >= hi || hi > l.slice.Experts {
		return wire.Slice{}, fmt.Errorf("%w: experts from %d to before %d of layer %d, which has %d",
			moe.ErrNotHeld, lo, hi, layer, l.slice.Experts)
	}
	hashes, made, err := l.hash(ctx, s.file)
	if err != nil {
		return wire.Slice{}, fmt.Errorf("hash the experts of layer %d: %w", layer, err)
	}
	if made {
		s.keep.put(layer, hashes)
	}
	h := wire.Hash(experts.HashSlice(layer, hashes[lo:hi]))
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.offers[h]; !there {
		if len(s.order) == maxOffers {
			delete(s.offers, s.order[0])
			s.order = append(s.order[:0], s.order[1:]...)
		}
		s.order = append(s.order, h)
		s.offers[h] = offer{layer, lo, hi}
	}
	return wire.Slice{Layer: layer, Lo: lo, Hi: hi, Hash: h}, nil
}

// hash returns the hashes of all experts of the layer, and whether they were made now.
func (l *sourceLayer) hash(ctx context.Context, f *gguf.File) (list []experts.Hash, made bool, err error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
	defer func() { <-l.turn }()
	if l.hashes != nil {
		return l.hashes, false, nil
	}
	list = make([]experts.Hash, l.slice.Experts)
	each(len(list), func(i int) {
		if ctx.Err() == nil {
			list[i] = l.slice.HashExpert(f, i)
		}
	})
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	l.hashes = list
	return list, true, nil
}

// each calls do with 0 to n-1, on as many goroutines as there are processors, and returns when all are
// done.
func each(n int, do func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	wg.Wait()
}

// Read fills dst with bytes of a slice's bundle from off on, and returns how many, and how long the bundle
// is: a link.SliceReader. A slice that was not asked for by Slice is moe.ErrNotHeld.
func (s *Source) Read(ctx context.Context, h wire.Hash, off uint64, dst []byte) (n int, size uint64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, 0, err
	}
	s.mu.Lock()
	o, there := s.offers[h]
	s.mu.Unlock()
	if !there {
		return 0, 0, fmt.Errorf("%w: slice %s", moe.ErrNotHeld, h)
	}
	l := s.layers[o.layer]
	hashes, _, err := l.hash(ctx, s.file) // they are there
	if err != nil {
		return 0, 0, err
	}
	head := newHead(o.layer, o.lo, o.hi, l.shape, hashes[o.lo:o.hi])
	size = uint64(head.size())
	if off >= size {
		return 0, size, nil
	}
	dst = dst[:min(uint64(len(dst)), size-off)]
	at, end := int64(off), int64(off)+int64(len(dst))
	if at < head.length {
		n = copy(dst, head.bytes()[at:])
		at += int64(n)
	}
	head.walk(at, end, func(expert, tensor int, from, count int64) {
		to := dst[n : n+int(count)]
		n += int(count)
		if tensor < 0 {
			clear(to)
			return
		}
		data := expertData(l.slice.Tensors[tensor], o.lo+expert)[from : from+count]
		copy(to, data)
		s.file.Forget(data)
	})
	return n, size, nil
}

// expertData is the bytes of one expert of a tensor.
func expertData(t *gguf.Tensor, expert int) []byte {
	size := len(t.Data) / t.Dims[2]
	return t.Data[expert*size : (expert+1)*size : (expert+1)*size]
}
