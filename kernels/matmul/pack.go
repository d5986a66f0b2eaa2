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

// blocks16 is the same block of 16 rows.
type blocks16 [PanelRows][]byte

// nothing stands for the blocks of rows beyond the last. All formats read it as zeros.
var nothing [256]byte

// packPanel lays out rows first to first+15 of m in dst.
func packPanel(p *Packed, dst []byte, m *ref.Matrix, first int) {
	_, size := m.Format.Block()
	row := p.blocks * size
	var src blocks16
	for k := range p.blocks {
		for o := range src {
			src[o] = nothing[:size]
			if first+o < m.Out {
				src[o] = m.Data[(first+o)*row+k*size:][:size]
			}
		}
		packBlock(dst[k*p.layout.bytes:][:p.layout.bytes], &src, m.Format)
	}
}

// packBlock lays out a block of 16 rows.
func packBlock(dst []byte, src *blocks16, f quant.Format) {
	switch f {
	case quant.Q4K:
		lines(dst, src, 16, 144)
		packScales(dst[q4Scale:], src)
	case quant.Q5K:
		lines(dst, src, 48, 176)
		lines(dst[q5High:], src, 16, 48)
		packScales(dst[q5Scale:], src)
	case quant.Q6K:
		lines(dst, src, 0, 192)
		for o, b := range src {
			for j, sc := range b[192:208] {
				dst[q6Scale+PanelRows*j+o] = sc
			}
			copy(dst[q6D+2*o:][:2], b[208:])
		}
	case quant.Q8_0:
		lines(dst, src, 2, 34)
		for o, b := range src {
			copy(dst[q8D+2*o:][:2], b)
		}
	default: // MXFP4
		lines(dst, src, 1, 17)
		for o, b := range src {
			dst[mxScale+o] = 0
			if e := b[0]; e >= mxLeast {
				dst[mxScale+o] = e - 1
			}
		}
	}
}

// lines interleaves bytes lo to hi-1 of the blocks, four bytes of each a line.
func lines(dst []byte, src *blocks16, lo, hi int) {
	var from [PanelRows]unsafe.Pointer // bounds are looked at once: checking each word takes twice as long
	for o, b := range src {
		from[o] = unsafe.Pointer(unsafe.SliceData(b[lo:hi]))
	}
	dst = dst[:(hi-lo)/4*line]
	for i := range (hi - lo) / 4 {
		d := (*[PanelRows]uint32)(unsafe.Pointer(&dst[i*line]))
		for o, p := range from {
			d[o] = *(*uint32)(unsafe.Add(p, 4*i))
		}
	}
}

// packScales lays out the heads of Q4_K or Q5_K blocks, whose fields quant.DecodeK describes: scales as
// bytes, minimums in pairs, d and dmin as they are.
func packScales(dst []byte, src *blocks16) {
	mins := dst[q4Min-q4Scale:]
	for o, head := range src {
		p := head[4:16]
		for j := range 4 {
			dst[PanelRows*j+o] = p[j] & 63
			dst[PanelRows*(j+4)+o] = p[j+8]&15 | p[j]>>6<<4
			mins[2*PanelRows*(j/2)+2*o+j%2] = p[j+4] & 63
			mins[2*PanelRows*(2+j/2)+2*o+j%2] = p[j+8]>>4 | p[j+4]>>6<<4
		}
		copy(dst[q4D-q4Scale+2*o:][:2], head)
		copy(dst[q4DMin-q4Scale+2*o:][:2], head[2:])
	}
}
