package wire

import (
	"encoding/binary"
	"unicode/utf8"

	"kvasir/internal/moe"
)

// Role is the side of a session.
type Role uint8

// Roles.
const (
	RoleWorker   Role = 1
	RoleBackbone Role = 2
)

// String returns the role in lower case.
func (r Role) String() string {
	switch r {
	case RoleWorker:
		return "worker"
	case RoleBackbone:
		return "backbone"
	}
	return "unknown role"
}

// Class says how a machine's results compare with those of kernels/ref.
type Class uint8

// Classes.
const (
	Exact Class = 1 // bit for bit
	Close Class = 2 // within a tolerance
)

// String returns the class in lower case.
func (c Class) String() string {
	switch c {
	case Exact:
		return "exact"
	case Close:
		return "close"
	}
	return "unknown class"
}

// Features are optional abilities; unknown bits are ignored.
type Features uint64

// FeatureFetch: the worker asks for slices that it lacks, or the backbone sends them.
const FeatureFetch Features = 1 << 0

// Slice names experts of one layer.
type Slice struct {
	Layer  int
	Lo, Hi int  // experts from Lo up to and without Hi
	Hash   Hash // of their bytes; zero where the model's hash says enough
}

const sliceLen = 40

// appendSlice appends
//
//	0   2   layer
//	2   2   first expert
//	4   2   the expert after the last
//	6   2   reserved
//	8   32  SHA-256 of the experts' bytes; zeros: not said
func appendSlice(dst []byte, s Slice) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, uint16(s.Layer))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(s.Lo))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(s.Hi))
	dst = append(dst, 0, 0)
	return append(dst, s.Hash[:]...)
}

func parseSlice(t Type, p []byte, at int) (s Slice, err error) {
	s.Layer = int(binary.LittleEndian.Uint16(p))
	s.Lo = int(binary.LittleEndian.Uint16(p[2:]))
	s.Hi = int(binary.LittleEndian.Uint16(p[4:]))
	copy(s.Hash[:], p[8:sliceLen])
	if s.Layer >= moe.MaxLayers || s.Lo >= s.Hi || s.Hi > moe.MaxExperts {
		return s, payload(t, "slice of layer %d, experts %d to %d: want a layer below %d and experts in order up to %d",
			s.Layer, s.Lo, s.Hi, moe.MaxLayers, moe.MaxExperts)
	}
	return s, checkZero(t, p[6:8], at+6)
}

// Hello introduces a side. What both must agree on is compared by package link; the rest tells the
// other side what it may do.
type Hello struct {
	Min, Max   uint16 // protocol versions spoken
	Role       Role
	Class      Class
	Arithmetic uint32 // version of the arithmetic: ref.Arithmetic
	Features   Features

	// The model. A worker that fetches its slices may leave all of it zero.
	Layers, Experts, Hidden int
	Model                   Hash
	Profile                 Hash // of the arithmetic profile

	// What this side takes: calls under way at once, and bytes of their Dispatches or Fetches. A
	// Dispatch counts from its first byte sent until its end has arrived.
	Calls  int
	Window int

	Slices []Slice // cached by a worker
	Agent  []byte  // program, version and system, for people; UTF-8
}

const helloLen = 112

// AppendHello appends the payload of h to dst:
//
//	0   2   length of the fixed part, 112; more in later versions, whose addition is skipped
//	2   2   oldest protocol version spoken
//	4   2   newest protocol version spoken
//	6   1   role: 1 worker, 2 backbone
//	7   1   class: 1 exact, 2 close
//	8   4   version of the arithmetic
//	12  4   layers
//	16  4   experts a layer
//	20  4   hidden size
//	24  8   features: 1 fetch
//	32  8   window: bytes of calls under way that this side takes
//	40  4   calls under way that this side takes
//	44  2   number of cached slices, at most 256
//	46  1   bytes of the agent, at most 128
//	47  1   reserved
//	48  32  hash of the model; zeros: none
//	80  32  hash of the arithmetic profile; zeros: none
//	112 40  each cached slice: see Assign
//	…       agent, UTF-8
//
// Numbers are within the limits that ParseHello checks: the caller's promise.
func AppendHello(dst []byte, h *Hello) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, helloLen)
	dst = binary.LittleEndian.AppendUint16(dst, h.Min)
	dst = binary.LittleEndian.AppendUint16(dst, h.Max)
	dst = append(dst, byte(h.Role), byte(h.Class))
	dst = binary.LittleEndian.AppendUint32(dst, h.Arithmetic)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.Layers))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.Experts))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.Hidden))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Features))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Window))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.Calls))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(h.Slices)))
	dst = append(dst, byte(len(h.Agent)), 0)
	dst = append(dst, h.Model[:]...)
	dst = append(dst, h.Profile[:]...)
	for _, s := range h.Slices {
		dst = appendSlice(dst, s)
	}
	return append(dst, h.Agent...)
}

// ParseHello fills h from the payload of a Hello. Agent is a view of p.
func ParseHello(h *Hello, p []byte) error {
	const t = TypeHello
	if err := checkLen(t, p); err != nil {
		return err
	}
	slices := h.Slices[:0]
	*h = Hello{
		Min:        binary.LittleEndian.Uint16(p[2:]),
		Max:        binary.LittleEndian.Uint16(p[4:]),
		Role:       Role(p[6]),
		Class:      Class(p[7]),
		Arithmetic: binary.LittleEndian.Uint32(p[8:]),
		Layers:     int(binary.LittleEndian.Uint32(p[12:])),
		Experts:    int(binary.LittleEndian.Uint32(p[16:])),
		Hidden:     int(binary.LittleEndian.Uint32(p[20:])),
		Features:   Features(binary.LittleEndian.Uint64(p[24:])),
		Calls:      int(binary.LittleEndian.Uint32(p[40:])),
	}
	copy(h.Model[:], p[48:])
	copy(h.Profile[:], p[80:])
	if err := h.parseWindow(p); err != nil {
		return err
	}
	head, count, agent := int(binary.LittleEndian.Uint16(p)), int(binary.LittleEndian.Uint16(p[44:])), int(p[46])
	if head < helloLen || count > MaxSlices || agent > MaxAgent || len(p) != head+count*sliceLen+agent {
		return payload(t, "%d bytes for a fixed part of %d, %d slices and an agent of %d", len(p), head, count, agent)
	}
	if head == helloLen {
		if err := checkZero(t, p[47:48], 47); err != nil {
			return err
		}
	}
	for at := head; at < head+count*sliceLen; at += sliceLen {
		s, err := parseSlice(t, p[at:], at)
		if err != nil {
			return err
		}
		slices = append(slices, s)
	}
	h.Slices, h.Agent = slices, p[len(p)-agent:]
	if !utf8.Valid(h.Agent) {
		return payload(t, "the agent is not UTF-8")
	}
	return nil
}

// parseWindow checks the numbers of h and reads the one that might not fit an int.
func (h *Hello) parseWindow(p []byte) error {
	const t = TypeHello
	window := binary.LittleEndian.Uint64(p[32:])
	for _, f := range []struct {
		what      string
		n, lo, hi uint64
	}{
		{"oldest version", uint64(h.Min), 1, uint64(h.Max)},
		{"role", uint64(h.Role), uint64(RoleWorker), uint64(RoleBackbone)},
		{"class", uint64(h.Class), uint64(Exact), uint64(Close)},
		{"layers", uint64(h.Layers), 0, moe.MaxLayers},
		{"experts", uint64(h.Experts), 0, moe.MaxExperts},
		{"hidden size", uint64(h.Hidden), 0, moe.MaxHidden},
		{"calls", uint64(h.Calls), 0, MaxCalls},
		{"window", window, 0, MaxWindow},
	} {
		if err := checkCount(t, f.what, f.n, f.lo, f.hi); err != nil {
			return err
		}
	}
	h.Window = int(window)
	return nil
}
