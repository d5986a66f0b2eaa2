// Package wire is what worker and backbone say to each other: messages, byte by byte, with Append and
// Parse for each. It knows no connection; package link carries the messages.
//
// Numbers are little-endian. Reserved bytes are zero, and refused if they are not, so that a message has
// one encoding only. Every length is compared with its bound before anything is touched.
//
// # Chunks
//
// A message is cut into chunks of at most MaxChunk bytes, header included. Chunks of different messages
// interleave; those of one message keep their order, and all but its last are full. A chunk is
//
//	0   1   type
//	1   1   flags: 1 must, 2 bulk; other bits are reserved
//	2   2   size: bytes of payload in this chunk, at most MaxPayload
//	4   4   length: bytes of payload in the whole message, the same in each of its chunks
//	8   8   call: what the message belongs to; 0 where nothing is said below
//	16      size bytes of payload
//
// Bulk messages may need several chunks, and every byte of their chunks is acknowledged by Credit; the
// other messages are control messages, which are one chunk. A chunk of an unknown type is skipped, and
// acknowledged when it is bulk; flagged must, it ends the session.
//
// # Calls
//
// Dispatch, Assign and Fetch begin a call. Whoever begins it chooses its id: each is larger than those
// before it of the same type, and none is used again. A call has exactly one end, under the same id:
// Partials, Ready or SliceData in this order, or Fault, which may also come when part of a bulk answer
// is out already. After Cancel the end still comes; it is Fault(cancelled) unless the whole answer was
// on its way.
//
// # Types
//
//	1   Hello      control   AppendHello      who I am; first on a connection, both ways
//	2   Assign     control   AppendAssign     backbone: hold these slices
//	3   Fetch      control   AppendFetch      worker: send me bytes of a slice
//	4   SliceData  bulk      AppendSliceData  answer to Fetch
//	5   Ready      control   AppendReady      answer to Assign; with epoch 0: your Hello is accepted
//	6   Dispatch   bulk      AppendDispatch   backbone: compute these rows
//	7   Partials   bulk      AppendPartials   answer to Dispatch
//	8   Fault      control   AppendFault      the call failed; with call 0: the session ends, and why
//	9   Credit     control   AppendCredit     bytes of bulk chunks received
//	10  Cancel     control   no payload       the answer to the call is not wanted any more
//	11  Ping       control   AppendPing       is anybody there
//	12  Pong       control   AppendPing       answer to Ping, with its bytes
//	13  Receipt    control   AppendReceipt    a signed statement about work
//	14  GoAway     control   AppendGoAway     I begin no call, and take none, from here on
//
// The layout of each is told at the function named.
package wire

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"kvasir/internal/moe"
)

// Version is the protocol version of this package, and VersionMin the oldest that it also speaks.
const (
	Version    = 1
	VersionMin = 1
)

// Limits of messages.
const (
	HeaderLen  = 16
	MaxChunk   = 16_000 // bytes of a chunk, header included: a TLS record holds it, and so does a frame
	MaxPayload = MaxChunk - HeaderLen

	MaxText      = 1024      // bytes of text in Fault and GoAway
	MaxAgent     = 128       // bytes of a Hello's agent
	MaxSlices    = 256       // slices in Hello and Assign
	MaxSigned    = 8 << 10   // bytes of a Receipt's statement
	MaxSliceData = 1 << 20   // bytes of a slice in one SliceData
	MaxCalls     = 1 << 16   // calls under way that a Hello may offer
	MaxWindow    = 1 << 40   // bytes of Dispatches under way that a Hello may offer
	MaxMemory    = 1 << 48   // bytes for slices that a Hello may name
	MaxRate      = 1<<31 - 1 // expert rows a second that a Hello may name
	MaxFetches   = 4         // Fetches that a worker has under way
	align        = 64        // of arrays within a payload
	maxLength    = 1<<32 - 1 // of a payload
)

// Errors of this package; test with errors.Is.
var (
	// ErrHeader: a chunk's header breaks a rule. Nothing that follows can be understood.
	ErrHeader = errors.New("wire: bad header")
	// ErrUnknown: a message of a type that this version does not know, and that may not be skipped. The
	// peer is newer: update this side.
	ErrUnknown = errors.New("wire: unknown message that must be understood")
	// ErrPayload: the payload of a message breaks a rule.
	ErrPayload = errors.New("wire: bad payload")
)

// Type says what a message is.
type Type uint8

// Types of messages.
const (
	TypeHello     Type = 1
	TypeAssign    Type = 2
	TypeFetch     Type = 3
	TypeSliceData Type = 4
	TypeReady     Type = 5
	TypeDispatch  Type = 6
	TypePartials  Type = 7
	TypeFault     Type = 8
	TypeCredit    Type = 9
	TypeCancel    Type = 10
	TypePing      Type = 11
	TypePong      Type = 12
	TypeReceipt   Type = 13
	TypeGoAway    Type = 14
)

// kinds is what is known about a type before its payload is read.
var kinds = [...]struct {
	name     string
	bulk     bool
	min, max int // bytes of payload
}{
	TypeHello:     {name: "Hello", min: helloLen, max: MaxPayload},
	TypeAssign:    {name: "Assign", min: assignLen + sliceLen, max: assignLen + MaxSlices*sliceLen},
	TypeFetch:     {name: "Fetch", min: fetchLen, max: fetchLen},
	TypeSliceData: {name: "SliceData", bulk: true, min: sliceDataLen, max: sliceDataLen + MaxSliceData},
	TypeReady:     {name: "Ready", min: readyLen, max: readyLen},
	TypeDispatch:  {name: "Dispatch", bulk: true, min: dispatchLen, max: maxDispatch},
	TypePartials:  {name: "Partials", bulk: true, min: partialsLen, max: maxPartials},
	TypeFault:     {name: "Fault", min: faultLen, max: faultLen + MaxText},
	TypeCredit:    {name: "Credit", min: creditLen, max: creditLen},
	TypeCancel:    {name: "Cancel"},
	TypePing:      {name: "Ping", min: pingLen, max: pingLen},
	TypePong:      {name: "Pong", min: pingLen, max: pingLen},
	TypeReceipt:   {name: "Receipt", min: receiptLen, max: receiptLen + MaxSigned},
	TypeGoAway:    {name: "GoAway", min: goAwayLen, max: goAwayLen + MaxText},
}

// Known reports whether t is a type of this version.
func (t Type) Known() bool { return t >= TypeHello && int(t) < len(kinds) }

// Bulk reports whether t is a known type of bulk messages.
func (t Type) Bulk() bool { return t.Known() && kinds[t].bulk }

// String returns the type's name.
func (t Type) String() string {
	if !t.Known() {
		return fmt.Sprintf("type %d", uint8(t))
	}
	return kinds[t].name
}

// Flags of a chunk.
type Flags uint8

// Bits of Flags.
const (
	Must Flags = 1 << 0 // who does not know the type may not skip it
	Bulk Flags = 1 << 1 // the chunk is acknowledged by Credit; set for the bulk types and no other
)

// Header is the head of a chunk.
type Header struct {
	Type   Type
	Flags  Flags
	Size   int // payload of this chunk
	Length int // payload of the message
	Call   uint64
}

// NewHeader returns the header of a message's first chunk.
func NewHeader(t Type, length int, call uint64) Header {
	h := Header{Type: t, Size: min(length, MaxPayload), Length: length, Call: call}
	if t.Bulk() {
		h.Flags = Bulk
	}
	return h
}

// AppendHeader appends h to dst. The header is one that Check accepts: the caller's promise.
func AppendHeader(dst []byte, h Header) []byte {
	dst = append(dst, byte(h.Type), byte(h.Flags))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(h.Size))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.Length))
	return binary.LittleEndian.AppendUint64(dst, h.Call)
}

// ParseHeader reads the header at the beginning of p, of which there are at least HeaderLen bytes.
func ParseHeader(p []byte) (Header, error) {
	if len(p) < HeaderLen {
		return Header{}, fmt.Errorf("%w: %d bytes, want %d", ErrHeader, len(p), HeaderLen)
	}
	h := Header{
		Type:   Type(p[0]),
		Flags:  Flags(p[1]),
		Size:   int(binary.LittleEndian.Uint16(p[2:])),
		Length: int(binary.LittleEndian.Uint32(p[4:])),
		Call:   binary.LittleEndian.Uint64(p[8:]),
	}
	return h, h.Check()
}

// Check returns an error, wrapping ErrHeader or ErrUnknown, unless h may stand before a chunk. Whether
// the chunk goes on where the one before it ended is for the reader of the connection to see.
func (h Header) Check() error {
	switch {
	case h.Flags&^(Must|Bulk) != 0:
		return fmt.Errorf("%w: %s with reserved flags %#02x", ErrHeader, h.Type, uint8(h.Flags))
	case h.Size > MaxPayload:
		return fmt.Errorf("%w: %s with %d bytes in a chunk, want at most %d", ErrHeader, h.Type, h.Size, MaxPayload)
	case h.Size > h.Length:
		return fmt.Errorf("%w: %s with %d bytes in a chunk of a message of %d", ErrHeader, h.Type, h.Size, h.Length)
	case h.Flags&Bulk == 0 && h.Size != h.Length:
		return fmt.Errorf("%w: %s of %d bytes in a chunk of %d, and control messages are one chunk",
			ErrHeader, h.Type, h.Length, h.Size)
	case h.Flags&Bulk != 0 && h.Size == 0:
		return fmt.Errorf("%w: %s with an empty chunk", ErrHeader, h.Type)
	}
	if !h.Type.Known() {
		if h.Flags&Must != 0 {
			return fmt.Errorf("%w: %s; update this side", ErrUnknown, h.Type)
		}
		return nil
	}
	k := &kinds[h.Type]
	switch {
	case k.bulk != (h.Flags&Bulk != 0):
		return fmt.Errorf("%w: %s with flags %#02x", ErrHeader, h.Type, uint8(h.Flags))
	case h.Length < k.min || h.Length > k.max:
		return fmt.Errorf("%w: %s of %d bytes, want %d to %d", ErrHeader, h.Type, h.Length, k.min, k.max)
	}
	return nil
}

// Hash is a SHA-256. All zeros say that there is none.
type Hash [32]byte

// IsZero reports whether there is no hash.
func (h Hash) IsZero() bool { return h == Hash{} }

// String returns the first eight bytes in hex, which is what people compare.
func (h Hash) String() string {
	if h.IsZero() {
		return "none"
	}
	return hex.EncodeToString(h[:8])
}

// payload builds the error of a parser.
func payload(t Type, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrPayload, t, fmt.Sprintf(format, args...))
}

// checkLen compares a payload's length with what its type allows.
func checkLen(t Type, p []byte) error {
	if k := &kinds[t]; len(p) < k.min || len(p) > k.max {
		return payload(t, "%d bytes, want %d to %d", len(p), k.min, k.max)
	}
	return nil
}

// checkZero refuses reserved bytes that are set.
func checkZero(t Type, p []byte, at int) error {
	for i, b := range p {
		if b != 0 {
			return payload(t, "reserved byte %d is %#02x, want 0", at+i, b)
		}
	}
	return nil
}

// checkCount refuses a number that is out of its bounds.
func checkCount(t Type, what string, n, lo, hi uint64) error {
	if n < lo || n > hi {
		return payload(t, "%s %d, want %d to %d", what, n, lo, hi)
	}
	return nil
}

// alignUp returns n rounded up to the alignment of arrays.
func alignUp(n int) int { return (n + align - 1) &^ (align - 1) }

const (
	maxDispatch = dispatchLen + moe.MaxRows*moe.MaxHidden*4 + moe.MaxRows*(moe.MaxTopK*pickLen+1)
	maxPartials = partialsLen + moe.MaxRows*(1+moe.MaxHidden/256*(1+256*52/8))
)

// Both fit the length field of a header.
var _ = [2]uint32{maxDispatch, maxPartials}
