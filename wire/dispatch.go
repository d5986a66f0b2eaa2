package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"kvasir/internal/moe"
)

const (
	dispatchLen = 64
	pickLen     = 6 // a weight and an expert
)

// layout is where the arrays of a Dispatch begin within its payload.
type layout struct {
	values, scales, weights, experts, counts, end int
}

// layoutOf returns the layout of a Dispatch. Shape, rows and picks are within their limits.
func layoutOf(s moe.Shape, rows, picks int) layout {
	at := layout{values: dispatchLen}
	if s.Format == moe.RowF32 {
		at.scales = at.values + 4*rows*s.Hidden
		at.weights = at.scales
	} else {
		at.scales = alignUp(at.values + rows*s.Hidden)
		at.weights = at.scales + 4*rows*s.Format.Scales(s.Hidden)
	}
	at.experts = at.weights + 4*picks
	at.counts = at.experts + 2*picks
	at.end = at.counts + rows
	return at
}

// DispatchSize returns the bytes of the payload of a Dispatch.
func DispatchSize(s moe.Shape, rows, picks int) int { return layoutOf(s, rows, picks).end }

// CheckBatch returns an error, wrapping moe.ErrInvalid, unless b can be sent.
func CheckBatch(b *moe.Batch) error { return b.ValidateShape(moe.MaxExperts) }

// AppendDispatch appends the payload of a Dispatch to dst. b is one that CheckBatch accepts: the
// caller's promise.
//
//	0   4   epoch: of the last Assign that is Ready, or 0
//	4   4   layer
//	8   4   rows, 1 to 4,096
//	12  4   hidden size, 1 to 32,768
//	16  4   picks of all rows together
//	20  1   row format: 0 F32, 1 Q8K, 2 Q8
//	21  43  reserved
//	64      values, row by row: int8, none of them -128; F32: float32
//	…       Q8K and Q8: zeros up to a multiple of 64, then float32 scales, row by row, one for each 256
//	        or 32 values, of which the last may be fewer
//	…   4   each pick, row by row: float32 weight
//	…   2   each pick, row by row: expert, below 4,096
//	…   1   each row: number of its picks, 1 to 64
//
// So in a payload that is 64-byte aligned, rows and scales are as well.
func AppendDispatch(dst []byte, epoch uint32, b *moe.Batch) []byte {
	n, size := len(dst), DispatchSize(b.Shape, b.Rows, len(b.Expert))
	dst = grow(dst, size)
	CopyDispatch(dst[n:], 0, epoch, b)
	return dst
}

// grow returns dst with n more bytes of any content.
func grow(dst []byte, n int) []byte {
	if cap(dst)-len(dst) < n {
		dst = append(make([]byte, 0, len(dst)+n), dst...)
	}
	return dst[:len(dst)+n]
}

// CopyDispatch fills dst with the bytes from off on of the payload that AppendDispatch makes, so that a
// batch goes from its slab into a chunk without a copy of the message between. Offset and, but for the
// last piece, length are multiples of four: no number is cut.
func CopyDispatch(dst []byte, off int, epoch uint32, b *moe.Batch) {
	at := layoutOf(b.Shape, b.Rows, len(b.Expert))
	end := off + len(dst)
	if off%4 != 0 || end > at.end || end != at.end && end%4 != 0 {
		panic(fmt.Sprintf("BUG: bytes %d to %d of a dispatch of %d", off, end, at.end))
	}
	// piece returns the part of dst that is within an array, and where in the array it begins.
	piece := func(from, to int) (p []byte, skip int) {
		lo, hi := max(off, from), min(end, to)
		if lo >= hi {
			return nil, 0
		}
		return dst[lo-off : hi-off], lo - from
	}
	if p, skip := piece(0, dispatchLen); p != nil {
		var head [dispatchLen]byte
		putDispatchHead(&head, epoch, b)
		copy(p, head[skip:])
	}
	if b.Format == moe.RowF32 {
		if p, skip := piece(at.values, at.scales); p != nil {
			putRows(p, b, skip, 4*b.Hidden, putRowFloats)
		}
	} else {
		values := at.values + b.Rows*b.Hidden
		if p, skip := piece(at.values, values); p != nil {
			putRows(p, b, skip, b.Hidden, putRowInt8s)
		}
		if p, _ := piece(values, at.scales); p != nil {
			clear(p)
		}
		if p, skip := piece(at.scales, at.weights); p != nil {
			putRows(p, b, skip, 4*b.Format.Scales(b.Hidden), putRowScales)
		}
	}
	if p, skip := piece(at.weights, at.experts); p != nil {
		putFloats(p, b.Weight[skip/4:])
	}
	if p, skip := piece(at.experts, at.counts); p != nil {
		putUint16s(p, b.Expert[skip/2:])
	}
	if p, skip := piece(at.counts, at.end); p != nil {
		for i := range p {
			p[i] = byte(b.First[skip+i+1] - b.First[skip+i])
		}
	}
}

// putRows fills dst with what put makes of the rows of b, size bytes each, from byte skip on. Zeros stand for a
// row whose caller has left.
func putRows(dst []byte, b *moe.Batch, skip, size int, put func(dst []byte, row moe.Row, skip int)) {
	for r := skip / size; len(dst) > 0; r++ {
		skip %= size
		p := dst[:min(len(dst), size-skip)]
		if row, ok := b.Hold(r); ok {
			put(p, row, skip)
			b.Let(r)
		} else {
			clear(p)
		}
		dst, skip = dst[len(p):], 0
	}
}

func putRowInt8s(dst []byte, row moe.Row, skip int)  { putInt8s(dst, row.Q[skip:]) }
func putRowScales(dst []byte, row moe.Row, skip int) { putFloats(dst, row.Scales[skip/4:]) }
func putRowFloats(dst []byte, row moe.Row, skip int) { putFloats(dst, row.F[skip/4:]) }

func putDispatchHead(p *[dispatchLen]byte, epoch uint32, b *moe.Batch) {
	binary.LittleEndian.PutUint32(p[0:], epoch)
	binary.LittleEndian.PutUint32(p[4:], uint32(b.Layer))
	binary.LittleEndian.PutUint32(p[8:], uint32(b.Rows))
	binary.LittleEndian.PutUint32(p[12:], uint32(b.Hidden))
	binary.LittleEndian.PutUint32(p[16:], uint32(len(b.Expert)))
	p[20] = byte(b.Format)
}

// What follows copies bytes where numbers lie in memory as they travel, at the speed of a copy: a loop over
// the values of a chunk takes twelve times as long.

func putInt8s(dst []byte, src []int8) {
	raw, _ := moe.Bytes(src[:len(dst)]) // of one byte there is one order
	copy(dst, raw)
}

func putFloats(dst []byte, src []float32) {
	src = src[:len(dst)/4]
	if raw, ok := moe.Bytes(src); ok {
		copy(dst, raw)
		return
	}
	for _, v := range src {
		binary.LittleEndian.PutUint32(dst, math.Float32bits(v))
		dst = dst[4:]
	}
}

func putUint16s(dst []byte, src []uint16) {
	src = src[:len(dst)/2]
	if raw, ok := moe.Bytes(src); ok {
		copy(dst, raw)
		return
	}
	for _, e := range src {
		binary.LittleEndian.PutUint16(dst, e)
		dst = dst[2:]
	}
}

// DispatchHead is what a Dispatch claims about itself.
type DispatchHead struct {
	Epoch uint32
	moe.Shape
	Rows, Picks int
}

// ParseDispatchHead reads the head of a Dispatch and checks all its claims against the length of the
// payload. A batch with room for Rows and Picks of the Shape can then be filled by ParseDispatch.
func ParseDispatchHead(p []byte) (h DispatchHead, err error) {
	const t = TypeDispatch
	if err := checkLen(t, p); err != nil {
		return h, err
	}
	layer, rows := binary.LittleEndian.Uint32(p[4:]), binary.LittleEndian.Uint32(p[8:])
	hidden, picks := binary.LittleEndian.Uint32(p[12:]), binary.LittleEndian.Uint32(p[16:])
	for _, f := range []struct {
		what   string
		n      uint32
		lo, hi uint64
	}{
		{"layer", layer, 0, moe.MaxLayers - 1},
		{"rows", rows, 1, moe.MaxRows},
		{"hidden size", hidden, 1, moe.MaxHidden},
		{"picks", picks, uint64(rows), uint64(rows) * moe.MaxTopK},
		{"row format", uint32(p[20]), 0, uint64(moe.RowQ8)},
	} {
		if err := checkCount(t, f.what, uint64(f.n), f.lo, f.hi); err != nil {
			return h, err
		}
	}
	h = DispatchHead{
		Epoch: binary.LittleEndian.Uint32(p),
		Shape: moe.Shape{Layer: int(layer), Hidden: int(hidden), Format: moe.RowFormat(p[20])},
		Rows:  int(rows),
		Picks: int(picks),
	}
	if want := DispatchSize(h.Shape, h.Rows, h.Picks); len(p) != want {
		return h, payload(t, "%d bytes for %d %s rows of %d with %d picks, want %d",
			len(p), h.Rows, h.Format, h.Hidden, h.Picks, want)
	}
	return h, checkZero(t, p[21:dispatchLen], 21)
}

// ParseDispatch fills b from the payload of a Dispatch. b has the shape and the room that the head asks
// for, or more: the caller's promise. What it holds afterwards keeps all invariants of a Batch, for a
// layer of moe.MaxExperts. After an error b is to be reset.
func ParseDispatch(b *moe.Batch, p []byte) (epoch uint32, err error) {
	h, err := ParseDispatchHead(p)
	if err != nil {
		return 0, err
	}
	if b.Format != h.Format || b.Hidden != h.Hidden {
		panic(fmt.Sprintf("BUG: %s rows of %d parsed into a batch of %s rows of %d", h.Format, h.Hidden, b.Format, b.Hidden))
	}
	at := layoutOf(h.Shape, h.Rows, h.Picks)
	b.Reset(h.Layer)
	b.Rows = h.Rows
	b.Weight, b.Expert, b.First = b.Weight[:h.Picks], b.Expert[:h.Picks], b.First[:h.Rows+1]
	if h.Format == moe.RowF32 {
		b.F = b.F[:h.Rows*h.Hidden]
		floats(b.F, p[at.values:])
	} else {
		b.Q, b.Scales = b.Q[:h.Rows*h.Hidden], b.Scales[:h.Rows*h.Format.Scales(h.Hidden)]
		if err := h.checkValues(p, at, int8s(b.Q, p[at.values:])); err != nil {
			return 0, err
		}
		floats(b.Scales, p[at.scales:])
	}
	floats(b.Weight, p[at.weights:])
	for i := range b.Expert {
		b.Expert[i] = binary.LittleEndian.Uint16(p[at.experts+2*i:])
	}
	return h.Epoch, h.checkPicks(b, p[at.counts:])
}

// ViewDispatch is ParseDispatch without a copy: the arrays of b, but for First, become views of p, which
// is to stay as it is as long as b is used. They begin at multiples of 64 where p does, rows and scales
// at least. Where p does not begin at a multiple of four, or numbers have another order on this machine,
// b gets arrays of its own. After an error b holds nothing of use.
func ViewDispatch(b *moe.Batch, p []byte) (epoch uint32, err error) {
	h, err := ParseDispatchHead(p)
	if err != nil {
		return 0, err
	}
	at := layoutOf(h.Shape, h.Rows, h.Picks)
	v := moe.Batch{Shape: h.Shape, Rows: h.Rows, First: b.First}
	values, scales := p[at.values:at.scales], p[at.scales:at.weights]
	var ok, more, most bool
	if h.Format == moe.RowF32 {
		v.F, ok = moe.View[float32](values)
	} else {
		v.Q, _ = moe.View[int8](values[:h.Rows*h.Hidden])
		v.Scales, ok = moe.View[float32](scales)
	}
	v.Weight, more = moe.View[float32](p[at.weights:at.experts])
	v.Expert, most = moe.View[uint16](p[at.experts:at.counts])
	if !ok || !more || !most {
		own, err := moe.NewBatch(h.Shape, h.Rows, h.Picks)
		if err != nil {
			return 0, err
		}
		*b = *own
		return ParseDispatch(b, p)
	}
	if h.Format != moe.RowF32 {
		if err := h.checkValues(p, at, bytes.IndexByte(values[:h.Rows*h.Hidden], 0x80)); err != nil {
			return 0, err
		}
	}
	if cap(v.First) < h.Rows+1 {
		v.First = make([]int32, h.Rows+1)
	}
	v.First = v.First[:h.Rows+1]
	*b = v
	return h.Epoch, h.checkPicks(b, p[at.counts:])
}

// checkValues refuses the value at index bad, if it is not negative, and what stands in the gap behind
// the values.
func (h *DispatchHead) checkValues(p []byte, at layout, bad int) error {
	const t = TypeDispatch
	if bad >= 0 {
		return payload(t, "row %d, value %d is -128, want -127 to 127", bad/h.Hidden, bad%h.Hidden)
	}
	gap := at.values + h.Rows*h.Hidden
	return checkZero(t, p[gap:at.scales], gap)
}

// checkPicks checks the experts of b and makes First of the counts.
func (h *DispatchHead) checkPicks(b *moe.Batch, counts []byte) error {
	const t = TypeDispatch
	for i, e := range b.Expert {
		if e >= moe.MaxExperts {
			return payload(t, "pick %d asks for expert %d, want below %d", i, e, moe.MaxExperts)
		}
	}
	b.First[0] = 0
	for r, n := range counts {
		if n < 1 || n > moe.MaxTopK {
			return payload(t, "row %d has %d picks, want 1 to %d", r, n, moe.MaxTopK)
		}
		b.First[r+1] = b.First[r] + int32(n)
	}
	if sum := int(b.First[h.Rows]); sum != h.Picks {
		return payload(t, "the rows have %d picks together, the head says %d", sum, h.Picks)
	}
	return nil
}

// int8s fills dst and returns the index of the first -128, or -1.
func int8s(dst []int8, src []byte) int {
	const low, high = 0x0101010101010101, 0x8080808080808080
	var bad uint64
	d, s := dst, src[:len(dst)]
	for len(d) >= 8 {
		v := binary.LittleEndian.Uint64(s)
		w := v ^ high // -128 becomes 0: then, and never without one, a byte's high bit is set below
		bad |= (w - low) & ^w & high
		o := (*[8]int8)(d)
		o[0], o[1], o[2], o[3] = int8(v), int8(v>>8), int8(v>>16), int8(v>>24)
		o[4], o[5], o[6], o[7] = int8(v>>32), int8(v>>40), int8(v>>48), int8(v>>56)
		d, s = d[8:], s[8:]
	}
	for i, v := range s {
		d[i] = int8(v)
		if v == 0x80 {
			bad = 1
		}
	}
	if bad == 0 {
		return -1
	}
	return slices.Index(dst, -128)
}

func floats(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src))
		src = src[4:]
	}
}
