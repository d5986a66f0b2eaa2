package link

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/valyala/bytebufferpool"

	"kvasir/internal/moe"
	"kvasir/wire"
)

// Session is a worker, seen from the backbone. It implements moe.Experts. It is safe for concurrent use.
type Session struct {
	m       *mux
	assigns chan uint32 // holds the epoch of the last Assign; empty while one is under way
}

// Open makes a session of a connection to a worker, which is the inner end of everything: TLS within
// WebSocket, or a bare connection in a test. ctx is for the handshake. From here on the connection
// belongs to the session, also when Open returns an error.
func Open(ctx context.Context, conn net.Conn, o Options) (*Session, error) {
	m, err := connect(ctx, conn, o, wire.RoleBackbone)
	if err != nil {
		return nil, err
	}
	s := &Session{m: m, assigns: make(chan uint32, 1)}
	s.assigns <- 0
	m.serve = s.fetch
	m.start()
	return s, nil
}

// Forward has the worker compute b. It returns once the answer is in out, ctx has ended, or the session
// has; nothing touches b or out after that. A call that is given up is cancelled at the worker, and its
// answer dropped.
func (s *Session) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	err := s.forward(ctx, b, out)
	if err != nil {
		out.Reset(0, 0)
		return fmt.Errorf("dispatch of %d rows, layer %d, to %s: %w", b.Rows, b.Layer, s.m.o.Name, err)
	}
	return nil
}

// Borrows says that the session is a moe.Borrower: rows go from where they lie into chunks, and sums from the
// answer to where they belong, row by row.
func (s *Session) Borrows() {}

func (s *Session) forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	if err := wire.CheckBatch(b); err != nil {
		return err
	}
	r, err := s.m.do(ctx, want{
		kind:  wire.TypeDispatch,
		batch: b,
		size:  wire.DispatchSize(b.Shape, b.Rows, len(b.Expert)),
		bound: wire.PartialsBound(b.Rows, b.Hidden),
	})
	if err != nil {
		return err
	}
	err = wire.ParsePartials(out, r.payload.data, b.Rows, b.Hidden)
	r.payload.release()
	if err != nil {
		// An answer that cannot be read is no accident of one call.
		err = fmt.Errorf("%w: %w", ErrProtocol, err)
		s.m.fail(err)
	}
	return err
}

// Largest answers that are no Partials.
const (
	assignBound = 4
	fetchBound  = wire.SliceHeadLen + wire.MaxSliceData
)

// Assign tells the worker which slices to hold, and waits until it does. The former ones serve until
// then. One Assign is under way at a time; others wait.
func (s *Session) Assign(ctx context.Context, slices []wire.Slice) error {
	if n := len(slices); n < 1 || n > wire.MaxSlices {
		return fmt.Errorf("%w: %d slices to assign, want 1 to %d", ErrTooBig, n, wire.MaxSlices)
	}
	var epoch uint32
	select {
	case epoch = <-s.assigns:
	case <-ctx.Done():
		return ctx.Err()
	case <-s.m.dead:
		return s.m.reason()
	}
	epoch++
	defer func() { s.assigns <- epoch }()
	text := bytebufferpool.Get()
	text.B = wire.AppendAssign(text.B, wire.Assign{Epoch: epoch, Slices: slices})
	r, err := s.m.do(ctx, want{
		kind:  wire.TypeAssign,
		data:  textFrame(text),
		bound: assignBound,
	})
	if err == nil && r.epoch != epoch {
		err = fmt.Errorf("%w: Ready of epoch %d for an Assign of epoch %d", ErrProtocol, r.epoch, epoch)
		s.m.fail(err)
	}
	if err != nil {
		return fmt.Errorf("assign %d slices to %s: %w", len(slices), s.m.o.Name, err)
	}
	s.m.mu.Lock()
	s.m.epoch = epoch
	s.m.mu.Unlock()
	return nil
}

// fetch serves a Fetch of the worker.
func (s *Session) fetch(ctx context.Context, j *job) (frame, error) {
	f, err := wire.ParseFetch(j.payload.data)
	if err != nil {
		return frame{}, fmt.Errorf("%w: %w", moe.ErrInvalid, err)
	}
	if s.m.o.Slices == nil {
		return frame{}, fmt.Errorf("%w: this backbone sends no slices", moe.ErrNotHeld)
	}
	buf := s.m.newFrame(wire.SliceHeadLen + f.Size)
	n, size, err := s.m.o.Slices(ctx, f.Hash, f.Offset, buf.data[wire.SliceHeadLen:])
	if err != nil {
		buf.release()
		return frame{}, err
	}
	wire.AppendSliceHead(buf.data[:0], f.Offset, size)
	buf.data = buf.data[:wire.SliceHeadLen+n]
	return buf, nil
}

// Peer returns what the worker has said of itself. It must not be changed.
func (s *Session) Peer() *wire.Hello { return &s.m.peer }

// Stats returns what the session has done so far. It may be called after the end.
func (s *Session) Stats() Stats { return s.m.stats() }

// RTT returns the last round trip, measured when the session begins and every 20 s; 0: not known yet.
func (s *Session) RTT() time.Duration { return s.m.stats().RTT }

// SendReceipt sends a signed statement. It does not wait: ErrBusy says that too many are to be sent.
func (s *Session) SendReceipt(r wire.Receipt) error { return s.m.receipt(r) }

// Leaving is closed when the session takes no calls any more: either side has sent GoAway, or it has
// ended. Calls that are under way then may still be answered.
func (s *Session) Leaving() <-chan struct{} { return s.m.leaving }

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.m.dead }

// Err returns nil while the session goes on, and after an end that this side asked for; an *Away when
// the worker asked for it; or else ErrClosed with the reason.
func (s *Session) Err() error { return s.m.result() }

// Drain tells the worker to go away, waits until what is under way is finished, and ends the session.
// When ctx ends first it closes the session. It returns what Err returns.
func (s *Session) Drain(ctx context.Context, g wire.GoAway) error { return s.m.drain(ctx, g) }

// Close ends the session at once. Calls under way fail with ErrClosed. It returns when no goroutine is
// left.
func (s *Session) Close() error {
	s.m.close()
	return nil
}
