// Package link is a session between a backbone and a worker: many calls at once over one connection,
// answered in any order.
//
// A backbone calls Open and has a Session, which is a moe.Experts; a worker calls Serve and gives it
// one. Both begin with a handshake: Hello each way, then each side's verdict. What follows are messages
// of package wire.
//
// Two goroutines carry a session. The reader never waits for the writer: whatever it leaves for the
// writer is a slot of fixed size (Pong, Credit), or one message for a call whose number is bounded. The
// writer sends control messages first, then rows, then slices, a chunk at a time. One write on the
// connection is at most wire.MaxChunk bytes: one full chunk, or several small ones.
//
// What bounds what:
//
//  1. Memory of the worker: a Dispatch leaves only when the worker's window, which its Hello tells, has
//     room for it. It counts until its end has arrived.
//  2. Memory of the backbone: a Dispatch leaves only when the worst size of its answer is reserved. So
//     Partials wait for nobody's leave.
//  3. The queue on the way: bulk bytes that the other side has not acknowledged stay below
//     max(128 KiB, 2 x measured rate x smallest round trip). Credit acknowledges what the reader has
//     read, whatever becomes of it, so this bound can slow a message and never stop it. A control
//     message waits behind no more than that.
//  4. Time: no progress of a write, or of acknowledgement, for 10 s ends the session; so does a silence
//     of 45 s, in which a Ping every 20 s had no answer. Any byte is life.
//
// A session ends by GoAway in both directions, after which what is under way is finished; by Close; or
// by a fault, which fails all calls at once with ErrClosed and the reason. Its goroutines end with it.
package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"kvasir/internal/moe"
	"kvasir/internal/slab"
	"kvasir/kernels/ref"
	"kvasir/wire"
)

// Errors of this package; test with errors.Is.
var (
	// ErrClosed: the session has ended. The error names the reason as well.
	ErrClosed = errors.New("link: session closed")
	// ErrRefused: the two sides do not match; the text says in what.
	ErrRefused = errors.New("link: refused")
	// ErrProtocol: the other side broke a rule of the protocol, or this side did in its eyes.
	ErrProtocol = errors.New("link: protocol error")
	// ErrSilent: nothing came from the other side for 45 s.
	ErrSilent = errors.New("link: peer is silent")
	// ErrStalled: the other side took or acknowledged nothing for 10 s.
	ErrStalled = errors.New("link: peer takes nothing")
	// ErrDraining: one side has sent GoAway. Ask another executor.
	ErrDraining = errors.New("link: session is draining")
	// ErrTooBig: a batch is larger than the worker takes, or its answer than this side reserves. Send
	// fewer rows at a time.
	ErrTooBig = errors.New("link: batch too big for this session")
	// ErrInternal: the other side could not run the call. Ask another executor.
	ErrInternal = errors.New("link: fault of the peer")
	// ErrCancelled: the other side gave the call up.
	ErrCancelled = errors.New("link: call cancelled")
	// ErrBusy: too many calls or statements wait to be sent. Try again later, or ask another executor.
	ErrBusy = errors.New("link: too much waits to be sent")
)

// faults is what a code of wire is as an error.
var faults = [...]struct {
	code wire.Code
	err  error
}{
	{wire.NotHeld, moe.ErrNotHeld},
	{wire.Invalid, moe.ErrInvalid},
	{wire.Internal, ErrInternal},
	{wire.Cancelled, ErrCancelled},
	{wire.Cancelled, context.Canceled},
	{wire.Draining, ErrDraining},
	{wire.Refused, ErrRefused},
	{wire.Broken, ErrProtocol},
}

// Kind is the word for why a session ended, or has not come about, for counters: order, refused, protocol,
// silent or stalled; empty where this package does not know, such as for a connection that was cut.
func Kind(err error) string {
	var away *Away
	switch {
	case err == nil, errors.As(err, &away):
		return "order"
	case errors.Is(err, ErrRefused):
		return "refused"
	case errors.Is(err, ErrProtocol):
		return "protocol"
	case errors.Is(err, ErrSilent):
		return "silent"
	case errors.Is(err, ErrStalled):
		return "stalled"
	}
	return ""
}

// codeOf returns the code that tells the other side of err.
func codeOf(err error) wire.Code {
	for _, f := range faults {
		if errors.Is(err, f.err) {
			return f.code
		}
	}
	return wire.Internal
}

// faultError returns what the other side's Fault is on this side.
func faultError(f wire.Fault) error {
	err := ErrInternal
	for _, k := range faults {
		if k.code == f.Code {
			err = k.err
			break
		}
	}
	if f.Code == wire.Invalid && len(f.Text) > 0 {
		return &invalidError{string(f.Text)}
	}
	if len(f.Text) == 0 {
		return fmt.Errorf("%w: the peer says %s", err, f.Code)
	}
	return fmt.Errorf("%w: the peer says %q", err, f.Text)
}

// invalidError is moe.ErrInvalid in the words of the other side, which may be about an Assign: the text of
// ErrInvalid is about batches.
type invalidError struct{ text string }

// Error says what the other side said.
func (e *invalidError) Error() string {
	return fmt.Sprintf("link: the peer does not take it: %q", e.text)
}

// Is reports what it stands for.
func (e *invalidError) Is(target error) bool { return target == moe.ErrInvalid }

// Away is the GoAway of the other side, as an error: the session ended because of it, in order.
type Away struct {
	Reason wire.Reason
	Back   time.Duration // come back after so long
	Text   string
}

// Error says why and until when.
func (a *Away) Error() string {
	s := fmt.Sprintf("link: peer goes away (%s)", a.Reason)
	if a.Back > 0 {
		s += fmt.Sprintf(", come back in %v", a.Back)
	}
	if a.Text != "" {
		s += fmt.Sprintf(": %q", a.Text)
	}
	return s
}

// SliceReader reads bytes of a slice from an offset on into dst, and says how many, and how long the
// slice is. Fewer than asked for come at its end only. A slice that is not there is moe.ErrNotHeld.
type SliceReader func(ctx context.Context, slice wire.Hash, offset uint64, dst []byte) (n int, size uint64, err error)

// Defaults of Options.
const (
	DefaultCalls    = 64
	DefaultWindow   = 16 << 20
	DefaultAnswers  = 128 << 20
	DefaultParallel = 2
	DefaultDrain    = 30 * time.Second
)

// Options of one side of a session. Zero values mean the defaults.
type Options struct {
	// Hello is what this side says of itself. Protocol versions and Role are filled in; so are
	// Arithmetic and Class (exact), and a worker's Calls and Window, where they are zero.
	Hello wire.Hello

	Name string       // of the other side, in errors and log lines
	Log  *slog.Logger // one line when the session begins, and one when it ends; nil: none

	Answers  int           // backbone: bytes reserved for answers at once
	Parallel int           // worker: dispatches computed at once
	Drain    time.Duration // longest time from GoAway to the end

	// Slices serves the Fetches of a worker; nil: none are served. It is called by one goroutine.
	Slices SliceReader
	// Receipt is given every Receipt that comes; nil: they are dropped. It is called by the reader and
	// must not wait; Signed is valid until it returns.
	Receipt func(wire.Receipt)

	queued int         // bytes of answers waiting to be sent, above which none is computed
	slabs  *slab.Arena // where payloads of bulk messages live; nil: slab.Shared
}

func (o Options) withDefaults(role wire.Role) Options {
	h := &o.Hello
	h.Min, h.Max, h.Role = wire.VersionMin, wire.Version, role
	if h.Arithmetic == 0 {
		h.Arithmetic = ref.Arithmetic
	}
	if h.Class == 0 {
		h.Class = wire.Exact
	}
	if role == wire.RoleWorker && h.Calls == 0 {
		h.Calls = DefaultCalls
	}
	if role == wire.RoleWorker && h.Window == 0 {
		h.Window = DefaultWindow
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Name == "" {
		o.Name = "peer"
	}
	if o.Answers <= 0 {
		o.Answers = DefaultAnswers
	}
	if o.Parallel <= 0 {
		o.Parallel = DefaultParallel
	}
	if o.queued <= 0 {
		o.queued = maxQueued
	}
	if o.slabs == nil {
		o.slabs = slab.Shared
	}
	if o.Drain <= 0 {
		o.Drain = DefaultDrain
	}
	return o
}

// Times and limits that are part of the protocol.
const (
	handshakeWait  = 10 * time.Second
	handshakeBytes = 64 << 10
	silence        = 45 * time.Second
	stall          = 10 * time.Second
	pingEvery      = 20 * time.Second
	creditWait     = time.Second // the longest that received bytes stay unacknowledged
	creditStep     = 32 << 10    // received bytes that are acknowledged at once
	farewellWait   = time.Second // the longest that a last word may take

	maxReceipts = 16       // waiting to be sent
	maxWaiting  = 1024     // calls of one kind waiting for room at the other side
	maxQueued   = 32 << 20 // Options.queued unless a test says otherwise
)

// Stats is what a session has done.
type Stats struct {
	BytesIn, BytesOut uint64        // on the connection, handshake included
	Done              uint64        // calls ended with an answer: Dispatches, Assigns and Fetches, from either side
	Faulted           uint64        // calls ended without
	Calls             int           // calls under way, begun by this side
	Jobs              int           // calls under way, begun by the other side
	Unacked           int           // bulk bytes sent and not acknowledged
	Pace              int           // bound of Unacked at present
	RTT, MinRTT       time.Duration // the last round trip and the smallest lately; 0: not known yet
	InRate            float64       // bytes a second at which long answers come, at best lately; 0: not known yet
}
