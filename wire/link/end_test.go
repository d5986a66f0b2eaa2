package link

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/internal/moe"
	"kvasir/wire"
)

func TestAWorkerThatStopsFinishesWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := path(1_000_000, 5*time.Millisecond)
		release := make(chan struct{})
		r := join(t, a, b, Worker{Experts: waits(release)}, Options{}, Options{})
		batch, out := big(t, 1), &moe.Partials{}
		done := make(chan error, 1)
		go func() { done <- r.Forward(context.Background(), batch, out) }()
		time.Sleep(100 * time.Millisecond) // the dispatch is half out
		r.stop()
		<-r.Leaving()
		if err := r.Forward(context.Background(), small(t, 2, 1), &moe.Partials{}); !errors.Is(err, ErrDraining) {
			t.Errorf("a call after GoAway: %v, want ErrDraining", err)
		}
		time.Sleep(10 * time.Second)
		close(release)
		if err := <-done; err != nil || !same(out, direct(t, hashes{}, batch)) {
			t.Errorf("the call under way: %v", err)
		}
		if err := <-r.served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		<-r.Done()
		var away *Away
		if err := r.Err(); !errors.As(err, &away) || away.Reason != wire.Stopping {
			t.Errorf("the session: %v, want Away, stopping", err)
		}
		_ = r.Close()
	})
}

func TestABackboneThatDrainsSaysWhenToComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := path(1_000_000, 5*time.Millisecond)
		wo := Options{}
		wo.Hello.Calls, wo.Hello.Window = 1, 1<<20
		r := join(t, a, b, Worker{Experts: hashes{}}, Options{}, wo)
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- check(r.Session, big(t, 1)) }()
		}
		time.Sleep(100 * time.Millisecond) // one is on its way, one waits for room
		g := wire.GoAway{Reason: wire.Moving, Back: 1500, Text: []byte("to the other room")}
		if err := r.Drain(context.Background(), g); err != nil {
			t.Errorf("Drain: %v", err)
		}
		if err := <-done; !errors.Is(err, ErrDraining) {
			t.Errorf("the call that waited: %v, want ErrDraining", err)
		}
		if err := <-done; err != nil {
			t.Errorf("the call under way: %v", err)
		}
		var away *Away
		err := <-r.served
		if !errors.As(err, &away) || away.Reason != wire.Moving || away.Back != 1500*time.Millisecond {
			t.Errorf("Serve: %v, want Away, moving, 1.5s", err)
		}
		if want := `link: peer goes away (moving), come back in 1.5s: "to the other room"`; err.Error() != want {
			t.Errorf("it reads %q, want %q", err, want)
		}
		r.stop()
	})
}

// deaf refuses writes from a moment on, as a connection does that the other side has closed, while what
// that side said before can still be read.
type deaf struct {
	net.Conn
	now atomic.Bool
}

func (d *deaf) Write(p []byte) (int, error) {
	if d.now.Load() {
		return 0, net.ErrClosed
	}
	return d.Conn.Write(p)
}

func TestWhatWasSaidBeforeTheEndIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		d := &deaf{Conn: a}
		f, m := againstOver(t, [2]net.Conn{d, b}, wire.RoleWorker, Worker{Experts: hashes{}}, Options{})
		(&Peer{m}).GoAway(wire.GoAway{Reason: wire.Stopping})
		synctest.Wait()
		d.now.Store(true)
		f.send(wire.TypePing, 0, wire.AppendPing(nil, 1), 1) // the answer meets a closed connection
		time.Sleep(farewellWait / 2)
		f.send(wire.TypeGoAway, 0, wire.AppendGoAway(nil, wire.GoAway{Reason: wire.Stopping}), 1)
		_ = f.conn.Close()
		m.wait()
		if err := m.result(); err != nil {
			t.Errorf("%v, want an end in order", err)
		}
	})
}

func TestBothSidesMayGoAwayAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := piped(t)
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- r.Drain(context.Background(), wire.GoAway{Reason: wire.Stopping}) }()
		r.stop()
		// Each may have heard the other's before it said its own.
		var away *Away
		if err := <-done; err != nil && !errors.As(err, &away) {
			t.Errorf("Drain: %v", err)
		}
		if err := <-r.served; err != nil && !errors.As(err, &away) {
			t.Errorf("Serve: %v", err)
		}
	})
}

func TestADispatchThatCrossesAGoAwayIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := path(1_000_000, 500*time.Millisecond)
		r := join(t, a, b, Worker{Experts: hashes{}}, Options{}, Options{})
		time.Sleep(5 * time.Second)
		r.stop()
		time.Sleep(100 * time.Millisecond)
		done := make(chan error, 2)
		for range 2 { // one leaves, and the worker drops it; one has not begun when GoAway comes
			go func() { done <- check(r.Session, big(t, 1)) }()
		}
		for range 2 {
			if err := <-done; !errors.Is(err, ErrDraining) {
				t.Errorf("%v, want ErrDraining", err)
			}
		}
		if err := <-r.served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		_ = r.Close()
	})
}

func TestADrainHasAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		stuck := fakes(func(ctx context.Context, _ *moe.Batch, _ *moe.Partials) error {
			<-ctx.Done()
			return ctx.Err()
		})
		r := join(t, a, b, Worker{Experts: stuck}, Options{}, Options{Drain: 7 * time.Second})
		done := make(chan error, 1)
		go func() { done <- check(r.Session, small(t, 1, 1)) }()
		synctest.Wait()
		begin := time.Now()
		r.stop()
		if err := <-r.served; !errors.Is(err, ErrClosed) || time.Since(begin) != 7*time.Second {
			t.Errorf("Serve: %v after %v", err, time.Since(begin))
		}
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Errorf("the call: %v", err)
		}
		_ = r.Close()

		r = piped(t)
		r.m.mu.Lock()
		r.m.calls[1<<40] = &call{} // one that is never answered
		r.m.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := r.Drain(ctx, wire.GoAway{Reason: wire.Stopping}); !errors.Is(err, ErrClosed) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Drain: %v", err)
		}
		<-r.served
		r.stop()
	})
}

func TestADrainDoesNotWaitForAnAssign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		w := Worker{Experts: hashes{}, Assign: func(ctx context.Context, _ wire.Assign, _ SliceReader) (moe.Experts, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		r := join(t, a, b, w, Options{}, Options{})
		done := make(chan error, 1)
		go func() { done <- r.Assign(context.Background(), []wire.Slice{{Hi: 1}}) }()
		synctest.Wait()
		begin := time.Now()
		r.stop()
		if err := <-done; !errors.Is(err, ErrCancelled) {
			t.Errorf("Assign: %v, want ErrCancelled", err)
		}
		if err := <-r.served; err != nil || time.Since(begin) > 0 {
			t.Errorf("Serve: %v after %v", err, time.Since(begin))
		}
		_ = r.Close()
	})
}

func TestCloseDoesNotWaitForAStuckWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		go raw(t, b, wire.RoleWorker) // it reads nothing after the handshake
		s, err := Open(context.Background(), a, Options{Hello: hello()})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		begin := time.Now()
		if err := s.Close(); err != nil || time.Since(begin) != farewellWait {
			t.Errorf("Close: %v after %v, want nil after %v", err, time.Since(begin), farewellWait)
		}
		_ = b.Close()
	})
}

func TestCloseFailsCallsAndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		r := join(t, a, b, Worker{Experts: waits(nil)}, Options{}, Options{})
		done := make(chan error, 3)
		for i := range 3 {
			go func() { done <- check(r.Session, small(t, uint64(i), 1)) }()
		}
		synctest.Wait()
		if err := r.Close(); err != nil || r.Err() != nil {
			t.Errorf("Close: %v, Err: %v", err, r.Err())
		}
		for range 3 {
			if err := <-done; !errors.Is(err, ErrClosed) {
				t.Errorf("%v, want ErrClosed", err)
			}
		}
		if err := check(r.Session, small(t, 1, 1)); !errors.Is(err, ErrClosed) {
			t.Errorf("a call after Close: %v, want ErrClosed", err)
		}
		if err := r.SendReceipt(wire.Receipt{}); !errors.Is(err, ErrClosed) {
			t.Errorf("a receipt after Close: %v, want ErrClosed", err)
		}
		if err := <-r.served; !errors.Is(err, ErrClosed) {
			t.Errorf("Serve: %v, want ErrClosed", err)
		}
		if err := r.Close(); err != nil {
			t.Errorf("a second Close: %v", err)
		}
		r.stop()
	})
}

func TestBytesAreCountedExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		ends := []*counter{{Conn: a}, {Conn: b}}
		started := make(chan *Peer, 1)
		w := Worker{Experts: hashes{}, Started: func(p *Peer) { started <- p }}
		r := join(t, ends[0], ends[1], w, Options{}, Options{})
		peer := <-started
		for i := range 5 {
			if err := check(r.Session, big(t, uint64(i))); err != nil {
				t.Fatal(err)
			}
		}
		_ = r.end()
		bb, ww := r.Stats(), peer.Stats()
		if bb.BytesOut != ww.BytesIn || bb.BytesIn != ww.BytesOut ||
			bb.BytesOut != uint64(ends[0].count()) || ww.BytesOut != uint64(ends[1].count()) {
			t.Errorf("backbone %d out %d in, worker %d in %d out, on the connection %d and %d",
				bb.BytesOut, bb.BytesIn, ww.BytesIn, ww.BytesOut, ends[0].count(), ends[1].count())
		}
		if ww.Done != 5 || ww.Jobs != 0 {
			t.Errorf("the worker counts %+v", ww)
		}
	})
}
