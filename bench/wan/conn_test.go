package wan

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestDeadlineBoundsReadAndWrite(t *testing.T) {
	bubble(t, Profile{Up: mbits, Down: mbits}, func(t *testing.T, _ *Link, near, _ *Conn) {
		big := make([]byte, 1<<20)
		ops := map[string]struct {
			set func(time.Time) error
			op  func() error
		}{
			"read":  {near.SetReadDeadline, func() error { _, err := near.Read(big); return err }},
			"write": {near.SetWriteDeadline, func() error { _, err := near.Write(big); return err }},
			"both":  {near.SetDeadline, func() error { _, err := near.Read(big); return err }},
		}
		for name, o := range ops {
			start := time.Now()
			expect := func(what string, at time.Duration) {
				t.Helper()
				err := o.op()
				var timeout net.Error
				if errorText(err) != late || !errors.As(err, &timeout) || !timeout.Timeout() {
					t.Errorf("%s, %s: %v, want a time-out", name, what, err)
				}
				if got := time.Since(start); got != at {
					t.Errorf("%s, %s: after %v, want %v", name, what, got, at)
				}
			}
			set := func(d time.Duration) { _ = o.set(start.Add(d)) }
			set(10 * msec)
			expect("set", 10*msec)
			expect("past", 10*msec)
			set(20 * msec)
			expect("moved on", 20*msec)
			set(0)
			expect("in the past", 20*msec)

			set(100 * msec)
			time.AfterFunc(5*msec, func() { set(50 * msec) })
			expect("moved back while waiting", 50*msec)
			set(60 * msec)
			time.AfterFunc(5*msec, func() { set(90 * msec) })
			expect("moved on while waiting", 90*msec)
			set(100 * msec)
			time.AfterFunc(5*msec, func() { _ = o.set(time.Time{}) })
			time.AfterFunc(25*msec, func() { set(0) })
			expect("cleared while waiting", 115*msec)
			_ = o.set(time.Time{})
		}
	})
}

func TestCloseIsSeenByBothEnds(t *testing.T) {
	bubble(t, Profile{RTT: 20 * msec}, func(t *testing.T, l *Link, near, far *Conn) {
		var w sync.WaitGroup
		atFar, atNear := listen(&w, far), listen(&w, near)
		send(t, far, "bye")
		if err := far.Close(); err != nil {
			t.Error(err)
		}
		send(t, near, "not known yet")
		w.Wait()
		check(t, *atFar, arrival{0, closed})
		check(t, *atNear, arrival{10 * msec, "bye"}, arrival{10 * msec, eof})
		if _, err := near.Write([]byte("x")); errorText(err) != broken {
			t.Errorf("write to an end that left: %v, want %s", err, broken)
		}
		ops := map[string]func() error{
			"read":         func() error { _, err := far.Read(nil); return err },
			"write":        func() error { _, err := far.Write([]byte("x")); return err },
			"close":        far.Close,
			"close write":  far.CloseWrite,
			"set deadline": func() error { return far.SetDeadline(time.Now()) },
		}
		for name, op := range ops {
			if err := op(); errorText(err) != closed {
				t.Errorf("%s after Close: %v, want %s", name, err, closed)
			}
		}
		if n := l.Stats().Open; n != 1 {
			t.Errorf("%d connections open with one end closed, want 1", n)
		}
		_ = near.Close()
		if s := l.Stats(); s.Open != 0 || s.Down != 3 {
			t.Errorf("stats %+v, want none open and 3 bytes down", s)
		}
	})
}

func TestAbortIsReadAsAReset(t *testing.T) {
	bubble(t, Profile{RTT: 20 * msec}, func(t *testing.T, _ *Link, near, far *Conn) {
		var w sync.WaitGroup
		at := listen(&w, far)
		send(t, near, "last words")
		_ = near.Abort()
		w.Wait()
		check(t, *at, arrival{10 * msec, "last words"}, arrival{10 * msec, reset})
	})
}

func TestHalfCloseLeavesTheOtherWay(t *testing.T) {
	bubble(t, Profile{RTT: 20 * msec}, func(t *testing.T, _ *Link, near, far *Conn) {
		send(t, near, "question")
		_ = near.CloseWrite()
		if _, err := near.Write([]byte("x")); errorText(err) != broken {
			t.Errorf("write after CloseWrite: %v, want %s", err, broken)
		}
		got, err := io.ReadAll(far)
		if err != nil || string(got) != "question" {
			t.Errorf("far read %q, %v", got, err)
		}
		send(t, far, "answer")
		_ = far.Close()
		got, err = io.ReadAll(near)
		if err != nil || string(got) != "answer" {
			t.Errorf("near read %q, %v", got, err)
		}
	})
}

func TestConnMayBeUsedByMany(t *testing.T) {
	bubble(t, Profile{RTT: 2 * msec, Jitter: msec, Up: 100 * mbits}, func(t *testing.T, _ *Link, near, far *Conn) {
		const writers, each = 8, 50
		var w, r sync.WaitGroup
		var mu sync.Mutex
		count := map[byte]int{}
		for i := range writers {
			w.Go(func() {
				for range each {
					// A write is whole: it is not mixed with another's.
					msg := make([]byte, 20_000)
					for k := range msg {
						msg[k] = byte(i)
					}
					send(t, near, string(msg))
				}
			})
		}
		for range writers {
			r.Go(func() {
				buf := make([]byte, 1000)
				for {
					n, err := far.Read(buf)
					if err != nil {
						return
					}
					mu.Lock()
					for _, b := range buf[:n] {
						count[b]++
					}
					mu.Unlock()
				}
			})
		}
		w.Wait()
		_ = near.Close()
		r.Wait()
		for i := range byte(writers) {
			if count[i] != each*20_000 {
				t.Errorf("%d bytes of writer %d, want %d", count[i], i, each*20_000)
			}
		}
	})
}

func TestLinkCloseReleasesAll(t *testing.T) {
	bubble(t, Profile{Up: mbits}, func(t *testing.T, l *Link, near, far *Conn) {
		var w sync.WaitGroup
		w.Go(func() {
			if _, err := far.Read(make([]byte, 1)); errorText(err) != reset {
				t.Errorf("read: %v, want %s", err, reset)
			}
		})
		l.Stall(Up, time.Hour)
		w.Go(func() {
			if _, err := near.Write(make([]byte, 1<<20)); errorText(err) != reset {
				t.Errorf("write: %v, want %s", err, reset)
			}
		})
		synctest.Wait()
		for range 2 {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		w.Wait()
		if _, _, err := l.Pipe(); !errors.Is(err, ErrClosed) {
			t.Errorf("pipe on a closed link: %v, want ErrClosed", err)
		}
		if _, err := l.Dial(t.Context(), "tcp", "127.0.0.1:9"); !errors.Is(err, ErrClosed) {
			t.Errorf("dial on a closed link: %v, want ErrClosed", err)
		}
		a, b := net.Pipe()
		if err := l.Join(a, b); !errors.Is(err, ErrClosed) {
			t.Errorf("join on a closed link: %v, want ErrClosed", err)
		}
		for _, c := range []net.Conn{a, b} {
			if _, err := c.Write([]byte("x")); err == nil {
				t.Error("a connection handed to a closed link is open")
			}
		}
	})
}

func TestLinkBoundsItsConnections(t *testing.T) {
	bubble(t, Profile{}, func(t *testing.T, l *Link, near, far *Conn) {
		for range connsMax - 1 {
			if _, _, err := l.Pipe(); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := l.Pipe(); !errors.Is(err, ErrFull) {
			t.Errorf("one too many: %v, want ErrFull", err)
		}
		_ = near.Close()
		_ = far.Close()
		if _, _, err := l.Pipe(); err != nil {
			t.Errorf("after one has left: %v", err)
		}
	})
}

func TestJoinPutsTheLinkBetween(t *testing.T) {
	bubble(t, Profile{RTT: 20 * msec}, func(t *testing.T, l *Link, _, _ *Conn) {
		near, a := net.Pipe()
		b, far := net.Pipe()
		if err := l.Join(a, b); err != nil {
			t.Fatal(err)
		}
		var w sync.WaitGroup
		atFar := listen(&w, far)
		send(t, near, "one")
		send(t, near, "two")
		time.Sleep(msec)
		_ = near.Close() // net.Pipe cannot half-close, so this ends both ways
		w.Wait()
		check(t, *atFar, arrival{10 * msec, "onetwo"}, arrival{11 * msec, eof})
		_ = far.Close()
		synctest.Wait()
		time.Sleep(20 * msec)
		if n := l.Stats().Open; n != 1 {
			t.Errorf("%d connections open, want the bubble's own", n)
		}
	})
}

// memory is a listener without a socket.
type memory struct {
	conns chan net.Conn
	gone  chan struct{}
	once  sync.Once
}

func newMemory() *memory { return &memory{conns: make(chan net.Conn), gone: make(chan struct{})} }

func (m *memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.gone:
		return nil, net.ErrClosed
	}
}

func (m *memory) Close() error   { m.once.Do(func() { close(m.gone) }); return nil }
func (m *memory) Addr() net.Addr { return Addr("memory") }

func TestLaneKeepsItsQueueAndItsRate(t *testing.T) {
	for seed := range uint64(50) {
		rng := newRand(seed)
		p := Profile{RTT: 10 * msec, Queue: queueMin + rng.IntN(QueueMax-queueMin)}
		rate := int64(1+rng.IntN(1000)) * 100_000
		n := newLane(p, rate)
		// The dumb twin: packets in a list, each of which leaves when it has had its time.
		type packet struct{ leaves, bytes int64 }
		var queue []packet
		var sent int64
		var now, last time.Duration
		for range 500 {
			size := 1 + rng.IntN(n.cut)
			at, again, ok := n.admit(now, size)
			for !ok {
				if again <= now {
					t.Fatalf("seed %d: told to try again at %v, and it is %v", seed, again, now)
				}
				now = again
				at, again, ok = n.admit(now, size)
			}
			sent += int64(size)
			if at < last || at < now+n.half {
				t.Fatalf("seed %d: arrives at %v, after %v, and it is %v", seed, at, last, now)
			}
			last = at
			queue = append(queue, packet{int64(at - n.half), int64(size)})
			var waiting int64
			for len(queue) > 0 && queue[0].leaves-int64(n.span(int(queue[0].bytes))) < int64(now) {
				queue = queue[1:]
			}
			for _, q := range queue {
				waiting += q.bytes
			}
			if waiting > int64(n.queue) {
				t.Fatalf("seed %d: %d bytes wait, want at most %d", seed, waiting, n.queue)
			}
			// Never faster than the rate, from the start, but for what rounding gives a packet.
			if least := time.Duration(float64(sent*8)/float64(rate)*1e9) - 500; at-n.half < least {
				t.Fatalf("seed %d: %d bytes through at %v, want %v at least", seed, sent, at-n.half, least)
			}
			now += time.Duration(rng.Int64N(int64(2*n.span(size) + 1)))
		}
	}
}

func FuzzRing(f *testing.F) {
	f.Add([]byte{10, 5, 200, 100, 3, 250, 255, 255})
	f.Fuzz(func(t *testing.T, steps []byte) {
		var r ring
		var twin []byte
		var next byte
		for i, s := range steps {
			if i%2 == 0 {
				p := make([]byte, int(s)*31)
				for k := range p {
					p[k] = next
					next++
				}
				r.write(p)
				twin = append(twin, p...)
			} else {
				p := make([]byte, min(len(twin), int(s)*29))
				r.read(p)
				if string(p) != string(twin[:len(p)]) {
					t.Fatalf("step %d: read other bytes than were written", i)
				}
				twin = twin[len(p):]
			}
			if r.size != len(twin) {
				t.Fatalf("step %d: holds %d bytes, want %d", i, r.size, len(twin))
			}
		}
	})
}

func TestErrorsNameTheEnds(t *testing.T) {
	bubble(t, Profile{}, func(t *testing.T, l *Link, near, _ *Conn) {
		l.Cut(Reset)
		_, err := near.Write([]byte("x"))
		const want = "write wan near->far: connection reset by peer"
		if !errors.Is(err, syscall.ECONNRESET) || fmt.Sprint(err) != want {
			t.Errorf("got %q, want %q", fmt.Sprint(err), want)
		}
	})
}
