package worker

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"kvasir/internal/moe"
	"kvasir/wire"
	"kvasir/wire/link"
	"kvasir/wire/seal"
)

// session is one pairing with a backbone.
type session struct {
	w        *Worker
	id       string
	backbone seal.Grant
	ctx      context.Context // ends with the session
	unsigned atomic.Bool     // it ended because nobody signs
	group    sync.WaitGroup
	once     sync.Once // of works

	mu   sync.Mutex
	peer *link.Peer // once the handshake is done; under mu
}

// hello is what the worker says of itself.
func (w *Worker) hello() wire.Hello {
	h := w.c.Model.Hello()
	h.Rate, h.Agent = w.c.Rate, []byte(w.c.Agent)
	if w.holder == nil {
		return h
	}
	h.Memory = w.c.Memory
	if h.Model.IsZero() {
		h.Features |= wire.FeatureFetch
	}
	h.Slices = w.c.Shelf.Cached()
	h.Slices = h.Slices[:min(len(h.Slices), wire.MaxSlices)]
	return h
}

func (s *session) options() link.Options {
	o := link.Options{Hello: s.w.hello(), Name: "backbone " + s.backbone.Key.Short(), Log: s.w.c.Log}
	if s.w.c.Receipt != nil {
		o.Receipt = func(r wire.Receipt) { s.w.c.Receipt(s.backbone, s.id, r) }
	}
	return o
}

func (s *session) worker() link.Worker {
	o := link.Worker{Started: s.started}
	if s.w.holder != nil {
		o.Assign = s.assign
	} else {
		o.Experts = s.w.counted(s.w.c.Model.Experts)
	}
	return o
}

// started is called when both sides have accepted each other's Hello.
func (s *session) started(p *link.Peer) {
	s.mu.Lock()
	s.peer = p
	s.mu.Unlock()
	if s.w.c.Paired != nil {
		s.w.c.Paired(s.id)
	}
	hidden := p.Hello().Hidden
	if s.w.holder == nil {
		s.w.status.begin(Working, s.id, hidden)
		s.works()
	} else {
		s.w.holder.meet(p.Hello())
		s.w.status.begin(Fetching, s.id, hidden)
		if s.w.c.Waiting != nil {
			s.w.c.Waiting(noneAssigned)
		}
	}
	if s.w.c.Busy != nil {
		s.group.Go(func() { s.leaveWhenBusy(p) })
	}
	if s.w.c.Unsigned != nil {
		s.group.Go(func() { s.leaveWhenUnsigned(p) })
	}
}

// leaveWhenUnsigned ends the session in order when nobody signs for the work.
func (s *session) leaveWhenUnsigned(p *link.Peer) {
	tick := time.NewTicker(cmp.Or(s.w.c.Look, 5*time.Second))
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		if s.w.c.Unsigned() {
			s.unsigned.Store(true)
			p.GoAway(wire.GoAway{Reason: wire.Unsigned, Text: []byte(ErrUnsigned.Error())})
			return
		}
	}
}

// works says once that there is work from now on.
func (s *session) works() {
	s.once.Do(func() {
		if s.w.c.Working != nil {
			s.w.c.Working(s.id)
		}
	})
}

// assign is link.Worker's.
func (s *session) assign(ctx context.Context, a wire.Assign, fetch link.SliceReader) (moe.Experts, error) {
	s.mu.Lock()
	p := s.peer
	s.mu.Unlock()
	x, err := s.w.holder.assign(ctx, p.Hello(), a.Slices, fetch)
	if err != nil {
		if ctx.Err() == nil {
			s.w.c.Log.Warn("slices not loaded; the former ones serve on", "epoch", a.Epoch, "error", err)
		}
		return nil, err
	}
	what := s.w.holder.String()
	s.w.status.holding(what)
	if s.w.c.Holding != nil {
		s.w.c.Holding(what)
	}
	s.works()
	return s.w.counted(x), nil
}

// counted is an executor that counts what it computes.
func (w *Worker) counted(x moe.Experts) moe.Experts {
	if w.c.Wrap != nil {
		x = w.c.Wrap(x)
	}
	return &meter{next: x, status: &w.status}
}

// leaveWhenBusy ends the session in order when the owner needs the machine.
func (s *session) leaveWhenBusy(p *link.Peer) {
	if !s.w.c.Busy.await(s.ctx, true) {
		return
	}
	s.w.wait(Paused, busyReason)
	p.GoAway(wire.GoAway{
		Reason: wire.Stopping, Back: uint32(s.w.c.Busy.Rest.Milliseconds()), Text: []byte(busyReason),
	})
}

const busyReason = "other programs need this machine"

// untilFree waits while the owner needs the machine.
func (w *Worker) untilFree(ctx context.Context) error {
	if w.c.Busy == nil || !w.c.Busy.is() {
		return nil
	}
	w.wait(Paused, busyReason)
	w.c.Busy.await(ctx, false)
	return ctx.Err()
}
