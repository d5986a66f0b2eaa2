package matmul

import (
	"encoding/binary"
	"unsafe"

	"kvasir/kernels/quant"
	"kvasir/kernels/ref"
)

var le = binary.LittleEndian

// mxLeast is the smallest exponent byte of an MXFP4 block that is not a block of zeros.
const mxLeast = 80

// aligned reports whether b begins on a cache line.
func aligned(b []byte) bool {
	return len(b) == 0 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%64 == 0
}

// packPanel lays out rows first to first+15 of m in dst. Rows beyond the last are zeros.
func packPanel(p *Packed, dst []byte, m *ref.Matrix, first int) {
	_, size := m.Format.Block()
	row := p.blocks * size
	if m.Out-first < PanelRows {
		clear(dst)
	}
	for o := range min(PanelRows, m.Out-first) {
		src := m.Data[(first+o)*row:][:row]
		for k := range p.blocks {
			packBlock(dst[k*p.layout.bytes:][:p.layout.bytes], src[k*size:][:size], m.Format, o)
		}
	}
}

// packBlock puts a block of the file into place o of a block of a panel.
func packBlock(dst, src []byte, f quant.Format, o int) {
	switch f {
	case quant.Q4K:
		spread(dst, src[16:144], o)
		packScales(dst[q4Scale:], src[:16], o)
	case quant.Q5K:
		spread(dst, src[48:176], o)
		spread(dst[q5High:], src[16:48], o)
		packScales(dst[q5Scale:], src[:16], o)
	case quant.Q6K:
		spread(dst, src[:192], o)
		for j, sc := range src[192:208] {
			dst[q6Scale+PanelRows*j+o] = sc
		}
		copy(dst[q6D+2*o:][:2], src[208:])
	case quant.Q8_0:
		spread(dst, src[2:34], o)
		copy(dst[q8D+2*o:][:2], src)
	default: // MXFP4
		spread(dst, src[1:17], o)
		dst[mxScale+o] = 0
		if e := src[0]; e >= mxLeast {
			dst[mxScale+o] = e - 1
		}
	}
}

// spread puts the words of src, four bytes each, into place o of one line after another.
func spread(dst, src []byte, o int) {
	for i := 0; i < len(src); i += 4 {
		le.PutUint32(dst[i*PanelRows+4*o:], le.Uint32(src[i:]))
	}
}

// packScales puts the head of a Q4_K or Q5_K block, whose fields quant.DecodeK describes, behind the
// values: scales as bytes, minimums in pairs, d and dmin as they are.
func packScales(dst, head []byte, o int) {
	p := head[4:16]
	for j := range 4 {
		dst[PanelRows*j+o] = p[j] & 63
		dst[PanelRows*(j+4)+o] = p[j+8]&15 | p[j]>>6<<4
		mins := dst[q4Min-q4Scale:]
		low, high := p[j+4]&63, p[j+8]>>4|p[j+4]>>6<<4
		mins[2*PanelRows*(j/2)+2*o+j%2] = low
		mins[2*PanelRows*(2+j/2)+2*o+j%2] = high
	}
	copy(dst[q4D-q4Scale+2*o:][:2], head)
	copy(dst[q4DMin-q4Scale+2*o:][:2], head[2:])
}
