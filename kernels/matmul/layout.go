package matmul

import (
	"errors"
	"fmt"
	"math"

	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

// PanelRows is how many rows of weights are laid out together.
const PanelRows = 16

// ErrFormat: the weights are in a format that is not repacked.
var ErrFormat = errors.New("matmul: format is not repacked")

// layout is how one block of a panel is laid out: 256 values a row in a K-quant, 32 in the others.
type layout struct {
	values int // of one row in a block
	bytes  int // of one block of a panel, a multiple of 16
}

// Offsets in a block of a panel. A line is 64 bytes: 16 rows x 4 bytes, row by row.
//
//	Q4_K  32 lines of nibbles; line 8r + g has bytes 32r+4g to 32r+4g+3 of each row's nibbles: the low
//	      halves are values 4g… of sub-block 2r, the high halves those of sub-block 2r+1
//	      8 x 16 scales, by sub-block; 4 x 16 pairs of minimums, of sub-blocks 2p and 2p+1
//	      16 d, 16 dmin, binary16
//	Q5_K  the nibbles; 8 lines of fifth bits, line g: bit j belongs to values 4g… of sub-block j;
//	      scales, minimums, d, dmin as in Q4_K
//	Q6_K  32 lines of low nibbles: line 16h + 8k + g has bytes 64h+32k+4g… of each row's nibbles; the
//	      low halves are values 4g… of sub-block 4h+k, the high halves those of sub-block 4h+k+2
//	      16 lines of upper bits: line 8h + g; bit pair j belongs to values 4g… of sub-block 4h+j
//	      16 x 16 scales, by 16 values; 16 d, binary16; 32 bytes of nothing
//	Q8_0  8 lines: line g has values 4g…; 16 d, binary16
//	MXFP4 4 lines of nibbles: the low halves of line g are values 4g…, the high halves values 16+4g…
//	      16 bytes s; half the scale of a row is float32 with the bits s << 23
const (
	line = 4 * PanelRows

	q4Scale = 32 * line
	q4Min   = q4Scale + 8*PanelRows
	q4D     = q4Min + 8*PanelRows
	q4DMin  = q4D + 2*PanelRows
	q4Bytes = q4DMin + 2*PanelRows

	q5High  = 32 * line
	q5Scale = q5High + 8*line
	q5Min   = q5Scale + 8*PanelRows
	q5D     = q5Min + 8*PanelRows
	q5DMin  = q5D + 2*PanelRows
	q5Bytes = q5DMin + 2*PanelRows

	q6High  = 32 * line
	q6Scale = q6High + 16*line
	q6D     = q6Scale + 16*PanelRows
	q6Bytes = q6D + 4*PanelRows

	q8D     = 8 * line
	q8Bytes = q8D + 2*PanelRows

	mxScale = 4 * line
	mxBytes = mxScale + PanelRows
)

// layoutOf returns the layout of f; ok is false where f is not repacked.
func layoutOf(f quant.Format) (l layout, ok bool) {
	switch f {
	case quant.Q4K:
		return layout{256, q4Bytes}, true
	case quant.Q5K:
		return layout{256, q5Bytes}, true
	case quant.Q6K:
		return layout{256, q6Bytes}, true
	case quant.Q8_0:
		return layout{32, q8Bytes}, true
	case quant.MXFP4:
		return layout{32, mxBytes}, true
	}
	return layout{}, false
}

// Packs reports whether weights of f are repacked for the tiles. The others are computed on as they are
// in the file.
func Packs(f quant.Format) bool {
	_, ok := layoutOf(f)
	return ok
}

// Packed is a matrix y = W x, laid out for the tiles: panels of 16 rows, the last filled up with rows of
// zeros. It does not change.
type Packed struct {
	Format  quant.Format
	In, Out int
	layout  layout
	blocks  int    // of a panel
	data    []byte // Panels x blocks x layout.bytes
}

// Panels returns how many panels m has.
func (m *Packed) Panels() int { return (m.Out + PanelRows - 1) / PanelRows }

// panel returns the bytes of a panel.
func (m *Packed) panel(p int) []byte {
	return m.Bytes(p, p+1)
}

// Bytes returns the bytes of panels lo to hi-1.
func (m *Packed) Bytes(lo, hi int) []byte {
	n := m.blocks * m.layout.bytes
	return m.data[lo*n : hi*n : hi*n]
}

// PackedBytes returns how many bytes a matrix takes when it is repacked, or an error, wrapping ErrFormat
// or quant.ErrLength, that says why it cannot be.
func PackedBytes(f quant.Format, in, out int) (int, error) {
	l, ok := layoutOf(f)
	if !ok {
		return 0, fmt.Errorf("%w: %s", ErrFormat, f)
	}
	if in < 1 || out < 1 || in%l.values != 0 {
		return 0, fmt.Errorf("%w: %d rows of %d weights in %s, want rows of a multiple of %d",
			quant.ErrLength, out, in, f, l.values)
	}
	panels, blocks := (out-1)/PanelRows+1, in/l.values
	if blocks > math.MaxInt/l.bytes/panels {
		return 0, fmt.Errorf("%w: %d rows of %d weights in %s have more bytes than can be addressed",
			quant.ErrLength, out, in, f)
	}
	return panels * blocks * l.bytes, nil
}

// Pack lays m out in dst, which has PackedBytes bytes at an address that is a multiple of 64. It keeps dst
// and not the bytes of m. The error says what does not fit: the format, the sizes, or a block that
// quant.Check refuses.
func Pack(dst []byte, m *ref.Matrix) (Packed, error) {
	size, err := PackedBytes(m.Format, m.In, m.Out)
	if err != nil {
		return Packed{}, err
	}
	if _, err := ref.NewMatrix(m.Format, m.In, m.Out, m.Data); err != nil {
		return Packed{}, err
	}
	if err := quant.Check(m.Format, m.Data); err != nil {
		return Packed{}, err
	}
	if len(dst) != size || !aligned(dst) {
		return Packed{}, fmt.Errorf("%w: %d bytes to repack %d rows of %d weights in %s into, want %d, aligned to 64",
			quant.ErrLength, len(dst), m.Out, m.In, m.Format, size)
	}
	l, _ := layoutOf(m.Format)
	p := Packed{Format: m.Format, In: m.In, Out: m.Out, layout: l, blocks: m.In / l.values, data: dst}
	for i := range p.Panels() {
		packPanel(&p, p.panel(i), m, i*PanelRows)
	}
	return p, nil
}
