package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"kvasir/bench/wan"
)

const (
	pingEvery = 50 * time.Millisecond
	pingsMax  = 1 << 16
)

// pinger measures what round trip a link delivers while the run uses it: it sends single bytes over a
// connection of its own to an echo of its own.
type pinger struct {
	conn, echo net.Conn
	stop       chan struct{}
	wg         sync.WaitGroup // echoing and pinging; they end when the connections are closed

	mu    sync.Mutex
	trips []time.Duration // under mu
}

func startPinger(ctx context.Context, l *wan.Link) (*pinger, error) {
	p := &pinger{stop: make(chan struct{})}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("measuring the round trip: %w", err)
	}
	defer ln.Close() //nolint:errcheck // it has done its work
	p.conn, err = l.Dial(ctx, "tcp", ln.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("measuring the round trip: %w", err)
	}
	if p.echo, err = ln.Accept(); err != nil {
		return nil, errors.Join(fmt.Errorf("measuring the round trip: %w", err), p.conn.Close())
	}
	p.wg.Go(func() { _, _ = io.Copy(p.echo, p.echo) })
	p.wg.Go(p.run)
	return p, nil
}

func (p *pinger) run() {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	var b [1]byte
	for n := range pingsMax {
		start := time.Now()
		if _, err := p.conn.Write(b[:]); err != nil {
			return
		}
		if _, err := io.ReadFull(p.conn, b[:]); err != nil {
			return
		}
		if n == 0 {
			continue // it was late: the far end's connection was still being made
		}
		p.mu.Lock()
		p.trips = append(p.trips, time.Since(start))
		p.mu.Unlock()
		select {
		case <-t.C:
		case <-p.stop:
			return
		}
	}
}

// count is how many there were.
func (p *pinger) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.trips)
}

// again returns what was measured so far, and forgets it.
func (p *pinger) again() *Pings {
	got := p.pings()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trips = nil
	return got
}

// pings returns what was measured so far; nil when it is nothing.
func (p *pinger) pings() *Pings {
	p.mu.Lock()
	trips := sorted(p.trips)
	p.mu.Unlock()
	if len(trips) == 0 {
		return nil
	}
	return &Pings{Median: milliseconds(median(trips)), P95: milliseconds(trips[len(trips)*95/100]), Count: len(trips)}
}

// close returns when no goroutine is left.
func (p *pinger) close() {
	close(p.stop)
	_ = p.conn.Close() // both ends go, in whatever state they are
	_ = p.echo.Close()
	p.wg.Wait()
}
