package slices

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"kvasir/engine/experts"
	"kvasir/internal/moe"
	"kvasir/kernels/quant"
	"kvasir/wire"
)

const (
	headMagic  = "kvasir bundle 1\x00"
	fixedLen   = 32            // what comes before the tensors
	tensorLen  = 24            // a tensor without its name
	maxTensors = 3             // gate, up, down
	maxName    = 64            // bytes
	align      = moe.SlabAlign // of tensors within a bundle
	maxBundle  = 1 << 50       // bytes, far above any slice
	hashLen    = len(experts.Hash{})

	// maxHead bounds a head: that of moe.MaxExperts experts. One answer to a Fetch holds it.
	maxHead = fixedLen + maxTensors*(tensorLen+maxName) + moe.MaxExperts*len(experts.Hash{}) + align
)

// errShort: the head is longer than what is there of it.
var errShort = errors.New("cut short")

// head is what a bundle says of itself, and where its bytes stand.
type head struct {
	layer, lo, hi int
	shape         experts.Shape
	hashes        []experts.Hash // one an expert

	length int64   // bytes of the head
	places []place // of the tensors within an expert
	stride int64   // bytes an expert takes
}

// place is where a tensor stands.
type place struct{ offset, size int64 }

// newHead returns the head of experts lo to hi-1 of a layer.
func newHead(layer, lo, hi int, shape experts.Shape, hashes []experts.Hash) *head {
	h := &head{layer: layer, lo: lo, hi: hi, shape: shape, hashes: hashes}
	h.layOut()
	return h
}

// layOut sets places, from a shape that has been checked.
func (h *head) layOut() {
	n := fixedLen + hashLen*(h.hi-h.lo)
	for _, t := range h.shape {
		n += tensorLen + len(t.Name)
		size := int64(t.Bytes())
		h.places = append(h.places, place{h.stride, size})
		h.stride += alignUp(size)
	}
	h.length = alignUp(int64(n))
}

func alignUp(n int64) int64 { return (n + align - 1) &^ (align - 1) }

func (h *head) count() int { return h.hi - h.lo }

// size is that of the bundle.
func (h *head) size() int64 { return h.length + int64(h.count())*h.stride }

// expert is where number i of the bundle begins.
func (h *head) expert(i int) int64 { return h.length + int64(i)*h.stride }

// hash is that of the slice.
func (h *head) hash() wire.Hash { return wire.Hash(experts.HashSlice(h.layer, h.hashes)) }

// bytes returns the head's bytes.
func (h *head) bytes() []byte {
	b := append(make([]byte, 0, h.length), headMagic...)
	for _, n := range []int{h.layer, h.lo, h.hi, len(h.shape)} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	for _, t := range h.shape {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(t.Name)))
		b = append(b, t.Name...)
		b = binary.LittleEndian.AppendUint32(b, uint32(t.Format))
		b = binary.LittleEndian.AppendUint64(b, uint64(t.In))
		b = binary.LittleEndian.AppendUint64(b, uint64(t.Out))
	}
	for i := range h.hashes {
		b = append(b, h.hashes[i][:]...)
	}
	for int64(len(b)) < h.length {
		b = append(b, 0)
	}
	return b
}

// parseHead reads the head of a bundle, of which p is the beginning. It returns an error, wrapping
// ErrHead, for what breaks a rule, and errShort where p is shorter than the head.
func parseHead(p []byte) (*head, error) {
	h, rest, err := parseShape(p)
	if err != nil {
		return nil, err
	}
	n := h.count()
	if len(rest) < n*hashLen {
		return nil, errShort
	}
	h.hashes = make([]experts.Hash, n)
	for i := range h.hashes {
		h.hashes[i] = experts.Hash(rest[i*hashLen:])
	}
	h.layOut()
	if int64(len(p)) < h.length {
		return nil, errShort
	}
	if h.size() > maxBundle {
		return nil, fmt.Errorf("%w: a bundle of %d bytes", ErrHead, h.size())
	}
	if !bytes.Equal(h.bytes(), p[:h.length]) {
		return nil, fmt.Errorf("%w: bytes that mean nothing are not 0", ErrHead)
	}
	return h, nil
}

// parseShape reads what comes before the hashes.
func parseShape(p []byte) (*head, []byte, error) {
	if n := min(len(p), len(headMagic)); string(p[:n]) != headMagic[:n] {
		return nil, nil, fmt.Errorf("%w: it begins with % x", ErrHead, p[:n])
	}
	if len(p) < fixedLen {
		return nil, nil, errShort
	}
	var v [4]uint32
	for i := range v {
		v[i] = binary.LittleEndian.Uint32(p[len(headMagic)+4*i:])
	}
	if v[0] >= moe.MaxLayers || v[1] >= v[2] || v[2] > moe.MaxExperts {
		return nil, nil, fmt.Errorf("%w: experts from %d to before %d of layer %d", ErrHead, v[1], v[2], v[0])
	}
	if v[3] < 1 || v[3] > maxTensors {
		return nil, nil, fmt.Errorf("%w: %d tensors, want 1 to %d", ErrHead, v[3], maxTensors)
	}
	h := &head{layer: int(v[0]), lo: int(v[1]), hi: int(v[2]), shape: make(experts.Shape, v[3])}
	p = p[fixedLen:]
	for i := range h.shape {
		if len(p) < 4 {
			return nil, nil, errShort
		}
		n := binary.LittleEndian.Uint32(p)
		if n < 1 || n > maxName {
			return nil, nil, fmt.Errorf("%w: the name of a tensor has %d bytes", ErrHead, n)
		}
		if len(p) < tensorLen+int(n) {
			return nil, nil, errShort
		}
		t, f := &h.shape[i], p[4+n:]
		in, out := binary.LittleEndian.Uint64(f[4:]), binary.LittleEndian.Uint64(f[12:])
		if in > 1<<30 || out > 1<<30 {
			return nil, nil, fmt.Errorf("%w: a tensor of %d rows of %d values", ErrHead, out, in)
		}
		t.Name, t.In, t.Out = string(p[4:4+n]), int(in), int(out)
		t.Format = quant.Format(binary.LittleEndian.Uint32(f))
		p = f[20:]
	}
	if err := h.shape.Check(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrHead, err)
	}
	return h, p, nil
}

// walk calls do for each piece of the bundle's bytes from off to end, which stand behind the head: a
// tensor of an expert, from a byte of it on, or, where tensor is -1, zeros.
func (h *head) walk(off, end int64, do func(expert, tensor int, from, n int64)) {
	for off < end {
		expert := int((off - h.length) / h.stride)
		within := (off - h.length) % h.stride
		i := len(h.places) - 1
		for h.places[i].offset > within {
			i--
		}
		p, from := h.places[i], within-h.places[i].offset
		if from < p.size {
			n := min(p.size-from, end-off)
			do(expert, i, from, n)
			off += n
			continue
		}
		n := min(alignUp(p.size)-from, end-off)
		do(expert, -1, 0, n)
		off += n
	}
}
