// Package ws is RFC 6455 in our own slabs: the frames between a worker, the machines on its way,
// and a backbone. Header rules, close codes and the masking loop come from github.com/gobwas/ws;
// what that package leaves to its user (limits, deadlines, UTF-8, control frames between fragments,
// the close handshake, bytes glued to the upgrade) is kept here.
//
// What a Conn promises:
//
//  1. A frame is one write on the connection beneath it: header and payload lie in one buffer.
//  2. Every length is compared with its limit before anything is read into memory for it: the
//     head of the handshake, a frame, and a message, which is the sum of its fragments.
//  3. Every read and every write has a deadline. A peer that sends nothing for Options.Idle, lets a
//     message that has begun be waited for as long as that in all, or takes nothing for
//     Options.Write, is cut.
//  4. The reader never waits for a writer. Pong and Close leave through a slot of fixed size,
//     where a newer Pong replaces an older one (RFC 6455, 5.5.3), by a goroutine of their own.
//  5. Bytes that came glued to the upgrade request or its answer are the first that a Conn reads.
//  6. Nothing is allocated for a frame in the steady state.
//  7. No extension is ever offered or accepted, so nothing is compressed.
//  8. A message of at most n bytes comes in at most 128 + n/64 frames, control frames between its
//     fragments counted. So a message of any number of bytes costs no more than 64 times the work
//     that it would cost in one frame, and nobody is kept busy by fragments of one byte.
//  9. Text that is not UTF-8 is refused at the first read that shows it, not at the end of the
//     frame or of the message.
//
// Masking: a client draws a fresh key from the system's generator for every frame, and draws again
// in the one case of 2^32 that the key is 0. Key 0 would save the pass over the payload, which is
// ciphertext anyway, but boxes on the way may treat such frames as unmasked, and the pass costs
// about a microsecond for a chunk.
package ws

import (
	"errors"
	"fmt"
	"time"

	"github.com/gobwas/ws"
)

// Role says which side of RFC 6455 a Conn speaks.
type Role uint8

const (
	Client Role = iota // masks what it sends, refuses masked frames
	Server             // sends unmasked, refuses unmasked frames
)

// String returns the role in lower case.
func (r Role) String() string {
	if r == Client {
		return "client"
	}
	return "server"
}

// OpCode is the kind of a frame or message.
type OpCode = ws.OpCode

// Kinds of messages.
const (
	Text   = ws.OpText
	Binary = ws.OpBinary
)

// StatusCode is the number in a Close frame.
type StatusCode = ws.StatusCode

// Status codes that this package sends, and those that its users do (RFC 6455, 7.4.1).
const (
	StatusNormal        = ws.StatusNormalClosure
	StatusGoingAway     = ws.StatusGoingAway
	StatusProtocolError = ws.StatusProtocolError
	StatusUnsupported   = ws.StatusUnsupportedData
	StatusNoStatus      = ws.StatusNoStatusRcvd // never sent: a Close frame without a number
	StatusInvalid       = ws.StatusInvalidFramePayloadData
	StatusPolicy        = ws.StatusPolicyViolation
	StatusTooBig        = ws.StatusMessageTooBig
	StatusInternal      = ws.StatusInternalServerError
	StatusTryLater      = StatusCode(1013)
)

// Headroom is how many bytes WriteSlab needs in front of a payload: the longest header.
const Headroom = ws.MaxHeaderSize

// Limits that stand unless Options says otherwise.
const (
	// DefaultMessage holds a TLS record at its longest, 16,645 bytes, so a chunk in an inner TLS
	// session is always one frame.
	DefaultMessage   = 17 << 10
	DefaultHead      = 16 << 10 // bytes of a handshake's head, body of a refusal included
	DefaultIdle      = 45 * time.Second
	DefaultWrite     = 10 * time.Second
	DefaultClose     = 2 * time.Second
	DefaultHandshake = 10 * time.Second

	maxHeadLines = 64 // header lines of a handshake

	spareFrames  = 128 // frames that any message may come in
	meanFragment = 64  // bytes: a message may come in one more frame for as many bytes of its limit
)

// Errors of this package; test with errors.Is.
var (
	// ErrClosed: this side has closed the Conn, or has sent its Close frame.
	ErrClosed = errors.New("ws: connection closed")
	// ErrCut: the connection ended without a Close frame.
	ErrCut = errors.New("ws: connection cut")
	// ErrSilent: the peer sent nothing for Options.Idle, did not end a message in that time, or took
	// nothing for Options.Write.
	ErrSilent = errors.New("ws: peer is silent")
	// ErrProtocol: the peer broke a rule of RFC 6455.
	ErrProtocol = errors.New("ws: protocol error")
	// ErrTooBig: a frame, a message, or the head of a handshake is longer than its limit, or a message
	// comes in too many fragments.
	ErrTooBig = errors.New("ws: too big")
	// ErrUTF8: a text message or the reason of a Close frame is not UTF-8.
	ErrUTF8 = errors.New("ws: text is not UTF-8")
	// ErrUnsupported: a text message came where only binary ones are understood.
	ErrUnsupported = errors.New("ws: text message where binary was wanted")
	// ErrHandshake: the upgrade request, or its answer, is not one that RFC 6455 allows.
	ErrHandshake = errors.New("ws: bad handshake")
)

// CloseError is the Close frame of the peer.
type CloseError struct {
	Code   StatusCode // StatusNoStatus where the frame had none
	Reason string
}

// Error returns the code and, where there is one, the peer's reason.
func (e *CloseError) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("ws: peer closed with status %d", e.Code)
	}
	return fmt.Sprintf("ws: peer closed with status %d: %.123q", e.Code, e.Reason)
}

// Options are the limits of a Conn. The zero value means the defaults.
type Options struct {
	Message  int           // bytes of a message, fragments summed; DefaultMessage
	Idle     time.Duration // longest wait for a byte, and for the rest of a message; DefaultIdle
	Write    time.Duration // longest time a frame may take to leave; DefaultWrite
	Close    time.Duration // longest time to wait for the peer's Close frame; DefaultClose
	DropText bool          // NetConn skips text messages instead of refusing them
}

func (o Options) withDefaults() Options {
	if o.Message <= 0 {
		o.Message = DefaultMessage
	}
	if o.Idle <= 0 {
		o.Idle = DefaultIdle
	}
	if o.Write <= 0 {
		o.Write = DefaultWrite
	}
	if o.Close <= 0 {
		o.Close = DefaultClose
	}
	return o
}
