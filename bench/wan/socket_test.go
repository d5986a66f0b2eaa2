package wan

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// target is a loopback listener whose connections the test takes.
func target(t *testing.T) *net.TCPListener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln.(*net.TCPListener)
}

// through returns the two ends of a connection through a proxy, as sockets.
func through(t *testing.T, p Profile) (l *Link, near, far *net.TCPConn) {
	t.Helper()
	ln := target(t)
	l, conns := proxied(t, p, ln.Addr().String(), 1)
	far, err := ln.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	return l, conns[0].(*net.TCPConn), far
}

func noise(seed uint64, size int) []byte {
	p := make([]byte, size)
	rng := newRand(seed)
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	return p
}

func TestProxyCarriesBytesBothWays(t *testing.T) {
	profiles := map[string]Profile{
		"wire":   {},
		"jitter": {RTT: 2 * msec, Jitter: 2 * msec},
		"rate":   {RTT: msec, Up: 200 * mbits, Down: 100 * mbits, Queue: 20_000},
	}
	for name, p := range profiles {
		t.Run(name, func(t *testing.T) {
			l, near, far := through(t, p)
			up, down := noise(1, 1<<20), noise(2, 1<<20+1)
			var w sync.WaitGroup
			for _, c := range []struct {
				from, to *net.TCPConn
				data     []byte
			}{{near, far, up}, {far, near, down}} {
				w.Go(func() {
					_, _ = c.from.Write(c.data)
					_ = c.from.CloseWrite()
				})
				w.Go(func() {
					got, err := io.ReadAll(c.to)
					if err != nil || !bytes.Equal(got, c.data) {
						t.Errorf("got %d bytes, want the %d that were sent (error %v)", len(got), len(c.data), err)
					}
				})
			}
			w.Wait()
			if s := l.Stats(); s.Up != 1<<20 || s.Down != 1<<20+1 {
				t.Errorf("stats %+v, want what was sent", s)
			}
		})
	}
}

func TestProxyPassesHalfClose(t *testing.T) {
	_, near, far := through(t, Profile{RTT: msec})
	_, _ = near.Write([]byte("question"))
	_ = near.CloseWrite()
	if got, err := io.ReadAll(far); err != nil || string(got) != "question" {
		t.Errorf("far read %q, %v", got, err)
	}
	_, _ = far.Write([]byte("answer"))
	_ = far.Close()
	if got, err := io.ReadAll(near); err != nil || string(got) != "answer" {
		t.Errorf("near read %q, %v", got, err)
	}
}

func TestProxyPassesReset(t *testing.T) {
	for _, end := range []string{"near", "far"} {
		t.Run(end, func(t *testing.T) {
			_, from, to := through(t, Profile{RTT: msec})
			if end == "far" {
				from, to = to, from
			}
			_ = from.SetLinger(0)
			_ = from.Close()
			if _, err := to.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("got %v, want a reset", err)
			}
		})
	}
}

func TestProxyTellsAWriterThatTheOtherEndLeft(t *testing.T) {
	_, near, far := through(t, Profile{RTT: msec})
	_ = far.Close()
	if _, err := near.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("got %v, want the end of the stream", err)
	}
	for { // until the far kernel has refused it, and that has come back
		if _, err := near.Write(make([]byte, 1000)); err != nil {
			return
		}
	}
}

func TestCutReachesSockets(t *testing.T) {
	for name, how := range map[string]How{"reset": Reset, "fin": Fin} {
		t.Run(name, func(t *testing.T) {
			l, near, far := through(t, Profile{RTT: msec})
			_, _ = near.Write([]byte("x"))
			if _, err := far.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			if n := l.Cut(how); n != 1 {
				t.Errorf("cut %d, want 1", n)
			}
			for _, c := range []net.Conn{near, far} {
				_, err := c.Read(make([]byte, 1))
				if how == Reset && !errors.Is(err, syscall.ECONNRESET) || how == Fin && !errors.Is(err, io.EOF) {
					t.Errorf("read after the cut: %v", err)
				}
			}
		})
	}
}

func TestCutByFinGivesTheEndOfTheStreamToAWriter(t *testing.T) {
	l, near, far := through(t, Profile{RTT: msec, Up: mbits})
	var w sync.WaitGroup
	w.Go(func() {
		// The link reads on after the cut: else its kernel would answer with a reset.
		if _, err := near.Write(make([]byte, 16<<20)); err != nil {
			t.Errorf("near: %v, want its bytes taken", err)
		}
	})
	if _, err := far.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	l.Cut(Fin)
	if _, err := io.Copy(io.Discard, far); err != nil {
		t.Errorf("far: %v, want the end of the stream", err)
	}
	if _, err := near.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("near: %v, want the end of the stream", err)
	}
	w.Wait()
}

func TestProxyResetsWhatTheTargetRefuses(t *testing.T) {
	ln := target(t)
	_ = ln.Close()
	l, err := NewLink(Profile{RTT: msec})
	if err != nil {
		t.Fatal(err)
	}
	defer shutAll(l)
	x, err := l.Proxy("127.0.0.1:0", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := net.Dial("tcp", x.Addr().String())
	if err == nil { // else the reset was there before Dial was through
		defer shutAll(near)
		_, err = near.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
	_, err = l.Dial(t.Context(), "tcp", ln.Addr().String())
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dial: %v, want it refused", err)
	}
	_ = l.Close() // waits for what is under way
	if n := l.Stats().Open; n != 0 {
		t.Errorf("%d connections open, want none", n)
	}
}

func TestProxyNamesAPortInUse(t *testing.T) {
	ln := target(t)
	l, err := NewLink(Profile{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Proxy(ln.Addr().String(), "127.0.0.1:9"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got %v, want address in use", err)
	}
	_ = l.Close()
	if _, err := l.Proxy("127.0.0.1:0", "127.0.0.1:9"); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
}

func TestProxyCloseLeavesItsConnections(t *testing.T) {
	ln := target(t)
	l, err := NewLink(Profile{})
	if err != nil {
		t.Fatal(err)
	}
	defer shutAll(l)
	x, err := l.Proxy("127.0.0.1:0", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	near, err := net.Dial("tcp", x.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer shutAll(near)
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer shutAll(far)
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	send(t, near, "still here")
	got := make([]byte, 10)
	if _, err := io.ReadFull(far, got); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", x.Addr().String()); err == nil {
		t.Error("a closed proxy accepts")
	}
}

func TestDialPutsTheLinkBetween(t *testing.T) {
	l, err := NewLink(Profile{RTT: 2 * msec})
	if err != nil {
		t.Fatal(err)
	}
	defer shutAll(l)
	ln := target(t)
	c, err := l.Dial(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer shutAll(c)
	far, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer shutAll(far)
	if c.RemoteAddr().String() != ln.Addr().String() || c.LocalAddr().String() != far.RemoteAddr().String() {
		t.Errorf("addresses %v and %v, want those of the socket", c.LocalAddr(), c.RemoteAddr())
	}
	send(t, c, "up")
	buf := make([]byte, 2)
	if _, err := io.ReadFull(far, buf); err != nil || string(buf) != "up" {
		t.Errorf("far read %q, %v", buf, err)
	}
	send(t, far, "dn")
	_ = far.Close()
	if got, err := io.ReadAll(c); err != nil || string(got) != "dn" {
		t.Errorf("near read %q, %v", got, err)
	}
}

// descriptor is a connection that says it is a socket of the kernel's.
type descriptor struct{ net.Conn }

func (descriptor) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }

// TestSocketsComeOnTopOfThePath sends an echo between sockets that cost nothing, as those of a quick
// machine nearly do: it takes the whole round trip.
func TestSocketsComeOnTopOfThePath(t *testing.T) {
	bubble(t, Profile{RTT: msec}, func(t *testing.T, l *Link, _, _ *Conn) {
		near, a := net.Pipe()
		b, far := net.Pipe()
		if err := l.Join(descriptor{a}, descriptor{b}); err != nil {
			t.Fatal(err)
		}
		wrapped, c := net.Pipe()
		half, err := l.Wrap(descriptor{c})
		if err != nil {
			t.Fatal(err)
		}
		for name, ends := range map[string][2]net.Conn{"join": {near, far}, "wrap": {half, wrapped}} {
			var echo sync.WaitGroup
			echo.Go(func() { _, _ = io.Copy(ends[1], ends[1]) })
			for range 3 {
				start := time.Now()
				send(t, ends[0], "x")
				if _, err := io.ReadFull(ends[0], make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
				if got := time.Since(start); got != msec {
					t.Errorf("%s: an echo took %v, want 1 ms", name, got)
				}
			}
			shutAll(ends[0], ends[1])
			echo.Wait()
		}
	})
}

// TestServeTakesARoundTripToConnect follows a connection's first bytes: the request to connect
// takes half a round trip, its answer another; then the near end writes, and the far end half a
// round trip later.
func TestServeTakesARoundTripToConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := NewLink(Profile{RTT: 20 * msec})
		if err != nil {
			t.Fatal(err)
		}
		defer shutAll(l)
		start := time.Now()
		far := make(chan net.Conn, 1)
		ln := newMemory()
		err = l.Serve(ln, func(context.Context) (net.Conn, error) {
			if got := time.Since(start); got != 10*msec {
				t.Errorf("target dialed after %v, want 10 ms", got)
			}
			a, b := net.Pipe()
			far <- b
			return a, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		near, a := net.Pipe()
		ln.conns <- a
		var w sync.WaitGroup
		w.Go(func() { send(t, near, "client first") })
		b := <-far
		w.Go(func() { send(t, b, "server first") })
		atNear, atFar := listen(&w, near), listen(&w, b)
		time.Sleep(time.Second)
		_ = near.Close()
		_ = b.Close()
		w.Wait()
		// The notes of the far end begin at 10 ms, when it was dialed.
		check(t, (*atFar)[:1], arrival{20 * msec, "client first"})
		check(t, (*atNear)[:1], arrival{30 * msec, "server first"})
	})
}

func TestServeInABlackHoleSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := NewLink(Profile{RTT: 20 * msec})
		if err != nil {
			t.Fatal(err)
		}
		defer shutAll(l)
		l.BlackHole(Down)
		ln := newMemory()
		err = l.Serve(ln, func(context.Context) (net.Conn, error) {
			t.Error("target dialed through a black hole")
			return nil, net.ErrClosed
		})
		if err != nil {
			t.Fatal(err)
		}
		near, a := net.Pipe()
		ln.conns <- a
		send(t, near, "anybody there?")
		_ = near.SetReadDeadline(time.Now().Add(time.Hour))
		if _, err := near.Read(make([]byte, 1)); errorText(err) != late {
			t.Errorf("got %v, want nothing", err)
		}
		_ = near.Close()
	})
}

func TestStallHoldsAProxysClient(t *testing.T) {
	l, near, far := through(t, Profile{RTT: msec})
	l.Stall(Both, time.Hour)
	_, _ = near.Write([]byte("x"))
	_ = far.SetReadDeadline(time.Now().Add(20 * msec))
	if _, err := far.Read(make([]byte, 1)); errorText(err) != late {
		t.Errorf("read in a stall: %v, want a time-out", err)
	}
	_ = far.SetReadDeadline(time.Time{})
	l.Resume(Both)
	if _, err := far.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

func TestLinkCloseResetsSocketsAndListeners(t *testing.T) {
	l, near, far := through(t, Profile{RTT: 20 * msec})
	send(t, near, "x") // until it arrives the connection is not all made
	if _, err := far.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	again, err := net.Dial("tcp", near.RemoteAddr().String()) // this one is still connecting
	if err != nil {
		t.Fatal(err)
	}
	defer shutAll(again)
	_ = l.Close()
	for i, c := range []net.Conn{near, far, again} {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("connection %d: %v, want a reset", i, err)
		}
	}
	if _, err := net.Dial("tcp", near.RemoteAddr().String()); err == nil {
		t.Error("a closed link's proxy accepts")
	}
}
