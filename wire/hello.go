package wire

import (
	"encoding/binary"
	"errors"
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

	// Exponent is E of the layer's gated sums, plus ExponentBias; 0: not said. It is no part of Hash: the
	// same bytes serve under any profile.
	Exponent int
}

// ExponentBias makes exponents, which are -8 to 40, numbers above 0.
const ExponentBias = 64

// Exponents as they may be in a Slice.
const (
	minExponent = ExponentBias - 8
	maxExponent = ExponentBias + 40
)

const sliceLen = 40

// appendSlice appends
//
//	0   2   layer
//	2   2   first expert
//	4   2   the expert after the last
//	6   2   exponent of the layer's gated sums, plus 64: 56 to 104; 0: not said
//	8   32  SHA-256 of the experts' bytes; zeros: not said
func appendSlice(dst []byte, s Slice) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, uint16(s.Layer))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(s.Lo))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(s.Hi))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(s.Exponent))
	return append(dst, s.Hash[:]...)
}

func parseSlice(t Type, p []byte) (s Slice, err error) {
	s.Layer = int(binary.LittleEndian.Uint16(p))
	s.Lo = int(binary.LittleEndian.Uint16(p[2:]))
	s.Hi = int(binary.LittleEndian.Uint16(p[4:]))
	s.Exponent = int(binary.LittleEndian.Uint16(p[6:]))
	copy(s.Hash[:], p[8:sliceLen])
	if s.Layer >= moe.MaxLayers || s.Lo >= s.Hi || s.Hi > moe.MaxExperts {
		return s, payload(t, "slice of layer %d, experts %d to %d: want a layer below %d and experts in order up to %d",
			s.Layer, s.Lo, s.Hi, moe.MaxLayers, moe.MaxExperts)
	}
	if s.Exponent == 0 {
		return s, nil
	}
	return s, checkCount(t, "exponent plus 64", uint64(s.Exponent), minExponent, maxExponent)
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

	// What a worker is good for, as it has measured itself; a backbone says 0.
	Memory int64 // bytes for slices, as they are computed on; 0: it holds the whole model
	Rate   int   // expert rows a second: rows times the experts that each goes through; 0: not measured

	Slices []Slice // cached by a worker
	Agent  []byte  // program, version and system, for people; UTF-8
}

const helloLen = 128

// AppendHello appends the payload of h to dst:
//
//	0   2   length of the fixed part, 128; more in later versions, whose addition is skipped
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
//	112 8   bytes of memory that a worker has for slices, at most 2^48; 0: it holds the whole model
//	120 4   expert rows that a worker computes a second; 0: not measured
//	124 4   reserved
//	128 40  each cached slice: see Assign
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
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Memory))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.Rate))
	dst = append(dst, 0, 0, 0, 0)
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
		Rate:       int(binary.LittleEndian.Uint32(p[120:])),
	}
	copy(h.Model[:], p[48:])
	copy(h.Profile[:], p[80:])
	if err := h.parseSizes(p); err != nil {
		return err
	}
	head, count, agent := int(binary.LittleEndian.Uint16(p)), int(binary.LittleEndian.Uint16(p[44:])), int(p[46])
	if head < helloLen || count > MaxSlices || agent > MaxAgent || len(p) != head+count*sliceLen+agent {
		return payload(t, "%d bytes for a fixed part of %d, %d slices and an agent of %d", len(p), head, count, agent)
	}
	if head == helloLen {
		if err := errors.Join(checkZero(t, p[47:48], 47), checkZero(t, p[124:128], 124)); err != nil {
			return err
		}
	}
	for at := head; at < head+count*sliceLen; at += sliceLen {
		s, err := parseSlice(t, p[at:])
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

// parseSizes checks the numbers of h and reads those that might not fit an int.
func (h *Hello) parseSizes(p []byte) error {
	const t = TypeHello
	window, memory := binary.LittleEndian.Uint64(p[32:]), binary.LittleEndian.Uint64(p[112:])
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
		{"memory", memory, 0, MaxMemory},
		{"rate", uint64(h.Rate), 0, MaxRate},
	} {
		if err := checkCount(t, f.what, f.n, f.lo, f.hi); err != nil {
			return err
		}
	}
	h.Window, h.Memory = int(window), int64(memory)
	return nil
}
