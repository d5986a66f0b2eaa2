package wan

import (
	"bytes"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// echoServer echoes what comes to a loopback address until the test ends.
func echoServer(t testing.TB) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var tasks sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	tasks.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			tasks.Go(func() {
				defer shutAll(c)
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		tasks.Wait()
	})
	return ln.Addr().String()
}

// proxied returns the near end of a connection to addr over a new link.
func proxied(t testing.TB, p Profile, addr string, conns int) (*Link, []net.Conn) {
	t.Helper()
	l, err := NewLink(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	x, err := l.Proxy("127.0.0.1:0", addr)
	if err != nil {
		t.Fatal(err)
	}
	var near []net.Conn
	for range conns {
		c, err := net.Dial("tcp", x.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		near = append(near, c)
	}
	return l, near
}

// ping returns the sorted round trips of count messages over c, after two that are not counted. It
// rests between them, since a round trip that follows at once finds everything awake.
func ping(c net.Conn, count int, rest time.Duration) ([]time.Duration, error) {
	msg := bytes.Repeat([]byte("ping"), 16)
	back := make([]byte, len(msg))
	var trips []time.Duration
	for i := range count + 2 {
		time.Sleep(rest)
		start := time.Now()
		if _, err := c.Write(msg); err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(c, back); err != nil {
			return nil, err
		}
		if i >= 2 {
			trips = append(trips, time.Since(start))
		}
	}
	slices.Sort(trips)
	return trips, nil
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
