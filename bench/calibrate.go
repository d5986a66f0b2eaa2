package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"kvasir/bench/wan"
)

// calibrated is an emulated path with what it delivers.
type calibrated struct {
	settings PathSettings
	pinger   *pinger
}

const (
	pingsFirst   = 8                      // before anything else uses the path
	rateFor      = 200 * time.Millisecond // of its limit is sent to measure a rate
	pingPatience = 10                     // round trips that a ping may take while nothing else is on the way
)

// calibrate measures what a path delivers that nothing else uses, and goes on with its round trip. The near
// end of a link is the worker's.
func calibrate(ctx context.Context, l *wan.Link, rtt time.Duration, p Path) (*calibrated, error) {
	c := &calibrated{settings: PathSettings{RTT: milliseconds(rtt)}}
	var err error
	if p.Up > 0 {
		if c.settings.UpGot, err = deliveredRate(ctx, l, p.Up, true); err != nil {
			return nil, err
		}
	}
	if p.Down > 0 {
		if c.settings.DownGot, err = deliveredRate(ctx, l, p.Down, false); err != nil {
			return nil, err
		}
	}
	if c.pinger, err = startPinger(ctx, l); err != nil {
		return nil, err
	}
	patience, cancel := context.WithTimeout(ctx, pingsFirst*(pingPatience*rtt+time.Second))
	defer cancel()
	for c.pinger.count() < pingsFirst && patience.Err() == nil {
		_ = until(patience, time.Now().Add(pingEvery/2))
	}
	c.settings.Idle = c.pinger.again()
	return c, ctx.Err()
}

// deliveredRate sends over a connection of its own for a while, and returns the bits a second at which they
// arrive, from the first that does to the last.
func deliveredRate(ctx context.Context, l *wan.Link, limit Rate, up bool) (got float64, err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("measuring the rate of the path: %w", err)
	}
	defer ln.Close() //nolint:errcheck // it has done its work
	from, err := l.Dial(ctx, "tcp", ln.Addr().String())
	if err != nil {
		return 0, fmt.Errorf("measuring the rate of the path: %w", err)
	}
	defer from.Close() //nolint:errcheck // what it sent has been counted
	to, err := ln.Accept()
	if err != nil {
		return 0, fmt.Errorf("measuring the rate of the path: %w", err)
	}
	defer to.Close() //nolint:errcheck // likewise
	stop := context.AfterFunc(ctx, func() { _ = errors.Join(from.Close(), to.Close()) })
	defer stop()
	if !up {
		from, to = to, from
	}
	if got, err = arrivalRate(from, to, limit); err != nil {
		return 0, errors.Join(ctx.Err(), fmt.Errorf("measuring the rate of the path: %w", err))
	}
	return got, nil
}

// arrivalRate sends through a connection and returns the bits a second at which they arrive.
func arrivalRate(from io.Writer, to io.Reader, limit Rate) (float64, error) {
	// What fits the queue leaves at once, and is not counted.
	n := wan.QueueMax + max(64<<10, int64(float64(limit)/8*rateFor.Seconds()))
	sent := make(chan error, 1)
	go func() { // ends when all is sent, or the connection is closed
		_, err := from.Write(make([]byte, n))
		sent <- err
	}()
	if _, err := io.CopyN(io.Discard, to, wan.QueueMax); err != nil {
		return 0, err
	}
	start := time.Now()
	if _, err := io.CopyN(io.Discard, to, n-wan.QueueMax); err != nil {
		return 0, err
	}
	return round(8 * float64(n-wan.QueueMax) / time.Since(start).Seconds()), <-sent
}
