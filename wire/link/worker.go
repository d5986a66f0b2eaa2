package link

import (
	"context"
	"fmt"
	"math/bits"
	"net"
	"sync"
	"time"

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
	s := &server{m: m, w: w, experts: w.Experts}
	s.desks.New = func() any { return &desk{} }
	m.serve = s.serve
	m.start()
	if w.Started != nil {
		w.Started(&Peer{m})
	}
	select {
	case <-ctx.Done():
		return m.drain(context.Background(), wire.GoAway{Reason: wire.Stopping})
	case <-m.dead:
	}
	m.group.Wait()
	return m.result()
}

// server computes the jobs of a worker.
type server struct {
	m     *mux
	w     Worker
	desks sync.Pool // *desk

	mu      sync.Mutex // leaf
	experts moe.Experts
	epoch   uint32 // of the Assign that experts come from
}

// desk is the memory of one Dispatch that is computed.
type desk struct {
	batches [moe.RowQ8 + 1]struct { // one a row format
		batch       *moe.Batch
		rows, picks int // room
	}
	out moe.Partials
}

// batch returns a batch with room for what a head claims.
func (d *desk) batch(h wire.DispatchHead) (*moe.Batch, error) {
	k := &d.batches[h.Format]
	if k.batch != nil && k.batch.Hidden == h.Hidden && k.rows >= h.Rows && k.picks >= h.Picks {
		return k.batch, nil
	}
	rows := min(ceilPow2(h.Rows), moe.MaxRows)
	picks := min(max(ceilPow2(h.Picks), rows), rows*moe.MaxTopK)
	b, err := moe.NewBatch(h.Shape, rows, picks)
	if err != nil {
		return nil, err
	}
	k.batch, k.rows, k.picks = b, rows, picks
	return b, nil
}

func ceilPow2(n int) int { return 1 << bits.Len(uint(n-1)) }

func (s *server) serve(ctx context.Context, j *job) ([]byte, error) {
	if j.kind == wire.TypeAssign {
		return s.assign(ctx, j)
	}
	d := s.desks.Get().(*desk)
	defer s.desks.Put(d)
	b, epoch, err := s.unpack(j, d)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	experts, held := s.experts, s.epoch
	s.mu.Unlock()
	if experts == nil {
		return nil, fmt.Errorf("%w: nothing is assigned yet", moe.ErrNotHeld)
	}
	if err := experts.Forward(ctx, b, &d.out); err != nil {
		if epoch != held {
			err = fmt.Errorf("dispatch of epoch %d, the worker is at %d: %w", epoch, held, err)
		}
		return nil, err
	}
	if d.out.Rows != b.Rows || d.out.Hidden != b.Hidden {
		return nil, fmt.Errorf("%d rows of %d came for %d rows of %d", d.out.Rows, d.out.Hidden, b.Rows, b.Hidden)
	}
	buf := s.m.send.get(8 + b.Rows*(1+2*b.Hidden)) // what is usual; it grows if it must
	return wire.AppendPartials(buf[:0], &d.out), nil
}

// unpack turns the payload of a Dispatch into a batch, and gives its slab back.
func (s *server) unpack(j *job, d *desk) (*moe.Batch, uint32, error) {
	defer func() {
		s.m.recv.put(j.payload)
		j.payload = nil
	}()
	h, err := wire.ParseDispatchHead(j.payload)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", moe.ErrInvalid, err)
	}
	if hidden := s.m.peer.Hidden; hidden != 0 && h.Hidden != hidden {
		return nil, 0, fmt.Errorf("%w: rows of %d for a model of %d", moe.ErrInvalid, h.Hidden, hidden)
	}
	b, err := d.batch(h)
	if err != nil {
		return nil, 0, err
	}
	if _, err := wire.ParseDispatch(b, j.payload); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", moe.ErrInvalid, err)
	}
	return b, h.Epoch, nil
}

// assign changes what the worker holds.
func (s *server) assign(ctx context.Context, j *job) ([]byte, error) {
	var a wire.Assign
	if err := wire.ParseAssign(&a, j.payload); err != nil {
		return nil, fmt.Errorf("%w: %w", moe.ErrInvalid, err)
	}
	if s.w.Assign == nil {
		return nil, fmt.Errorf("%w: this worker holds what it holds", moe.ErrNotHeld)
	}
	experts, err := s.w.Assign(ctx, a, s.fetch)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.experts, s.epoch = experts, a.Epoch
	s.mu.Unlock()
	return wire.AppendReady(nil, a.Epoch), nil
}

// fetch is the SliceReader that asks the backbone. It asks for at most wire.MaxSliceData at a time.
func (s *server) fetch(ctx context.Context, slice wire.Hash, offset uint64, dst []byte) (n int, size uint64, err error) {
	dst = dst[:min(len(dst), wire.MaxSliceData)]
	if len(dst) == 0 {
		return 0, 0, nil
	}
	f := wire.Fetch{Hash: slice, Offset: offset, Size: len(dst)}
	r, err := s.m.do(ctx, want{
		kind:  wire.TypeFetch,
		data:  wire.AppendFetch(nil, f),
		bound: wire.SliceHeadLen + len(dst),
	})
	if err == nil {
		defer s.m.recv.put(r.payload)
		var d wire.SliceData
		d, err = wire.ParseSliceData(r.payload)
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
