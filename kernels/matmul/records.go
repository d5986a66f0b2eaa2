package matmul

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"kvasir/internal/moe"
)

// A record is 256 values of a row, as the tiles read them; the last of a row may be shorter. All offsets
// are in bytes, all numbers little-endian.
//
//	      Q8K                                           Q8
//	0     256 int8 values                               256 int8 values
//	256   float32 scale                                 8 float32 scales, one for 32 values
//	272   8 int16: sums of 32 values
//	288                                                 8 pairs of int16: -12 x lane sums of 32 values
//	320   16 pairs of int16: -32 x lane sums of 16      8 int32: -128 x sums of 32 values
//	384   16 int32: -32 x sums of 16 values
//
// Of the lane sums the first is that of values 0, 1, 4, 5, 8, …, the second that of 2, 3, 6, 7, …: what the
// two halves of a 32-bit lane add up in 16-bit arithmetic. Where weights are computed on with an offset
// that makes them unsigned, these take it off again.
const (
	recordBytes = 448

	recScale  = 256
	recSums   = 272
	recLane16 = 320
	recSum16  = 384

	recLane32 = 288
	recSum32  = 320
)

// Records are rows in the form that the tiles take, one after another in one piece of memory.
type Records struct {
	format moe.RowFormat
	values int // of a row
	stride int // bytes of a row
	data   []byte
}

// RecordsBytes returns how much memory rows rows of the given number of values take.
func RecordsBytes(values, rows int) int { return (values + 255) / 256 * recordBytes * rows }

// Reset makes room for rows rows of values values in an int8 format. What the rows hold is stale. It
// allocates only where there was less room before.
func (r *Records) Reset(f moe.RowFormat, values, rows int) {
	if f == moe.RowF32 || values < 1 || values%f.Block() != 0 || rows < 0 {
		panic(fmt.Sprintf("BUG: records of %d %s rows of %d values", rows, f, values))
	}
	r.format, r.values, r.stride = f, values, RecordsBytes(values, 1)
	if n := rows * r.stride; cap(r.data) < n {
		r.data = moe.AlignedBytes(n)
	} else {
		r.data = r.data[:n]
	}
}

// Set fills row i with x.
func (r *Records) Set(i int, x moe.Row) {
	if x.Format != r.format || len(x.Q) != r.values {
		panic(fmt.Sprintf("BUG: a %s row of %d in records of %s rows of %d", x.Format, len(x.Q), r.format, r.values))
	}
	r.SetPart(i, 0, x)
}

// SetPart fills part of row i with x, from value lo on, which begins a block of 256.
func (r *Records) SetPart(i, lo int, x moe.Row) {
	if x.Format != r.format || lo%256 != 0 || lo+len(x.Q) > r.values {
		panic(fmt.Sprintf("BUG: %d %s values from %d on in records of %s rows of %d",
			len(x.Q), x.Format, lo, r.format, r.values))
	}
	dst := r.data[i*r.stride:][:r.stride][lo/256*recordBytes:]
	per := r.format.Scales(256)
	for k := 0; 256*k < len(x.Q); k++ {
		q := x.Q[256*k : min(256*k+256, len(x.Q))]
		scales := x.Scales[k*per : min(k*per+per, len(x.Scales))]
		fillRecord(dst[k*recordBytes:][:recordBytes], r.format, q, scales)
	}
}

// fillRecord writes one record. len(q) is a multiple of 32.
func fillRecord(dst []byte, f moe.RowFormat, q []int8, scales []float32) {
	copy(dst, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(q))), len(q)))
	for j, s := range scales {
		putU32(dst[recScale+4*j:], math.Float32bits(s))
	}
	for j := 0; 32*j < len(q); j++ {
		e0, o0 := laneSums((*[16]int8)(q[32*j:]))
		e1, o1 := laneSums((*[16]int8)(q[32*j+16:]))
		if f == moe.RowQ8 {
			putPair(dst[recLane32+4*j:], -12*(e0+e1), -12*(o0+o1))
			putU32(dst[recSum32+4*j:], uint32(-128*(e0+o0+e1+o1)))
			continue
		}
		binary.LittleEndian.PutUint16(dst[recSums+2*j:], uint16(e0+o0+e1+o1))
		putPair(dst[recLane16+8*j:], -32*e0, -32*o0)
		putPair(dst[recLane16+8*j+4:], -32*e1, -32*o1)
		putU32(dst[recSum16+8*j:], uint32(-32*(e0+o0)))
		putU32(dst[recSum16+8*j+4:], uint32(-32*(e1+o1)))
	}
}

// laneSums adds up 16 values by lanes. Eight of them are a word; with 128 added they are unsigned, neighbours
// add up in 16 bits each, and the 8 x 128 that each of the two sums then has too much are taken off again.
func laneSums(q *[16]int8) (even, odd int32) {
	const top, bytes = 0x8080808080808080, 0x00ff00ff00ff00ff
	words := (*[16]byte)(unsafe.Pointer(q))
	a, b := le.Uint64(words[:8])^top, le.Uint64(words[8:])^top
	sum := a&bytes + a>>8&bytes + b&bytes + b>>8&bytes
	sum += sum >> 32
	return int32(sum&0xffff) - 1024, int32(sum>>16&0xffff) - 1024
}

func putU32(dst []byte, v uint32) { binary.LittleEndian.PutUint32(dst, v) }

// putPair writes two int16, modulo 2^16: the sums that they correct are exact modulo 2^16 too.
func putPair(dst []byte, a, b int32) { putU32(dst, uint32(uint16(a))|uint32(uint16(b))<<16) }

// Rows is a list of rows to multiply, in any order, which may lie in several Records of one shape.
type Rows struct {
	format moe.RowFormat
	values int
	first  []*byte // the first record of each row
}

// Len returns how many rows there are.
func (x *Rows) Len() int { return len(x.first) }

// Reset empties the list.
func (x *Rows) Reset() {
	clear(x.first)
	x.first = x.first[:0]
}

// Grow makes room for n rows.
func (x *Rows) Grow(n int) { x.first = slices.Grow(x.first[:0], n) }

// Add appends row i of r. All rows of a list have one shape.
func (x *Rows) Add(r *Records, i int) {
	if len(x.first) == 0 {
		x.format, x.values = r.format, r.values
	}
	if x.format != r.format || x.values != r.values || i < 0 || (i+1)*r.stride > len(r.data) {
		panic(fmt.Sprintf("BUG: row %d of records of %s rows of %d in a list of %s rows of %d",
			i, r.format, r.values, x.format, x.values))
	}
	x.first = append(x.first, &r.data[i*r.stride])
}

// Slice returns rows lo to hi-1 of the list, which share its memory.
func (x *Rows) Slice(lo, hi int) Rows {
	return Rows{format: x.format, values: x.values, first: x.first[lo:hi:hi]}
}

// rowFormat is the format of the rows that m takes.
func (m *Packed) rowFormat() moe.RowFormat {
	if m.Format.IsK() {
		return moe.RowQ8K
	}
	return moe.RowQ8
}
