package link

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/valyala/bytebufferpool"

	"kvasir/internal/moe"
	"kvasir/wire"
)

// Worker is what Serve answers with.
type Worker struct {
	// Experts computes Dispatches until an Assign says otherwise. Forward is called by Options.Parallel
	// goroutines at once; it must end soon after its context has.
	Experts moe.Experts

	// Assign makes an executor for slices. It may take its time, for instance to fetch them; the former
	// executor serves meanwhile, and until Ready is on its way. nil: the worker holds what it holds, and
	// an Assign is answered with not_held.
	Assign func(ctx context.Context, a wire.Assign, fetch SliceReader) (moe.Experts, error)

	// Started is given the session when the handshake is done; nil: nobody cares.
	Started func(*Peer)
}

// Peer is the backbone, seen from a worker.
type Peer struct{ m *mux }

// Hello returns what the backbone has said of itself. It must not be changed.
func (p *Peer) Hello() *wire.Hello { return &p.m.peer }

// Stats returns what the session has done so far. It may be called after the end.
func (p *Peer) Stats() Stats { return p.m.stats() }

// SendReceipt sends a signed statement. It does not wait: ErrBusy says that too many are to be sent.
func (p *Peer) SendReceipt(r wire.Receipt) error { return p.m.receipt(r) }

// GoAway begins the end of the session, in order; Serve returns when it has come.
func (p *Peer) GoAway(g wire.GoAway) {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	p.m.goAway(g, time.Now())
}

// Serve makes a session of a connection to a backbone and answers its calls until the session ends. When
// ctx ends, it says GoAway, finishes what is under way, and returns; within Options.Drain in any case.
// The connection belongs to Serve, also when it returns an error. No goroutine is left then.
//
// It returns nil when ctx or Peer.GoAway brought the end, *Away when the backbone did, and otherwise the
// reason.
func Serve(ctx context.Context, conn net.Conn, w Worker, o Options) error {
	m, err := connect(ctx, conn, o, wire.RoleWorker)
	if err != nil {
		return err
	}
	m.computes(w)
	m.start()
	if w.Started != nil {
		w.Started(&Peer{m})
	}
	select {
	case <-ctx.Done():
		return m.drain(context.Background(), wire.GoAway{Reason: wire.Stopping})
	case <-m.dead:
	}
	m.wait()
	return m.result()
}

// server computes the jobs of a worker.
type server struct {
	m *mux
	w Worker

	mu      sync.Mutex // leaf
	experts moe.Experts
	epoch   uint32  // of the Assign that experts come from
	desks   []*desk // those that are free, Options.Parallel at most
	bits    int     // a value of the longest answer so far, in 64ths of a byte
}

// computes makes m compute what it is asked for with w.
func (m *mux) computes(w Worker) {
	s := &server{m: m, w: w, experts: w.Experts}
	m.serve, m.free = s.serve, s.close
}

// usual is what a value of an answer takes, in 64ths of a byte, until one has been seen.
const usual = 2 * 64

// desk is the memory of one Dispatch that is computed.
type desk struct {
	batch moe.Batch // its arrays are views of the payload
	out   moe.Partials
}

func (s *server) takeDesk() *desk {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := len(s.desks) - 1; last >= 0 {
		d := s.desks[last]
		s.desks = s.desks[:last]
		return d
	}
	d := &desk{}
	d.out.Pin()
	return d
}

func (s *server) putDesk(d *desk) {
	d.batch = moe.Batch{First: d.batch.First[:0]}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.desks = append(s.desks, d)
}

// close gives the memory of the desks back. Nothing is computed any more.
func (s *server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.desks {
		d.out.Release()
	}
	s.desks = nil
}

func (s *server) serve(ctx context.Context, j *job) (frame, error) {
	if j.kind == wire.TypeAssign {
		return s.assign(ctx, j)
	}
	d := s.takeDesk()
	defer s.putDesk(d)
	epoch, err := s.unpack(j, d)
	if err != nil {
		return frame{}, err
	}
	s.mu.Lock()
	experts, held := s.experts, s.epoch
	s.mu.Unlock()
	if experts == nil {
		return frame{}, fmt.Errorf("%w: nothing is assigned yet", moe.ErrNotHeld)
	}
	b := &d.batch
	if err := experts.Forward(ctx, b, &d.out); err != nil {
		if epoch != held {
			err = fmt.Errorf("dispatch of epoch %d, the worker is at %d: %w", epoch, held, err)
		}
		return frame{}, err
	}
	if d.out.Rows != b.Rows || d.out.Hidden != b.Hidden {
		return frame{}, fmt.Errorf("%d rows of %d came for %d rows of %d", d.out.Rows, d.out.Hidden, b.Rows, b.Hidden)
	}
	return s.pack(&d.out), nil
}

// unpack makes the payload of a Dispatch a batch, which is a view of it.
func (s *server) unpack(j *job, d *desk) (epoch uint32, err error) {
	h, err := wire.ParseDispatchHead(j.payload.data)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", moe.ErrInvalid, err)
	}
	if hidden := s.m.peer.Hidden; hidden != 0 && h.Hidden != hidden {
		return 0, fmt.Errorf("%w: rows of %d for a model of %d", moe.ErrInvalid, h.Hidden, hidden)
	}
	if _, err := wire.ViewDispatch(&d.batch, j.payload.data); err != nil {
		return 0, fmt.Errorf("%w: %w", moe.ErrInvalid, err)
	}
	return h.Epoch, nil
}

// pack makes partials a payload. Its room is what the longest answer so far would have taken; one that
// takes more grows, and goes into a frame of the right size.
func (s *server) pack(out *moe.Partials) frame {
	s.mu.Lock()
	bits := max(s.bits, usual)
	s.mu.Unlock()
	values := out.Rows * out.Hidden
	f := s.m.newFrame(partialsHead + out.Rows + values/64*bits + bits)
	p := wire.AppendPartials(f.data[:0], out)
	if &p[0] == &f.data[0] {
		f.data = p
		return f
	}
	f.release()
	s.mu.Lock()
	s.bits = max(s.bits, (len(p)-partialsHead-out.Rows)*64/values+1)
	s.mu.Unlock()
	f = s.m.newFrame(len(p))
	copy(f.data, p)
	return f
}

// partialsHead is what Partials have before their rows.
const partialsHead = 8

// assign changes what the worker holds.
func (s *server) assign(ctx context.Context, j *job) (frame, error) {
	var a wire.Assign
	if err := wire.ParseAssign(&a, j.payload.data); err != nil {
		return frame{}, fmt.Errorf("%w: %w", moe.ErrInvalid, err)
	}
	if s.w.Assign == nil {
		return frame{}, fmt.Errorf("%w: this worker holds what it holds", moe.ErrNotHeld)
	}
	experts, err := s.w.Assign(ctx, a, s.fetch)
	if err != nil {
		return frame{}, err
	}
	s.mu.Lock()
	s.experts, s.epoch = experts, a.Epoch
	s.mu.Unlock()
	b := bytebufferpool.Get()
	b.B = wire.AppendReady(b.B, a.Epoch)
	return textFrame(b), nil
}

// fetch is the SliceReader that asks the backbone. It asks for at most wire.MaxSliceData at a time.
func (s *server) fetch(ctx context.Context, slice wire.Hash, offset uint64, dst []byte) (n int, size uint64, err error) {
	dst = dst[:min(len(dst), wire.MaxSliceData)]
	if len(dst) == 0 {
		return 0, 0, nil
	}
	f := wire.Fetch{Hash: slice, Offset: offset, Size: len(dst)}
	b := bytebufferpool.Get()
	b.B = wire.AppendFetch(b.B, f)
	r, err := s.m.do(ctx, want{
		kind:  wire.TypeFetch,
		data:  textFrame(b),
		bound: wire.SliceHeadLen + len(dst),
	})
	if err == nil {
		defer r.payload.release()
		var d wire.SliceData
		d, err = wire.ParseSliceData(r.payload.data)
		if err == nil && d.Offset != offset {
			err = fmt.Errorf("bytes from %d where those from %d were asked for", d.Offset, offset)
		}
		if err == nil {
			return copy(dst, d.Data), d.Size, nil
		}
		err = fmt.Errorf("%w: %w", ErrProtocol, err)
		s.m.fail(err)
	}
	return 0, 0, fmt.Errorf("fetch %d bytes at %d of slice %s from %s: %w", len(dst), offset, slice, s.m.o.Name, err)
}
