package serve

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener whose connections are in memory.
type pipes struct {
	conns chan net.Conn
	over  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.over:
	default:
		close(p.over)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// TestSlowClientsAreLetGo has clients that send a byte a second, or stop in the middle: each is told so where it
// can be told, let go in time, and nobody else is held up.
func TestSlowClientsAreLetGo(t *testing.T) {
	const post = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	for _, c := range []struct {
		name, at, slowly string // sent at once, and a byte a second
		want             string
		most             time.Duration
	}{
		{"body that stops", post + "Content-Length: 100\r\n\r\n{\"prompt\":", "", "HTTP/1.1 408 ", bodyTime},
		{"body by bytes", post + "Content-Length: 1000\r\n\r\n", strings.Repeat(" ", 1000), "HTTP/1.1 408 ", bodyTime},
		{"chunks by bytes", post + "Transfer-Encoding: chunked\r\n\r\n400\r\n", strings.Repeat(" ", 1000), "HTTP/1.1 408 ", bodyTime},
		{"head by bytes", "", post + strings.Repeat("X: y\r\n", 100), "HTTP/1.1 400 ", headTime},
		{"nothing at all", "", "", "", headTime},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := New(&fake{}, Options{Model: "m", Requests: 1})
				l := &pipes{make(chan net.Conn), make(chan struct{})}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- h.Run(ctx, l, time.Second) }()
				ours, theirs := net.Pipe()
				l.conns <- theirs
				begun := time.Now()
				var sends sync.WaitGroup
				sends.Go(func() { // ends when the connection is closed
					_, err := io.WriteString(ours, c.at)
					for i := 0; err == nil && i < len(c.slowly); i++ {
						time.Sleep(time.Second)
						_, err = io.WriteString(ours, c.slowly[i:i+1])
					}
				})
				got, _ := io.ReadAll(ours) // a pipe that is closed says so in its own way
				if took := time.Since(begun); took > c.most+time.Second {
					t.Errorf("let go after %v, want %v", took, c.most)
				}
				if !strings.HasPrefix(string(got), c.want) || c.want == "" && len(got) > 0 {
					t.Errorf("it is told %q, want %q", got, c.want)
				}
				_ = ours.Close() // it is at its end
				sends.Wait()
				synctest.Wait()
				if n := h.Busy(); n != 0 {
					t.Errorf("%d places are still taken", n)
				}
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
