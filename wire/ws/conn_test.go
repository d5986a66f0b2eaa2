package ws

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"
)

func TestFrameIsOneWrite(t *testing.T) {
	for _, role := range []Role{Server, Client} {
		for _, n := range []int{0, 1, 125, 126, 16000, DefaultMessage} {
			a, b := loopback(t)
			w := &counted{Conn: a}
			c := New(w, role, nil, Options{})
			collect(b)
			p := bytes.Repeat([]byte{7}, n)
			slab := append(make([]byte, Headroom), p...)
			if err := errors.Join(c.WriteSlab(Binary, slab), c.WriteMessage(Binary, p)); err != nil {
				t.Fatal(err)
			}
			writes := w.taken()
			if len(writes) != 2 {
				t.Fatalf("%v: %d writes for 2 frames of %d bytes", role, len(writes), n)
			}
			for _, b := range writes {
				if got := frames(t, role, b); len(got) != 1 || got[0].p != string(p) || !got[0].fin || got[0].op != Binary {
					t.Errorf("%v: a write of %v, want a frame of %d bytes", role, got, n)
				}
			}
			if n > 0 && p[0] != 7 {
				t.Error("WriteMessage changed its argument")
			}
			c.CloseNow()
		}
	}
}

// A write on a pipe that nobody reads would wait: what is refused is not sent.
func TestWhatThePeerWouldRefuseIsNotSent(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close() //nolint:errcheck // of a test
	c := New(a, Server, nil, Options{Message: 100})
	if err := c.WriteMessage(Binary, make([]byte, 101)); !errors.Is(err, ErrTooBig) {
		t.Errorf("a message too long: %v", err)
	}
	for _, text := range utf8Bad {
		if err := c.WriteMessage(Text, []byte(text)); !errors.Is(err, ErrUTF8) {
			t.Errorf("text %q: %v", text, err)
		}
	}
	c.CloseNow()
}

// A peer that pings and reads nothing must not stop us from reading, and costs one slot.
func TestReaderNeverWaitsForWriter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe() // a write waits until it is read
		c := New(near, Server, nil, Options{})
		go func() {
			for i := range 1000 {
				_, _ = far.Write(fP(fmt.Sprint(i)).wire(Server))
			}
			_, _ = far.Write(fB("data").wire(Server))
		}()
		slab := make([]byte, 100)
		op, n, err := c.ReadMessage(slab)
		if err != nil || op != Binary || string(slab[:n]) != "data" {
			t.Fatalf("read %v %q, %v", op, slab[:n], err)
		}
		// One Pong is under way since an early Ping; the slot holds the last one.
		out := collect(far)
		synctest.Wait()
		if got := frames(t, Server, out.bytes()); len(got) != 2 || got[1] != fO("999") {
			t.Errorf("sent %v", got)
		}
		c.CloseNow()
		<-out.done
	})
}

func TestPongWaitsForNoMoreThanOneFrame(t *testing.T) {
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := New(near, Client, nil, Options{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { _ = c.WriteMessage(Binary, []byte("data")) })
		}
		synctest.Wait()
		wg.Go(func() { _, _, _ = c.ReadMessage(make([]byte, 10)) })
		if _, err := far.Write(fP("now").wire(Client)); err != nil {
			t.Fatal(err)
		}
		out := collect(far)
		synctest.Wait()
		count := map[OpCode]int{}
		for _, f := range frames(t, Client, out.bytes()) {
			count[f.op]++
		}
		if count[ws.OpPong] != 1 || count[Binary] != 4 {
			t.Errorf("sent %v", count)
		}
		c.CloseNow()
		wg.Wait()
		<-out.done
	})
}

func TestDeadlineLosesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := New(near, Server, nil, Options{})
		b := wire(Server, ft("Hé"), fP("p"), fc("llo "), fC("wörld"))
		go func() { // a byte a second
			for i := range b {
				time.Sleep(time.Second)
				_, _ = far.Write(b[i : i+1])
			}
		}()
		out := collect(far)
		slab := make([]byte, 100)
		var n, tries int
		for err := os.ErrDeadlineExceeded; err != nil; tries++ {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			if err := c.SetReadDeadline(time.Now().Add(1500 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			_, n, err = c.ReadMessage(slab)
		}
		if string(slab[:n]) != "Héllo wörld" || tries < 10 {
			t.Errorf("read %q in %d tries", slab[:n], tries)
		}
		c.CloseNow()
		<-out.done
	})
}

func TestSilentPeerIsCut(t *testing.T) {
	for _, tt := range []struct {
		name string
		wait func(c *Conn) error
		want time.Duration
		err  error
	}{
		{"reading", func(c *Conn) error { _, _, err := c.ReadMessage(nil); return err }, DefaultIdle, ErrSilent},
		{"reading, with a later deadline", func(c *Conn) error {
			_ = c.SetReadDeadline(time.Now().Add(time.Hour))
			_, _, err := c.ReadMessage(nil)
			return err
		}, DefaultIdle, ErrSilent},
		{"writing", func(c *Conn) error { return c.WriteMessage(Binary, []byte("x")) }, DefaultWrite, ErrSilent},
		{"writing, with an earlier deadline", func(c *Conn) error {
			_ = c.SetWriteDeadline(time.Now().Add(time.Second))
			return c.WriteMessage(Binary, []byte("x"))
		}, time.Second, os.ErrDeadlineExceeded},
		{"closing", func(c *Conn) error { return c.Close(StatusNormal, "") }, DefaultClose, ErrSilent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				near, far := net.Pipe()
				c := New(near, Server, nil, Options{})
				start := time.Now()
				err := tt.wait(c)
				if !errors.Is(err, tt.err) || time.Since(start) != tt.want {
					t.Errorf("after %v: %v; want %v: %v", time.Since(start), err, tt.want, tt.err)
				}
				c.CloseNow()
				_ = far.Close()
			})
		})
	}
}

func TestAnyByteIsLife(t *testing.T) {
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := New(near, Server, nil, Options{})
		out := collect(far)
		go func() {
			for range 10 {
				time.Sleep(40 * time.Second)
				_, _ = far.Write(fP("").wire(Server))
			}
			_, _ = far.Write(fB("x").wire(Server))
		}()
		if _, _, err := c.ReadMessage(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		c.CloseNow()
		<-out.done
	})
}

// A write that goes wrong may have sent half a frame: nothing may follow, and the reader must
// learn.
func TestFailedWriteEndsReads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := New(near, Server, nil, Options{})
		read := make(chan error)
		go func() { _, _, err := c.ReadMessage(nil); read <- err }()
		err := c.WriteMessage(Binary, []byte("x"))
		if !errors.Is(err, ErrSilent) {
			t.Errorf("write: %v", err)
		}
		if again := c.WriteMessage(Binary, []byte("x")); !errors.Is(again, err) {
			t.Errorf("second write: %v", again)
		}
		if err := <-read; !errors.Is(err, ErrCut) {
			t.Errorf("read: %v", err)
		}
		_ = c.Close(StatusNormal, "")
		_ = far.Close()
	})
}

func TestCloseHandshake(t *testing.T) {
	pair := func(t *testing.T) (a, b *Conn) {
		x, y := loopback(t)
		return New(x, Client, nil, Options{}), New(y, Server, nil, Options{})
	}
	t.Run("reader of the peer answers", func(t *testing.T) {
		a, b := pair(t)
		read := make(chan error, 1)
		go func() { _, _, err := b.ReadMessage(nil); read <- err; _ = b.Close(StatusNormal, "") }()
		if err := a.Close(StatusGoingAway, "see you"); err != nil {
			t.Errorf("close: %v", err)
		}
		var closed *CloseError
		if err := <-read; !errors.As(err, &closed) || closed.Code != StatusGoingAway || closed.Reason != "see you" {
			t.Errorf("peer read %v", err)
		}
		_ = b.Close(StatusNormal, "")
	})
	t.Run("both at once", func(t *testing.T) {
		a, b := pair(t)
		var wg sync.WaitGroup
		for _, c := range []*Conn{a, b, a, b} {
			wg.Go(func() {
				if err := c.Close(StatusNormal, ""); err != nil {
					t.Errorf("%v: %v", c.Role(), err)
				}
			})
		}
		wg.Wait()
	})
	t.Run("with a reader of our own and data under way", func(t *testing.T) {
		a, b := pair(t)
		var wg sync.WaitGroup
		wg.Go(func() { // writes until it is told to stop
			for b.WriteMessage(Binary, make([]byte, 1000)) == nil {
			}
		})
		wg.Go(func() {
			for {
				if _, _, err := b.ReadMessage(make([]byte, 1000)); err != nil {
					_ = b.Close(StatusNormal, "")
					return
				}
			}
		})
		wg.Go(func() {
			for {
				if _, _, err := a.ReadMessage(make([]byte, 1000)); err != nil {
					return
				}
			}
		})
		if err := a.Close(StatusNormal, ""); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := a.WriteMessage(Binary, nil); !errors.Is(err, ErrClosed) {
			t.Errorf("write after close: %v", err)
		}
		if _, _, err := a.ReadMessage(nil); !errors.Is(err, ErrClosed) {
			var closed *CloseError
			if !errors.As(err, &closed) {
				t.Errorf("read after close: %v", err)
			}
		}
		wg.Wait()
	})
	t.Run("peer is cut", func(t *testing.T) {
		a, b := pair(t)
		b.CloseNow()
		if err := a.Close(StatusNormal, ""); !errors.Is(err, ErrCut) {
			t.Errorf("close: %v", err)
		}
	})
	t.Run("cut while closing", func(t *testing.T) {
		a, b := pair(t)
		done := make(chan struct{})
		go func() { defer close(done); _ = a.Close(StatusNormal, "") }()
		a.CloseNow()
		inTime(t, done)
		b.CloseNow()
	})
}

// A peer that is refused in the midst of a frame must be able to send the rest: closing with bytes
// unread would make TCP throw away the Close frame, which says why.
func TestPeerReadsWhyItWasRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := New(near, Server, nil, Options{})
		out := collect(far)
		wrote := make(chan error)
		go func() {
			_, err := far.Write(wire(Server, fB(stars(200<<10)), fB("more")))
			wrote <- err
			_ = far.Close()
		}()
		if _, _, err := c.ReadMessage(make([]byte, 64<<10)); !errors.Is(err, ErrTooBig) {
			t.Fatalf("read: %v", err)
		}
		closed := make(chan error)
		go func() { closed <- c.Close(StatusNormal, "") }()
		if err := <-wrote; err != nil {
			t.Errorf("peer's write: %v", err)
		}
		if err := <-closed; !errors.Is(err, ErrTooBig) {
			t.Errorf("close: %v", err)
		}
		<-out.done
		if got := frames(t, Server, out.bytes()); len(got) != 1 || got[0].p[:2] != code(1009, "").p {
			t.Errorf("sent %v", got)
		}
	})
}

func TestCutIsTold(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   string
	}{
		{"between frames", ""}, {"in a header", "\x82"}, {"in a payload", "\x82\x05hel"}, {"in a ping", "\x89\x05hel"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			near, far := net.Pipe()
			go func() { _, _ = far.Write([]byte(tt.in)); _ = far.Close() }()
			c := New(near, Client, nil, Options{})
			if _, _, err := c.ReadMessage(make([]byte, 10)); !errors.Is(err, ErrCut) {
				t.Errorf("got %v", err)
			}
			c.CloseNow()
		})
	}
}

// rest of every length, over and under the buffer's size, with the rest of the frames by the
// socket.
func TestRestIsReadFirst(t *testing.T) {
	var in []byte
	for i := range 12 {
		in = append(in, fB(stars(i*100)).wire(Client)...)
	}
	for n := 0; n <= len(in); n += 37 {
		near, far := net.Pipe()
		c := New(near, Client, bytes.Clone(in[:n]), Options{})
		go func() { _, _ = far.Write(in[n:]); _ = far.Close() }()
		slab := make([]byte, 2000)
		for i := range 12 {
			if _, got, err := c.ReadMessage(slab); err != nil || got != i*100 {
				t.Fatalf("rest %d: message %d: %d bytes, %v", n, i, got, err)
			}
		}
		c.CloseNow()
	}
}

func TestNoFrameAfterClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		near, far := net.Pipe()
		c := New(near, Server, nil, Options{})
		out := collect(far)
		var wg, going sync.WaitGroup
		for range 8 {
			going.Add(1)
			wg.Go(func() {
				for i := 0; c.WriteMessage(Binary, []byte("x")) == nil; i++ {
					if i == 10 {
						going.Done()
					}
				}
			})
		}
		going.Wait()
		go func() { _, _ = far.Write(wire(Server, fP(""), fX(""), fP(""))) }()
		for {
			if _, _, err := c.ReadMessage(nil); err != nil {
				break
			}
		}
		_ = c.Close(StatusNormal, "")
		wg.Wait()
		<-out.done
		got := frames(t, Server, out.bytes())
		for i, f := range got {
			if (f.op == ws.OpClose) != (i == len(got)-1) {
				t.Fatalf("frame %d of %d: %v", i, len(got), f)
			}
		}
	})
}

func TestCloseErrorSaysWhatThePeerSaid(t *testing.T) {
	for want, err := range map[string]error{
		"ws: peer closed with status 1005":                    &CloseError{Code: StatusNoStatus},
		`ws: peer closed with status 1013: "come back later"`: &CloseError{StatusTryLater, "come back later"},
		`ws: peer closed with status 1000: "a\nb"`:            &CloseError{StatusNormal, "a\nb"},
	} {
		if err.Error() != want {
			t.Errorf("got %s, want %s", err, want)
		}
	}
}
