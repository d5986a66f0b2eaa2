package slices

import (
	"context"

	"kvasir/engine/experts"
)

// Weights is the experts' bytes of a model file that is elsewhere. It is safe for concurrent use.
type Weights interface {
	// ReadExperts fills dst with bytes of a tensor of a layer, from byte off of an expert on; they may
	// go on into the experts after it. A tensor that is not there, or is another, is ErrOther.
	ReadExperts(ctx context.Context, at Span, dst []byte) error
}

// Span is where bytes of experts begin.
type Span struct {
	Layer  int
	Tensor experts.Tensor
	Expert int   // of the layer
	Off    int64 // in the expert's bytes of the tensor
}

// remoteUnits returns what is to be asked of Weights. In a model file a tensor has the experts one after
// the other, so a run of missing experts is as many runs of bytes as there are tensors. They are taken by
// groups of experts, so that experts become complete on the way.
func (g *fetch) remoteUnits() func() (unit, bool) {
	h := g.head
	most := max(1, int(weightsUnit/h.stride)) // experts of a group
	first, last := 0, 0                       // the group
	tensor, off := len(h.shape), int64(0)
	return func() (unit, bool) {
		if tensor == len(h.shape) {
			for first = last; first < h.count() && g.right[first]; {
				first++
			}
			if first == h.count() {
				last = first
				return unit{}, false
			}
			for last = first; last < h.count() && !g.right[last] && last-first < most; {
				last++
			}
			tensor = 0
		}
		size := h.places[tensor].size
		all := size * int64(last-first)
		u := unit{
			size: int(min(weightsUnit, all-off)), tensor: tensor,
			first: first + int(off/size), off: off % size,
		}
		if off += int64(u.size); off == all {
			tensor, off = tensor+1, 0
		}
		return u, true
	}
}

// doRemote fetches a unit from Weights and writes it where it belongs.
func (g *fetch) doRemote(ctx context.Context, u unit, b []byte) error {
	h, p := g.head, g.head.places[u.tensor]
	span := Span{Layer: g.slice.Layer, Tensor: h.shape[u.tensor], Expert: g.slice.Lo + u.first, Off: u.off}
	if err := g.options.Weights.ReadExperts(ctx, span, b); err != nil {
		return err
	}
	g.count(int64(len(b)))
	i, off := u.first, u.off
	for len(b) > 0 {
		n := min(p.size-off, int64(len(b)))
		at := h.expert(i) + p.offset + off
		if _, err := g.file.WriteAt(b[:n], at); err != nil {
			return err
		}
		zeros := int64(0)
		if off+n == p.size {
			zeros = alignUp(p.size) - p.size
			if _, err := g.file.WriteAt(make([]byte, zeros), at+n); err != nil {
				return err
			}
		}
		if err := g.arrived(i, n+zeros); err != nil {
			return err
		}
		b, i, off = b[n:], i+1, 0
	}
	return nil
}
