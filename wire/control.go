package wire

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// Code says what kind of Fault it is.
type Code uint16

// Codes of faults. What they are as errors is told by package link.
const (
	NotHeld   Code = 1 // the layer, expert or slice is not held here: ask elsewhere
	Invalid   Code = 2 // the call breaks a rule, and would anywhere
	Internal  Code = 3 // this side could not do it: ask elsewhere
	Cancelled Code = 4 // as was asked for by Cancel
	Draining  Code = 5 // this side has sent GoAway: ask elsewhere
	Refused   Code = 6 // the Hello does not match; call 0
	Broken    Code = 7 // the other side broke a rule of the protocol; call 0
)

var codes = [...]string{
	NotHeld: "not_held", Invalid: "invalid", Internal: "internal", Cancelled: "cancelled",
	Draining: "draining", Refused: "refused", Broken: "broken",
}

// Valid reports whether c is one of the codes.
func (c Code) Valid() bool { return c >= NotHeld && int(c) < len(codes) }

// String returns the code in lower case.
func (c Code) String() string {
	if !c.Valid() {
		return fmt.Sprintf("fault %d", uint16(c))
	}
	return codes[c]
}

// Fault ends a call without an answer, or the session where the call is 0. A code that is not known
// counts as Internal.
type Fault struct {
	Code Code
	Text []byte // for people; UTF-8
}

const faultLen = 4

// AppendFault appends the payload of f to dst; a long text is cut, and one that is not UTF-8 left out.
//
//	0   2   code: 1 not_held, 2 invalid, 3 internal, 4 cancelled, 5 draining, 6 refused, 7 broken
//	2   2   reserved
//	4       text, UTF-8, at most 1,024 bytes
func AppendFault(dst []byte, f Fault) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, uint16(f.Code))
	dst = append(dst, 0, 0)
	return append(dst, cutText(f.Text)...)
}

// ParseFault reads the payload of a Fault. Text is a view of p.
func ParseFault(p []byte) (f Fault, err error) {
	const t = TypeFault
	if err := checkLen(t, p); err != nil {
		return f, err
	}
	f = Fault{Code: Code(binary.LittleEndian.Uint16(p)), Text: p[faultLen:]}
	if f.Code == 0 {
		return f, payload(t, "code 0, want 1 or more")
	}
	if !utf8.Valid(f.Text) {
		return f, payload(t, "the text is not UTF-8")
	}
	return f, checkZero(t, p[2:4], 2)
}

// cutText returns as much of a text as may be sent: whole characters.
func cutText(text []byte) []byte {
	if len(text) > MaxText {
		n := MaxText
		for n > 0 && !utf8.RuneStart(text[n]) {
			n--
		}
		text = text[:n]
	}
	if !utf8.Valid(text) {
		return nil
	}
	return text
}

const creditLen = 8

// AppendCredit appends the payload of a Credit to dst:
//
//	0   8   bytes of bulk chunks, headers included, received since the session began
func AppendCredit(dst []byte, received uint64) []byte {
	return binary.LittleEndian.AppendUint64(dst, received)
}

// ParseCredit reads the payload of a Credit.
func ParseCredit(p []byte) (received uint64, err error) {
	if err := checkLen(TypeCredit, p); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(p), nil
}

const pingLen = 8

// AppendPing appends the payload of a Ping or Pong to dst:
//
//	0   8   any number; Pong has that of the newest Ping
func AppendPing(dst []byte, number uint64) []byte {
	return binary.LittleEndian.AppendUint64(dst, number)
}

// ParsePing reads the payload of a Ping or Pong.
func ParsePing(p []byte) (number uint64, err error) {
	if err := checkLen(TypePing, p); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(p), nil
}

// Receipt carries a signed statement about work. What the bytes say is not this package's business.
type Receipt struct {
	Sequence uint64
	Signed   []byte
}

const receiptLen = 8

// AppendReceipt appends the payload of r to dst:
//
//	0   8   sequence number of the statement
//	8       the statement with its signature, at most 8,192 bytes
func AppendReceipt(dst []byte, r Receipt) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, r.Sequence)
	return append(dst, r.Signed...)
}

// ParseReceipt reads the payload of a Receipt. Signed is a view of p.
func ParseReceipt(p []byte) (r Receipt, err error) {
	if err := checkLen(TypeReceipt, p); err != nil {
		return r, err
	}
	return Receipt{Sequence: binary.LittleEndian.Uint64(p), Signed: p[receiptLen:]}, nil
}

// Reason says why a side goes away.
type Reason uint16

// Reasons of GoAway. An unknown one is no error.
const (
	Stopping Reason = 1 // the program ends, or pauses
	Moving   Reason = 2 // connect again: there is a better place
	Unsigned Reason = 3 // work was done and no receipt came
)

// String returns the reason in lower case.
func (r Reason) String() string {
	switch r {
	case Stopping:
		return "stopping"
	case Moving:
		return "moving"
	case Unsigned:
		return "unsigned"
	}
	return fmt.Sprintf("reason %d", uint16(r))
}

// GoAway says that its sender begins no call and takes none from here on; what is under way is finished.
type GoAway struct {
	Reason Reason
	Back   uint32 // come back after so many milliseconds; 0: at once
	Text   []byte // for people; UTF-8
}

const goAwayLen = 8

// AppendGoAway appends the payload of g to dst; its text is treated as that of a Fault.
//
//	0   2   reason: 1 stopping, 2 moving, 3 unsigned
//	2   2   reserved
//	4   4   milliseconds after which to come back
//	8       text, UTF-8, at most 1,024 bytes
func AppendGoAway(dst []byte, g GoAway) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, uint16(g.Reason))
	dst = append(dst, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, g.Back)
	return append(dst, cutText(g.Text)...)
}

// ParseGoAway reads the payload of a GoAway. Text is a view of p.
func ParseGoAway(p []byte) (g GoAway, err error) {
	const t = TypeGoAway
	if err := checkLen(t, p); err != nil {
		return g, err
	}
	g = GoAway{
		Reason: Reason(binary.LittleEndian.Uint16(p)),
		Back:   binary.LittleEndian.Uint32(p[4:]),
		Text:   p[goAwayLen:],
	}
	if g.Reason == 0 {
		return g, payload(t, "reason 0, want 1 or more")
	}
	if !utf8.Valid(g.Text) {
		return g, payload(t, "the text is not UTF-8")
	}
	return g, checkZero(t, p[2:4], 2)
}
