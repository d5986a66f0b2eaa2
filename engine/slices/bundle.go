package slices

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"kvasir/engine/experts"
	"kvasir/engine/gguf"
	"kvasir/wire"
)

// Bundle is the weights of a slice, ready to be loaded. While it is open the cache keeps its file.
type Bundle struct {
	Slice wire.Slice

	head *head
	data func(expert, tensor int) []byte // expert of the bundle, from 0
	// identity is equal for bundles of the same weights: a hash, or a model file.
	identity any
	forget   func([]byte)
	mapping  *gguf.Mapping // nil: of a model file
	file     *gguf.File    // nil: of a cache
	checked  []atomic.Bool // experts that have been compared with their hash; nil: nothing to compare
	damaged  func()        // tells the cache that the file is to be looked at; may be nil

	mu     sync.Mutex
	kept   bool   // an executor computes on its bytes; under mu
	unpin  func() // lets the cache remove the file; may be nil; under mu
	closed bool   // under mu
}

// FromFile takes a slice from a model file, without a copy. If the slice has a hash, the weights are
// compared with it; if not, who asked has compared the hash of the whole model. The file must stay open
// until the bundle is loaded, and for formats that are not repacked as long as the executor is used.
func FromFile(f *gguf.File, s wire.Slice) (*Bundle, error) {
	list, err := experts.Slices(f)
	if err != nil {
		return nil, err
	}
	for _, l := range list {
		if l.Layer != s.Layer {
			continue
		}
		if s.Lo < 0 || s.Lo >= s.Hi || s.Hi > l.Experts {
			return nil, fmt.Errorf("%w: %s of a layer with %d in %s", ErrOther, name(s), l.Experts, f.Name)
		}
		shape := l.Shape()
		if err := shape.Check(); err != nil {
			return nil, fmt.Errorf("%s of %s: %w", name(s), f.Name, err)
		}
		if !s.Hash.IsZero() && hashFile(f, l, s) != s.Hash {
			return nil, fmt.Errorf("%w: %s of %s are not those that were assigned", ErrOther, name(s), f.Name)
		}
		return &Bundle{
			Slice:    s,
			head:     newHead(s.Layer, s.Lo, s.Hi, shape, nil),
			data:     func(expert, tensor int) []byte { return expertData(l.Tensors[tensor], s.Lo+expert) },
			identity: f,
			forget:   f.Forget,
			file:     f,
		}, nil
	}
	return nil, fmt.Errorf("%w: layer %d has no experts in %s", ErrOther, s.Layer, f.Name)
}

// hashFile is the hash of experts of a layer of f.
func hashFile(f *gguf.File, l *experts.Slice, s wire.Slice) wire.Hash {
	hashes := make([]experts.Hash, s.Hi-s.Lo)
	each(len(hashes), func(i int) { hashes[i] = l.HashExpert(f, s.Lo+i) })
	return wire.Hash(experts.HashSlice(s.Layer, hashes))
}

// openBundle maps a whole bundle. Its head has the hash of s; its experts are compared with theirs when
// they are used.
func openBundle(path string, s wire.Slice) (*Bundle, error) {
	m, err := gguf.Map(path)
	if err != nil {
		return nil, err
	}
	h, err := parseHead(m.Bytes())
	if err == nil && (h.hash() != s.Hash || h.size() != int64(len(m.Bytes()))) {
		err = errors.New("the head is of another slice")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s: %w", ErrDamaged, name(s), err), m.Close())
	}
	b := m.Bytes()
	return &Bundle{
		Slice: s,
		head:  h,
		data: func(expert, tensor int) []byte {
			p := h.places[tensor]
			at := h.expert(expert) + p.offset
			return b[at : at+p.size : at+p.size]
		},
		identity: s.Hash,
		forget:   m.Forget,
		mapping:  m,
		checked:  make([]atomic.Bool, h.count()),
	}, nil
}

// Bytes is how much there is of the weights.
func (b *Bundle) Bytes() int64 { return b.head.size() - b.head.length }

// Memory is how much memory the slice takes when it is loaded.
func (b *Bundle) Memory() int64 { return int64(b.head.count()) * b.head.shape.Memory() }

// expert returns the tensors of expert i of the bundle, compared with their hash.
func (b *Bundle) expert(i int) ([][]byte, error) {
	data := make([][]byte, len(b.head.shape))
	for t := range data {
		data[t] = b.data(i, t)
	}
	if b.checked == nil || b.checked[i].Load() {
		return data, nil
	}
	if !b.head.right(i, data) {
		if b.damaged != nil {
			b.damaged()
		}
		return nil, fmt.Errorf("%w: expert %d of layer %d", ErrDamaged, b.Slice.Lo+i, b.Slice.Layer)
	}
	b.checked[i].Store(true)
	return data, nil
}

// right reports whether data is expert i of the bundle.
func (h *head) right(i int, data [][]byte) bool {
	sums := make([]experts.Hash, len(data))
	for t := range data {
		sums[t] = sha256.Sum256(data[t])
	}
	return h.shape.Hash(sums) == h.hashes[i]
}

// rightBytes is right for the bytes of an expert as they stand in the bundle: what is between the tensors
// must be 0.
func (h *head) rightBytes(i int, b []byte) bool {
	data := make([][]byte, len(h.places))
	var zeros [align]byte
	for t, p := range h.places {
		end := p.offset + p.size
		data[t] = b[p.offset:end]
		if rest := b[end:alignUp(end)]; !bytes.Equal(rest, zeros[:len(rest)]) {
			return false
		}
	}
	return h.right(i, data)
}

// hold returns what must be referred to as long as the bundle's bytes are used.
func (b *Bundle) hold() any {
	if b.mapping != nil {
		return b.mapping
	}
	return b.file
}

// keep says that an executor computes on the bundle's bytes.
func (b *Bundle) keep() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = true
}

// Close lets go of the weights. Executors that were loaded from them stay good; for formats that are not
// repacked they keep the memory, and the file in the cache, until they are garbage.
func (b *Bundle) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.closed = true
	unpin := b.unpin
	if unpin == nil {
		unpin = func() {}
	}
	if b.mapping == nil {
		unpin()
		return nil
	}
	if b.kept {
		runtime.AddCleanup(b.mapping, func(unpin func()) { unpin() }, unpin)
		b.mapping = nil
		return nil
	}
	err := b.mapping.Close()
	unpin()
	return err
}
