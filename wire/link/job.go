package link

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/valyala/bytebufferpool"

	"kvasir/wire"
)

// jobState says how far a job has come.
type jobState uint8

const (
	arriving  jobState = iota // chunks are missing
	complete                  // waits to be computed
	computing                 // has a goroutine
	answered                  // its end is in a queue
)

// job is a call that the other side begins. It counts until the last chunk of its end leaves. Fields are
// guarded by mux.mu, but for arrival's, and payload while it is computed.
type job struct {
	id        uint64
	kind      wire.Type
	size      int // bytes that count against the window
	state     jobState
	refused   bool // this side drains: it is read, and not computed
	cancelled bool // while it was computed
	cancel    context.CancelFunc
	arrival
	payload frame // complete
	end     message
	next    *job // of a list
}

// jobList is jobs in the order in which they became complete.
type jobList struct{ head, tail *job }

func (l *jobList) push(j *job) {
	j.next = nil
	if l.tail == nil {
		l.head = j
	} else {
		l.tail.next = j
	}
	l.tail = j
}

func (l *jobList) pop() *job {
	j := l.head
	if j == nil {
		return nil
	}
	l.head, j.next = j.next, nil
	if l.head == nil {
		l.tail = nil
	}
	return j
}

func (l *jobList) remove(j *job) {
	var prev *job
	for p := l.head; p != j; p = p.next {
		prev = p
	}
	if prev == nil {
		l.pop()
		return
	}
	prev.next, j.next = j.next, nil
	if l.tail == j {
		l.tail = prev
	}
}

// crewOf returns the index of the goroutines that compute a kind: Dispatches are not held up by others.
func crewOf(kind wire.Type) int {
	if kind == wire.TypeDispatch {
		return 0
	}
	return 1
}

// beginJob takes a call of the other side, or says which rule it breaks. mu is held.
func (m *mux) beginJob(h wire.Header) (*job, error) {
	k := kindOf(h.Type)
	limit := wire.MaxFetches
	switch h.Type {
	case wire.TypeDispatch:
		limit = m.o.Hello.Calls
	case wire.TypeAssign:
		limit = 1
	}
	size := 0
	if h.Type == wire.TypeDispatch {
		size = h.Length
	}
	switch {
	case (h.Type == wire.TypeFetch) != (m.role == wire.RoleBackbone):
		return nil, fmt.Errorf("%w: %s from a %s", ErrProtocol, h.Type, m.peer.Role)
	case m.awayIn:
		return nil, fmt.Errorf("%w: %s after GoAway", ErrProtocol, h.Type)
	case h.Call <= m.lastJob[k] || m.jobs[h.Call] != nil:
		return nil, fmt.Errorf("%w: %s begins call %d, which was used before", ErrProtocol, h.Type, h.Call)
	case m.held[k] >= limit:
		return nil, fmt.Errorf("%w: more than %d of %s under way", ErrProtocol, limit, h.Type)
	case m.heldSize+size > m.o.Hello.Window && size > 0:
		return nil, fmt.Errorf("%w: %s of %d bytes, %d are under way and the window is %d",
			ErrProtocol, h.Type, size, m.heldSize, m.o.Hello.Window)
	}
	j := m.idleJob
	if j == nil {
		j = &job{}
		j.end.job = j
	} else {
		m.idleJob = j.next
	}
	j.id, j.kind, j.size, j.refused, j.next = h.Call, h.Type, size, m.awayOut, nil
	m.jobs[j.id] = j
	m.lastJob[k] = j.id
	m.held[k]++
	m.heldSize += size
	return j, nil
}

// arrived hands a complete job to those who compute. mu is held.
func (m *mux) arrived(j *job, payload frame) {
	if j.refused {
		payload.release()
		m.fault(j, wire.Draining, "")
		return
	}
	j.payload, j.state = payload, complete
	crew := crewOf(j.kind)
	m.ready[crew].push(j)
	limit := 1
	if crew == 0 {
		limit = m.o.Parallel
	}
	if m.running[crew] < limit && m.err == nil {
		m.running[crew]++
		m.begin()
		m.crews.start(crew)
	}
}

// run computes jobs until none is ready.
func (m *mux) run(crew int) {
	defer m.group.Done()
	m.mu.Lock()
	defer m.mu.Unlock() // the last: after it the pool's goroutine needs nothing of ours, see crews.start
	defer func() {
		m.running[crew]--
		m.over()
	}()
	for {
		for crew == 0 && m.rows.bytes > m.o.queued && m.err == nil {
			m.cond.Wait()
		}
		if m.err != nil {
			return
		}
		j := m.ready[crew].pop()
		if j == nil {
			return
		}
		ctx, cancel := context.WithCancel(m.base)
		j.state, j.cancel = computing, cancel
		m.mu.Unlock()
		data, err := m.compute(ctx, j)
		cancel()
		m.mu.Lock()
		j.payload.release()
		m.computed(j, data, err)
	}
}

// compute serves a job. An executor that panics fails its call and no other.
func (m *mux) compute(ctx context.Context, j *job) (data frame, err error) {
	defer func() {
		if p := recover(); p != nil {
			m.o.Log.Error("a call panics", "peer", m.o.Name, "call", j.id, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %v", ErrInternal, p)
		}
	}()
	return m.serve(ctx, j)
}

// computed queues the end of a job. mu is held.
func (m *mux) computed(j *job, data frame, err error) {
	switch {
	case m.err != nil:
		data.release()
		return
	case j.cancelled:
		data.release()
		m.fault(j, wire.Cancelled, "")
		return
	case err != nil:
		m.fault(j, codeOf(err), err.Error())
		return
	}
	j.state = answered
	n := len(data.data)
	switch j.kind {
	case wire.TypeDispatch:
		j.end.begin(wire.TypePartials, n, j.id, data)
		m.rows.push(&j.end)
	case wire.TypeFetch:
		j.end.begin(wire.TypeSliceData, n, j.id, data)
		m.slices.push(&j.end)
	default:
		j.end.begin(wire.TypeReady, n, j.id, data)
		m.controls.push(&j.end)
	}
	m.kick()
}

// fault queues a Fault as the end of a job. mu is held.
func (m *mux) fault(j *job, code wire.Code, text string) {
	j.state = answered
	b := bytebufferpool.Get()
	b.B = wire.AppendFault(b.B, wire.Fault{Code: code, Text: []byte(text)})
	j.end.begin(wire.TypeFault, len(b.B), j.id, textFrame(b))
	m.controls.push(&j.end)
	m.kick()
}

// cancelJob gives a job up, as far as it has not left already. mu is held; a job that is arriving is
// cancelled by the reader only.
func (m *mux) cancelJob(j *job) {
	switch j.state {
	case arriving:
		j.buf.release()
		j.arrival = arrival{}
		m.fault(j, wire.Cancelled, "")
	case complete:
		m.ready[crewOf(j.kind)].remove(j)
		j.payload.release()
		m.fault(j, wire.Cancelled, "")
	case computing:
		j.cancelled = true
		j.cancel()
	case answered:
		if j.end.queue == nil || !j.end.head.Type.Bulk() {
			return // all of the end is on its way
		}
		j.end.remove()
		j.end.data.release()
		m.fault(j, wire.Cancelled, "")
		m.cond.Broadcast()
	}
}

// endJob forgets a job, the last chunk of whose end leaves. mu is held.
func (m *mux) endJob(j *job) {
	delete(m.jobs, j.id)
	m.held[kindOf(j.kind)]--
	m.heldSize -= j.size
	if j.end.head.Type == wire.TypeFault {
		m.faulted++
	} else {
		m.done++
	}
	j.end.data.release()
	*j = job{next: m.idleJob}
	j.end.job = j
	m.idleJob = j
	m.cond.Broadcast()
}
