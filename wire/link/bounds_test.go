package link

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"kvasir/internal/moe"
	"kvasir/wire"
)

func TestNoMoreCallsWaitThanAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		a, b := net.Pipe()
		r := join(t, a, b, Worker{Experts: waits(release)}, Options{}, Options{Hello: wire.Hello{Calls: 2}})
		var group sync.WaitGroup
		batch := small(t, 1, 1)
		for range 2 + maxWaiting {
			group.Go(func() {
				if err := r.Forward(context.Background(), batch, &moe.Partials{}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if err := r.Forward(context.Background(), batch, &moe.Partials{}); !errors.Is(err, ErrBusy) {
			t.Errorf("one call more than may wait: %v, want ErrBusy", err)
		}
		close(release)
		group.Wait()
		if err := r.Forward(context.Background(), batch, &moe.Partials{}); err != nil {
			t.Errorf("when none waits any more: %v", err)
		}
		_ = r.end()
	})
}

// A peer begins calls and cancels them, pings and acknowledges, and reads nothing: what the worker has to
// say stays bounded by the calls that it offered.
func TestAFloodOfControlMessagesIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		held := newTap(a)
		f, m := againstOver(t, [2]net.Conn{held, b}, wire.RoleWorker, Worker{Experts: waits(nil)}, Options{})
		synctest.Wait() // its first Ping is out
		held.hold()
		payload := wire.AppendDispatch(nil, 0, small(t, 1, 1))
		const calls = 4 // what against offers
		for i := range uint64(calls) {
			f.send(wire.TypeDispatch, i+1, payload, 1)
			for range 50 {
				f.send(wire.TypeCancel, i+1, nil, 1)
				f.send(wire.TypePing, 0, wire.AppendPing(nil, i), 1)
				f.send(wire.TypeCredit, 0, wire.AppendCredit(nil, 0), 1)
			}
		}
		synctest.Wait()
		m.mu.Lock()
		count, bytes, jobs, err := m.controls.count, m.controls.bytes, len(m.jobs), m.err
		m.mu.Unlock()
		if count > calls || bytes > calls*(wire.MaxText+16) || jobs > calls || jobs < calls-1 || err != nil {
			t.Errorf("%d messages of %d bytes wait, %d calls are under way, %v", count, bytes, jobs, err)
		}
		for i := range uint64(2) { // the end of one call may have left before
			f.send(wire.TypeDispatch, calls+1+i, payload, 1)
		}
		<-m.dead
		if err := m.reason(); !errors.Is(err, ErrProtocol) {
			t.Errorf("more calls than offered: %v, want ErrProtocol", err)
		}
		held.release()
		_ = f.conn.Close()
		m.close()
	})
}
