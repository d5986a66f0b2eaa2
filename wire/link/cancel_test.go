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

// spoil makes a batch and partials that were given back unusable: who touches them later is seen, by
// the race detector or by a wrong answer.
func spoil(b *moe.Batch, out *moe.Partials) {
	for i := range b.Q {
		b.Q[i] = -128
	}
	b.Rows = 1 << 20
	out.Reset(7, 7)
	for i := range out.Sum {
		out.Sum[i] = -1
	}
}

func TestACallCanBeGivenUpAtAnyMoment(t *testing.T) {
	// On this path the Dispatch of nine chunks takes about 540 ms, and its answer more than a second.
	middling := func(t *testing.T, n uint64) *moe.Batch {
		return newBatch(t, seeded(n), moe.Shape{Hidden: 1024, Format: moe.RowQ8K}, 128)
	}
	step := 37 * time.Millisecond
	if testing.Short() { // with the race detector this takes long
		step *= 3
	}
	for at := time.Duration(0); at < 1900*time.Millisecond; at += step {
		synctest.Test(t, func(t *testing.T) {
			a, b := path(250_000, 5*time.Millisecond)
			r := join(t, a, b, Worker{Experts: hashes{}}, Options{}, Options{})
			time.Sleep(time.Second)
			ctx, cancel := context.WithTimeout(context.Background(), at)
			defer cancel()
			batch, out := middling(t, 1), &moe.Partials{}
			begin := time.Now()
			err := r.Forward(ctx, batch, out)
			if err == nil || !errors.Is(err, context.DeadlineExceeded) || out.Rows != 0 {
				t.Fatalf("given up at %v: %v with %d rows", at, err, out.Rows)
			}
			if time.Since(begin) > at {
				t.Errorf("given up at %v, returned at %v", at, time.Since(begin))
			}
			spoil(batch, out)
			if err := check(r.Session, middling(t, 2)); err != nil {
				t.Errorf("given up at %v: the next call: %v", at, err)
			}
			time.Sleep(5 * time.Second)
			st := r.Stats()
			if st.Calls != 0 || st.Unacked != 0 {
				t.Errorf("given up at %v: left over: %+v", at, st)
			}
			for i := range out.Sum {
				if out.Sum[i] != -1 {
					t.Fatalf("given up at %v: the partials were touched", at)
				}
			}
			_ = r.end()
		})
	}
}

func TestCancelReachesTheExecutor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		var running atomic.Int32
		x := fakes(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			return ctx.Err()
		})
		r := join(t, a, b, Worker{Experts: x}, Options{}, Options{Parallel: 3})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 8)
		for i := range 8 {
			go func() { done <- r.Forward(ctx, small(t, uint64(i), 2), &moe.Partials{}) }()
		}
		synctest.Wait()
		if n := running.Load(); n != 3 {
			t.Errorf("%d computed at once, want 3", n)
		}
		cancel()
		for range 8 {
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want Canceled", err)
			}
		}
		synctest.Wait()
		if st := r.Stats(); running.Load() != 0 || st.Calls != 0 || st.Faulted != 8 {
			t.Errorf("%d are computed still; %+v", running.Load(), st)
		}
		_ = r.end()
	})
}

func TestCallsThatWaitForRoomAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		release := make(chan struct{})
		wo := Options{}
		wo.Hello.Calls, wo.Hello.Window = 2, 1<<20
		var seen []float32 // by the executor, one at a time
		x := fakes(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
			seen = append(seen, b.Weight[0])
			return waits(release).Forward(ctx, b, out)
		})
		wo.Parallel = 1
		r := join(t, a, b, Worker{Experts: x}, Options{}, wo)
		order := make(chan int, 6)
		var cancels []context.CancelFunc
		done := make(chan int, 6)
		for i := range 6 {
			ctx, cancel := context.WithCancel(context.Background())
			cancels = append(cancels, cancel)
			go func() {
				if err := r.Forward(ctx, small(t, uint64(i), 2), &moe.Partials{}); err == nil {
					order <- i
				}
				done <- i
			}()
			synctest.Wait()
		}
		if st := r.Stats(); st.Calls != 2 {
			t.Errorf("%d calls are under way, the worker takes 2", st.Calls)
		}
		cancels[3]()
		if i := <-done; i != 3 {
			t.Errorf("call %d ended, want 3, which was given up while it waited", i)
		}
		close(release)
		for range 5 {
			<-done
		}
		if len(order) != 5 {
			t.Errorf("%d calls were answered, want 5", len(order))
		}
		_ = r.end()
		for i, k := range []uint64{0, 1, 2, 4, 5} {
			if want := small(t, k, 2).Weight[0]; i >= len(seen) || seen[i] != want {
				t.Errorf("computed in the order %v, want call %d at %d", seen, k, i)
			}
		}
		for _, c := range cancels {
			c()
		}
	})
}

func TestACallThatIsGivenUpMakesRoomForTheNext(t *testing.T) {
	for _, tt := range []struct {
		name  string
		first int // rows of the call that is given up
	}{
		{"it was queued", 3},
		{"it waited", 90},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				tap := newTap(a)
				wo := Options{}
				wo.Hello.Calls, wo.Hello.Window = 2, 10_000
				r := join(t, tap, b, Worker{Experts: waits(nil)}, Options{}, wo)
				synctest.Wait()
				tap.hold()
				if err := r.SendReceipt(wire.Receipt{}); err != nil { // something for the writer to be held up by
					t.Fatal(err)
				}
				forward := func(rows int) context.CancelFunc {
					ctx, cancel := context.WithCancel(context.Background())
					go func() { _ = r.Forward(ctx, small(t, 1, rows), &moe.Partials{}) }()
					synctest.Wait()
					return cancel
				}
				cancels := []context.CancelFunc{forward(40), forward(tt.first), forward(3)}
				before := r.Stats().Calls // the third waits, for its number or behind the large one
				cancels[1]()
				synctest.Wait()
				r.m.mu.Lock()
				waiting := r.m.gates[0].waiting.head != nil
				r.m.mu.Unlock()
				if waiting || r.Stats().Calls != 2 {
					t.Errorf("%d calls were under way, now %d, and others wait: %v", before, r.Stats().Calls, waiting)
				}
				tap.release()
				cancels[0]()
				cancels[2]()
				_ = r.end()
			})
		})
	}
}

func TestAnAnswerThatHasComeIsNotLost(t *testing.T) {
	m := newMux(nil, Options{}, wire.RoleBackbone)
	defer m.stop()
	c := m.newCall(want{kind: wire.TypeDispatch})
	m.calls[7], c.id = c, 7
	m.endCall(c, result{epoch: 5})
	m.err = errDone // the session ended at the same moment
	if r, err := m.giveUp(c, nil, nil); err != nil || r.epoch != 5 {
		t.Errorf("%v, %v, want the answer", r, err)
	}
}

func TestAnAnswerThatIsNotWantedStopsComing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := path(250_000, 5*time.Millisecond)
		r := join(t, a, b, Worker{Experts: hashes{}}, Options{}, Options{})
		batch := newBatch(t, seeded(1), moe.Shape{Hidden: 1024, Format: moe.RowQ8K}, 128)
		ctx, cancel := context.WithTimeout(context.Background(), 700*time.Millisecond)
		defer cancel()
		if err := r.Forward(ctx, batch, &moe.Partials{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want DeadlineExceeded", err)
		}
		time.Sleep(5 * time.Second)
		whole := uint64(len(wire.AppendPartials(nil, direct(t, hashes{}, batch))))
		// What was acknowledged until then, and what the pace had let leave.
		if got := r.Stats().BytesIn; got > whole*3/4 {
			t.Errorf("%d bytes came of an answer of %d that was given up early", got, whole)
		}
		_ = r.end()
	})
}

func TestDeathAtAnyByteFailsEveryCall(t *testing.T) {
	for side, name := range []string{"backbone", "worker"} {
		t.Run(name, func(t *testing.T) {
			total := die(t, side, 1<<30)
			if total < 2*wire.MaxChunk {
				t.Fatalf("%d bytes are no test", total)
			}
			for at := 0; at < total; { // the handshake densely, and every chunk around its edges
				die(t, side, at)
				switch edge := (at - helloBytes + total) % wire.MaxChunk; {
				case at < helloBytes+40:
					at += 3
				case edge < 120 || edge > wire.MaxChunk-20:
					at += 9
				default:
					at += 2999
				}
			}
		})
	}
}

// helloBytes is how long the Hello of a test is.
const helloBytes = wire.HeaderLen + 128 + 4

// die runs two calls on a session one side of which is cut after some bytes written. It returns how many
// were written.
func die(t *testing.T, side, limit int) (wrote int) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		ends := []net.Conn{a, b}
		cut := &cutter{Conn: ends[side], left: limit}
		ends[side] = cut
		served := make(chan error, 1)
		go func() {
			served <- Serve(context.Background(), ends[1], Worker{Experts: hashes{}}, Options{Hello: hello()})
		}()
		s, err := Open(context.Background(), ends[0], Options{Hello: hello()})
		if err != nil {
			<-served
			return
		}
		batch := newBatch(t, seeded(1), moe.Shape{Hidden: 512, Format: moe.RowQ8K}, 64)
		want := direct(t, hashes{}, batch)
		type end struct {
			out *moe.Partials
			err error
		}
		done := make(chan end, 2)
		for range 2 {
			go func() {
				out := &moe.Partials{}
				done <- end{out, s.Forward(context.Background(), batch, out)}
			}()
		}
		for range 2 {
			switch e := <-done; {
			case e.err == nil && !same(e.out, want):
				t.Errorf("side %d cut after %d bytes: a wrong answer", side, limit)
			case e.err != nil && (!errors.Is(e.err, ErrClosed) || e.out.Rows != 0):
				t.Errorf("side %d cut after %d bytes: %v with %d rows", side, limit, e.err, e.out.Rows)
			}
		}
		_ = s.Close()
		<-served
		wrote = limit - cut.left
	})
	return wrote
}

// cutter closes the connection when so many bytes have been written.
type cutter struct {
	net.Conn
	left int
}

func (c *cutter) Write(p []byte) (int, error) {
	cut := len(p) >= c.left
	if cut {
		p = p[:c.left]
	}
	n, err := c.Conn.Write(p)
	c.left -= n
	if cut {
		_ = c.Close()
		err = net.ErrClosed
	}
	return n, err
}
