package wire

import (
	"encoding/binary"
)

// Assign says which slices a worker shall hold from its Ready on. Until then the former ones serve.
type Assign struct {
	Epoch  uint32 // counts the Assigns of a session, from 1
	Slices []Slice
}

const assignLen = 8

// AppendAssign appends the payload of a to dst:
//
//	0   4   epoch, from 1
//	4   2   number of slices, 1 to 256
//	6   2   reserved
//	8   40  each slice: 2 layer, 2 first expert, 2 the expert after the last,
//	        2 exponent plus 64, 32 hash
func AppendAssign(dst []byte, a Assign) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, a.Epoch)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(a.Slices)))
	dst = append(dst, 0, 0)
	for _, s := range a.Slices {
		dst = appendSlice(dst, s)
	}
	return dst
}

// ParseAssign fills a from the payload of an Assign.
func ParseAssign(a *Assign, p []byte) error {
	const t = TypeAssign
	if err := checkLen(t, p); err != nil {
		return err
	}
	slices := a.Slices[:0]
	*a = Assign{Epoch: binary.LittleEndian.Uint32(p)}
	count := int(binary.LittleEndian.Uint16(p[4:]))
	if len(p) != assignLen+count*sliceLen {
		return payload(t, "%d bytes for %d slices", len(p), count)
	}
	if a.Epoch == 0 {
		return payload(t, "epoch 0, want 1 or more")
	}
	if err := checkZero(t, p[6:8], 6); err != nil {
		return err
	}
	for at := assignLen; at < len(p); at += sliceLen {
		s, err := parseSlice(t, p[at:])
		if err != nil {
			return err
		}
		slices = append(slices, s)
	}
	a.Slices = slices
	return nil
}

// Fetch asks for bytes of a slice.
type Fetch struct {
	Hash   Hash   // of the slice
	Offset uint64 // of the first byte within the slice
	Size   int    // bytes wanted; fewer come at the slice's end
}

const fetchLen = 48

// AppendFetch appends the payload of f to dst:
//
//	0   32  hash of the slice
//	32  8   offset of the first byte wanted
//	40  4   bytes wanted, 1 to 1,048,576
//	44  4   reserved
func AppendFetch(dst []byte, f Fetch) []byte {
	dst = append(dst, f.Hash[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, f.Offset)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(f.Size))
	return append(dst, 0, 0, 0, 0)
}

// ParseFetch reads the payload of a Fetch.
func ParseFetch(p []byte) (f Fetch, err error) {
	const t = TypeFetch
	if err := checkLen(t, p); err != nil {
		return f, err
	}
	copy(f.Hash[:], p)
	f.Offset = binary.LittleEndian.Uint64(p[32:])
	f.Size = int(binary.LittleEndian.Uint32(p[40:]))
	if err := checkCount(t, "bytes wanted", uint64(f.Size), 1, MaxSliceData); err != nil {
		return f, err
	}
	return f, checkZero(t, p[44:48], 44)
}

// SliceData is bytes of a slice.
type SliceData struct {
	Offset uint64 // of the first byte within the slice
	Size   uint64 // of the whole slice
	Data   []byte // 64-byte aligned when the payload is
}

const sliceDataLen = 64

// AppendSliceData appends the payload of s to dst:
//
//	0   8   offset of the first byte
//	8   8   bytes of the whole slice
//	16  48  reserved
//	64      the bytes, at most 1,048,576; none from the slice's end on
func AppendSliceData(dst []byte, s SliceData) []byte {
	dst = AppendSliceHead(dst, s.Offset, s.Size)
	return append(dst, s.Data...)
}

// AppendSliceHead appends what stands before the bytes of a SliceData.
func AppendSliceHead(dst []byte, offset, size uint64) []byte {
	var head [sliceDataLen]byte
	binary.LittleEndian.PutUint64(head[0:], offset)
	binary.LittleEndian.PutUint64(head[8:], size)
	return append(dst, head[:]...)
}

// SliceHeadLen is how much stands before the bytes of a SliceData.
const SliceHeadLen = sliceDataLen

// ParseSliceData reads the payload of a SliceData. Data is a view of p.
func ParseSliceData(p []byte) (s SliceData, err error) {
	const t = TypeSliceData
	if err := checkLen(t, p); err != nil {
		return s, err
	}
	s.Offset = binary.LittleEndian.Uint64(p)
	s.Size = binary.LittleEndian.Uint64(p[8:])
	s.Data = p[sliceDataLen:]
	if s.Offset > s.Size || uint64(len(s.Data)) > s.Size-s.Offset {
		return s, payload(t, "%d bytes from %d of a slice of %d", len(s.Data), s.Offset, s.Size)
	}
	return s, checkZero(t, p[16:sliceDataLen], 16)
}

const readyLen = 4

// AppendReady appends the payload of a Ready to dst:
//
//	0   4   epoch of the Assign that is in force; 0: the Hello is accepted
func AppendReady(dst []byte, epoch uint32) []byte {
	return binary.LittleEndian.AppendUint32(dst, epoch)
}

// ParseReady reads the payload of a Ready.
func ParseReady(p []byte) (epoch uint32, err error) {
	if err := checkLen(TypeReady, p); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(p), nil
}
