package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"kvasir/wire/ws"
)

// A front accepts connections for a Gateway or a Hub. Each has one goroutine, which ends by the deadline
// of Limits.Greet unless the visitor is settled before, and by close at the latest.
type front struct {
	o      Limits
	tls    *tls.Config // nil: plain
	log    *slog.Logger
	tally  *tally
	handle func(*visitor)

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	wg     sync.WaitGroup // of accepting loops and visitors
	places chan struct{}  // one a visitor who is not settled

	mu     sync.Mutex
	closed bool
	ls     map[net.Listener]struct{}
	conns  map[net.Conn]struct{}
}

func newFront(o Limits, config *tls.Config, log *slog.Logger, handle func(*visitor)) *front {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if config != nil {
		config = config.Clone()
		config.NextProtos = []string{"http/1.1"} // HTTP/2 has no upgrade
		config.SessionTicketsDisabled = true
	}
	f := &front{o: o, tls: config, log: log, handle: handle, places: make(chan struct{}, o.Pending),
		ls: map[net.Listener]struct{}{}, conns: map[net.Conn]struct{}{}}
	f.tally = &tally{log: log, n: map[string]uint64{}, next: map[string]time.Time{}, held: map[string]int{}}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

// serve accepts from l until close, which makes it return nil, or until l fails.
func (f *front) serve(l net.Listener) error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		_ = l.Close()
		return ErrClosed
	}
	f.ls[l] = struct{}{}
	f.wg.Add(1)
	f.mu.Unlock()
	defer f.wg.Done()
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			f.accept(nc)
		case f.ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("listen on %v: %w", l.Addr(), err)
		default: // such as too many open files; it passes
			f.tally.refuse("accept", "-", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-f.ctx.Done():
				return nil
			}
		}
	}
}

func (f *front) accept(nc net.Conn) {
	f.mu.Lock()
	full := f.closed || len(f.conns) >= f.o.Conns
	if !full {
		select {
		case f.places <- struct{}{}:
			f.conns[nc] = struct{}{}
			f.wg.Add(1)
		default:
			full = true
		}
	}
	f.mu.Unlock()
	if full {
		_ = nc.Close()
		f.tally.refuse("full", host(nc), errors.New("too many connections"))
		return
	}
	f.tally.add("accepted", 1)
	v := &visitor{front: f, nc: nc, raw: nc, limit: time.Now().Add(f.o.Greet)}
	go v.serve()
}

// close ends all. It returns when no goroutine is left.
func (f *front) close() {
	f.mu.Lock()
	f.closed = true
	f.cancel()
	for l := range f.ls {
		_ = l.Close()
	}
	for nc := range f.conns {
		_ = nc.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// active is the number of connections.
func (f *front) active() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.conns)
}

// A visitor is one accepted connection. It belongs to its goroutine.
type visitor struct {
	front *front
	nc    net.Conn  // what to speak on: raw, or TLS over it
	raw   net.Conn  // as accepted
	limit time.Time // until it is settled

	once  sync.Once // settling
	quiet bool      // cut without a word
}

func (v *visitor) serve() {
	defer v.front.wg.Done()
	defer v.leave()
	if err := v.nc.SetDeadline(v.limit); err != nil {
		return
	}
	if v.front.tls != nil {
		t := tls.Server(v.nc, v.front.tls)
		if err := t.HandshakeContext(v.front.ctx); err != nil {
			v.notTLS(err)
			return
		}
		v.nc = t
	}
	v.front.handle(v)
}

// notTLS counts a handshake that came to nothing, and answers HTTP in the clear in its own words.
func (v *visitor) notTLS(err error) {
	var record tls.RecordHeaderError
	if errors.As(err, &record) && record.Conn != nil && record.RecordHeader[0] >= 'A' && record.RecordHeader[0] <= 'Z' {
		err = errors.New("HTTP in the clear where TLS is spoken")
		plain := visitor{nc: record.Conn}
		plain.answer(http.StatusBadRequest, "this port speaks TLS: begin with https or wss")
	}
	v.front.tally.refuse("tls", host(v.raw), err)
}

// settle ends the time of probation: the deadline is off, and the place is free for another.
func (v *visitor) settle() {
	v.once.Do(func() {
		<-v.front.places
		_ = v.nc.SetDeadline(time.Time{})
	})
}

// leave ends the connection. Whoever has been answered gets time to read that: closing with bytes
// unread would make TCP throw the answer away.
func (v *visitor) leave() {
	if !v.quiet && v.front.ctx.Err() == nil {
		if half, ok := v.nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
			limit := time.Now().Add(v.front.o.Linger)
			if v.limit.Before(limit) && v.limit.After(time.Now()) {
				limit = v.limit
			}
			_ = v.nc.SetDeadline(limit)
			_, _ = io.CopyN(io.Discard, v.nc, 64<<10)
		}
	}
	sever(v.nc)
	v.once.Do(func() { <-v.front.places })
	v.front.mu.Lock()
	delete(v.front.conns, v.raw)
	v.front.mu.Unlock()
}

// refuse answers a request that is not granted because of err, and counts it.
func (v *visitor) refuse(reason string, err error) {
	if errors.Is(err, ws.ErrHandshake) || errors.Is(err, ws.ErrTooBig) {
		_ = ws.Refuse(v.nc, err) // the same error
		var r *ws.Refusal
		if errors.As(err, &r) {
			err = errors.New(r.Reason)
		}
	} else {
		v.quiet = true
	}
	v.front.tally.refuse(reason, host(v.raw), err)
}

// answer is for plain requests.
func (v *visitor) answer(status int, body string) {
	_, _ = fmt.Fprintf(v.nc, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n"+
		"Connection: close\r\n\r\n%s\n", status, http.StatusText(status), len(body)+1, body)
}

// sever closes a connection without a word. A tls.Conn would try for 5 s to say goodbye, so its own
// connection goes first.
func sever(nc net.Conn) {
	if t, ok := nc.(interface{ NetConn() net.Conn }); ok {
		_ = t.NetConn().Close()
	}
	_ = nc.Close()
}

// host is the address of the far end without the port.
func host(nc net.Conn) string {
	if nc.RemoteAddr() == nil {
		return "-"
	}
	addr := nc.RemoteAddr().String()
	if h, _, err := net.SplitHostPort(addr); err == nil {
		return h
	}
	return addr
}

// tallyEvery is the least time between two log lines about strangers for the same reason.
const tallyEvery = 10 * time.Second

// A tally counts by reason, and logs what strangers do, one line a reason in tallyEvery at most. Reasons
// are constants of this package, so there are few.
type tally struct {
	log *slog.Logger

	mu   sync.Mutex
	n    map[string]uint64
	next map[string]time.Time // when the reason may be logged again
	held map[string]int       // lines that were not logged
}

func (t *tally) add(name string, n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n[name] += n
}

func (t *tally) refuse(reason, from string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n["refused_"+reason]++
	now := time.Now()
	if now.Before(t.next[reason]) {
		t.held[reason]++
		return
	}
	t.log.Info("refused", "reason", reason, "from", from, "err", err, "unsaid", t.held[reason])
	t.next[reason], t.held[reason] = now.Add(tallyEvery), 0
}

func (t *tally) counts() map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.n)
}
