package relay

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"kvasir/wire/seal"
)

// tcpPair returns the two ends of a TCP connection, with TLS over it when secure.
func tcpPair(t testing.TB, secure bool) (near, far net.Conn) {
	t.Helper()
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // of a test
	if near, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	if secure {
		config, err := outerTLS(nil, false, seal.NewKey(), seal.Grant{})
		if err != nil {
			t.Fatal(err)
		}
		c, s := tls.Client(near, &tls.Config{InsecureSkipVerify: true}), tls.Server(far, config)
		done := make(chan error, 1)
		go func() { done <- s.Handshake() }()
		if err := errors.Join(c.Handshake(), <-done); err != nil {
			t.Fatal(err)
		}
		near, far = c, s
	}
	t.Cleanup(func() {
		sever(near)
		sever(far)
	})
	return near, far
}

type spliced struct {
	up, down uint64
	err      error
}

// spliceOf splices two fresh connections and returns their outer ends.
func spliceOf(t testing.TB, secure bool, o Limits) (a, b net.Conn, done chan spliced) {
	t.Helper()
	a, ain := tcpPair(t, secure)
	b, bin := tcpPair(t, false)
	done = make(chan spliced, 1)
	go func() {
		up, down, err := splice(leg{nc: ain}, leg{nc: bin}, o.withDefaults(), nil)
		done <- spliced{up, down, err}
	}()
	return a, b, done
}

func TestHalfCloseIsPassedOn(t *testing.T) {
	for _, secure := range []bool{false, true} {
		a, b, done := spliceOf(t, secure, Limits{Linger: patience})
		question, answer := bytes.Repeat([]byte("q"), 100_000), bytes.Repeat([]byte("a"), 300_000)
		go func() {
			_, _ = a.Write(question)
			_ = a.(interface{ CloseWrite() error }).CloseWrite()
		}()
		got, err := io.ReadAll(b)
		if err != nil || !bytes.Equal(got, question) {
			t.Fatalf("TLS %v: %d bytes, %v", secure, len(got), err)
		}
		go func() { // only after the end of the question
			_, _ = b.Write(answer)
			_ = b.Close()
		}()
		if got, err = io.ReadAll(a); err != nil || !bytes.Equal(got, answer) {
			t.Fatalf("TLS %v: %d bytes back, %v", secure, len(got), err)
		}
		if s := <-done; s != (spliced{100_000, 300_000, nil}) {
			t.Errorf("TLS %v: %+v", secure, s)
		}
	}
}

func TestHalfCloseCannotHang(t *testing.T) {
	for _, secure := range []bool{false, true} {
		a, b, done := spliceOf(t, secure, Limits{Linger: 30 * time.Millisecond})
		_ = a.(interface{ CloseWrite() error }).CloseWrite()
		if _, err := io.ReadAll(b); err != nil { // and b says nothing
			t.Fatal(err)
		}
		if s := <-done; s.err != nil {
			t.Errorf("TLS %v: %v", secure, s.err)
		}
		if n, err := a.Read(make([]byte, 1)); err == nil {
			t.Errorf("TLS %v: %d bytes after the end", secure, n)
		}
	}
}

func TestSpliceEndsWhatIsIdleOrStuck(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		_, _, done := spliceOf(t, true, Limits{Tick: 10 * time.Millisecond, Idle: 50 * time.Millisecond})
		if s := <-done; !errors.Is(s.err, ErrIdle) {
			t.Error(s.err)
		}
	})
	for _, secure := range []bool{false, true} {
		t.Run("stuck", func(t *testing.T) {
			a, _, done := spliceOf(t, secure, Limits{Tick: 10 * time.Millisecond, Stall: 100 * time.Millisecond})
			go func() { // until it is cut
				for p := make([]byte, 1<<20); ; {
					if _, err := a.Write(p); err != nil {
						return
					}
				}
			}()
			if s := <-done; !errors.Is(s.err, ErrStuck) {
				t.Error(s.err)
			}
		})
	}
}

func TestCountsAreToldWhileBytesFlow(t *testing.T) {
	a, ain := tcpPair(t, false)
	b, bin := tcpPair(t, false)
	told := make(chan uint64, 1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _, _ = splice(leg{nc: ain}, leg{nc: bin}, Limits{Tick: 10 * time.Millisecond}.withDefaults(),
			func(up, _ uint64) { told <- up })
	}()
	for sum := uint64(1000); sum <= 3000; sum += 1000 {
		if _, err := a.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(b, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		for got := uint64(0); got < sum; { // without the connection's end
			select {
			case got = <-told:
			case <-within(t).Done():
				t.Fatalf("%d bytes were not told", sum)
			}
		}
	}
	_, _ = a.Close(), b.Close()
	<-done
}
