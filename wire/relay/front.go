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
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/ants/v2"
	"golang.org/x/crypto/acme"

	"kvasir/wire/ws"
)

// A front accepts connections for a Gateway or a Hub. Until it is known who somebody is, one of Pending
// goroutines of a pool is with him, which ends by the deadline of Limits.Greet; when all are taken, who
// comes is turned away. What follows, a session, has a goroutine of its own, and ends by close at the
// latest.
type front struct {
	o      Limits
	tls    *tls.Config // nil: plain
	sheds  bool        // TLS may be shed
	log    *slog.Logger
	tally  *tally
	handle handler

	ctx     context.Context // ends with close
	cancel  context.CancelFunc
	wg      sync.WaitGroup // of accepting loops and visitors
	pool    *ants.Pool     // of handshakes
	addrs   *table[netip.Prefix]
	waiting atomic.Int64 // visitors in the pool

	mu     sync.Mutex
	closed bool
	ls     map[net.Listener]struct{}
	conns  map[net.Conn]struct{}
}

// A handler serves a visitor until it is known who that is and what is to come. It returns what is left
// to do, which may take for ever, or nil.
type handler func(*visitor) (next func())

// Importing ants starts the goroutines of a pool that nobody uses here.
func init() { ants.Release() }

func newFront(o Limits, config *tls.Config, log *slog.Logger, handle handler) (*front, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	f := &front{o: o, tls: outerRules(config), log: log, handle: handle, addrs: newTable[netip.Prefix](o.Address, o.Conns),
		ls: map[net.Listener]struct{}{}, conns: map[net.Conn]struct{}{}}
	f.tally = newTally(log)
	f.ctx, f.cancel = context.WithCancel(context.Background())
	var err error
	f.pool, err = ants.NewPool(o.Pending, ants.WithNonblocking(true), ants.WithExpiryDuration(10*time.Second),
		ants.WithPanicHandler(f.bug))
	return f, err
}

// outerRules returns what holds for the TLS of every listener, on top of config.
func outerRules(config *tls.Config) *tls.Config {
	if config == nil {
		return nil
	}
	c := config.Clone()
	protos := []string{"http/1.1"} // HTTP/2 has no upgrade
	if slices.Contains(c.NextProtos, acme.ALPNProto) {
		protos = append(protos, acme.ALPNProto)
	}
	c.NextProtos = protos
	c.SessionTicketsDisabled = true
	c.DynamicRecordSizingDisabled = true // what comes is in chunks as long as a record already
	return c
}

// bug is told what a handshake's goroutine panicked with. The others go on; the visitor is gone by then.
func (f *front) bug(what any) {
	f.tally.add("bugs", 1)
	f.log.Error("BUG: a handshake panicked", "panic", what, "stack", string(debug.Stack()))
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
	v := &visitor{front: f, nc: nc, raw: nc, limit: time.Now().Add(f.o.Greet), addr: addressOf(nc)}
	if err := f.register(v); err != nil {
		_ = nc.Close()
		f.tally.refuse(reasonFull(err), host(nc), err)
		return
	}
	f.tally.add("accepted", 1)
	f.waiting.Add(1)
	if err := f.pool.Submit(v.greet); err != nil {
		f.waiting.Add(-1)
		v.forget()
		_ = nc.Close()
		f.tally.refuse("full", host(nc), errors.New("too many handshakes under way"))
	}
}

// register enters a visitor where there is room. forget is to follow.
func (f *front) register(v *visitor) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return ErrClosed
	}
	if len(f.conns) >= f.o.Conns {
		return errors.New("too many connections in all")
	}
	if !f.o.trusts(v.addr) {
		a, _, err := f.addrs.enter(v.addr, time.Now())
		if err != nil {
			return fmt.Errorf("%w from %s", err, v.addr)
		}
		v.account = a
	}
	f.conns[v.raw] = struct{}{}
	f.wg.Add(1)
	return nil
}

// reasonFull is what a connection is counted under that was turned away at once.
func reasonFull(err error) string {
	switch {
	case errors.Is(err, errTooOften):
		return "rate"
	case errors.Is(err, errTooMany):
		return "sessions"
	}
	return "full"
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
	_ = f.pool.ReleaseTimeout(time.Second) // its goroutines have nothing to do any more
}

// active is the number of connections.
func (f *front) active() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.conns)
}

// A visitor is one accepted connection. It belongs to its goroutine.
type visitor struct {
	front   *front
	nc      net.Conn     // what to speak on: raw, or TLS over it
	raw     net.Conn     // as accepted
	addr    netip.Prefix // what it is limited as
	account *account     // of addr; nil where limits by address do not hold
	limit   time.Time    // until it is settled

	quiet bool   // cut without a word
	given bool   // to another's goroutine, which calls leave
	after func() // called when it leaves; may be nil
}

// greet runs in the pool.
func (v *visitor) greet() {
	var next func()
	fine := false
	defer func() {
		defer v.front.waiting.Add(-1)
		v.quiet = v.quiet || !fine // it has panicked
		if next == nil {
			v.done()
			return
		}
		go func() {
			next()
			v.done()
		}()
	}()
	next = v.meet()
	fine = true
}

// meet returns what is to come when it is known who it is.
func (v *visitor) meet() func() {
	if err := v.nc.SetDeadline(v.limit); err != nil {
		return nil
	}
	if v.front.tls != nil {
		nc := v.nc
		if v.front.sheds {
			nc = overRecords(nc)
		}
		t := tls.Server(nc, v.front.tls)
		if err := t.HandshakeContext(v.front.ctx); err != nil {
			v.notTLS(err)
			return nil
		}
		v.nc = t
		if t.ConnectionState().NegotiatedProtocol == acme.ALPNProto {
			return nil // the handshake was all that the authority wanted
		}
	}
	return v.front.handle(v)
}

func (v *visitor) done() {
	if !v.given {
		v.leave()
	}
}

// notTLS counts a handshake that came to nothing, and answers HTTP in the clear in its own words.
func (v *visitor) notTLS(err error) {
	var record tls.RecordHeaderError
	if errors.As(err, &record) && record.Conn != nil && record.RecordHeader[0] >= 'A' && record.RecordHeader[0] <= 'Z' {
		err = errors.New("HTTP in the clear where TLS is spoken")
		v.inClear()
	}
	v.front.tally.refuse("tls", host(v.raw), err)
}

// proved gives its handshake back to the address of a visitor who has proved a key: from then on it is
// the key that has limits, and a gateway's address is that of many.
func (v *visitor) proved() {
	if v.account != nil {
		v.front.addrs.refund(v.addr)
	}
}

// inClear answers HTTP in the clear where TLS is spoken. v.nc is not TLS yet.
func (v *visitor) inClear() {
	v.answer(http.StatusBadRequest, "this port speaks TLS: begin with https or wss")
}

// settle ends the time of probation: the deadline is off.
func (v *visitor) settle() { _ = v.nc.SetDeadline(time.Time{}) }

// extend gives a visitor whose time is over that of an answer: behind its deadline nothing could be written, and TLS
// would say no more than that it is broken.
func (v *visitor) extend() {
	if least := time.Now().Add(v.front.o.Linger); v.limit.Before(least) {
		v.limit = least
		_ = v.nc.SetWriteDeadline(least) // should it fail, so does what follows
	}
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
	v.forget()
}

// forget takes a visitor off the books.
func (v *visitor) forget() {
	v.front.mu.Lock()
	delete(v.front.conns, v.raw)
	v.front.mu.Unlock()
	if v.account != nil {
		v.front.addrs.leave(v.addr)
	}
	if v.after != nil {
		v.after()
	}
	v.front.wg.Done()
}

// refuse answers a request that is not granted because of err, and counts it.
func (v *visitor) refuse(reason string, err error) {
	if errors.Is(err, ws.ErrHandshake) || errors.Is(err, ws.ErrTooBig) {
		v.extend()
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

func newTally(log *slog.Logger) *tally {
	return &tally{log: log, n: map[string]uint64{}, next: map[string]time.Time{}, held: map[string]int{}}
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

// broke counts somebody who is known and has left because of err, where that is a fault of his. Whoever
// logs that he has left says which.
func (t *tally) broke(err error) {
	for _, fault := range []error{ErrProtocol, ws.ErrProtocol, ws.ErrTooBig, ws.ErrUTF8, ws.ErrUnsupported} {
		if errors.Is(err, fault) {
			t.add("refused_protocol", 1)
			return
		}
	}
}

// why is the reason of an end, for a log.
func why(err error) any {
	if err == nil {
		return "in order"
	}
	return err
}

// cut counts a splice that has not ended in order.
func (t *tally) cut(err error) {
	switch {
	case err == nil:
	case errors.Is(err, ErrIdle):
		t.add("cut_idle", 1)
	case errors.Is(err, ErrStuck):
		t.add("cut_stuck", 1)
	default:
		t.add("cut_broken", 1)
	}
}

func (t *tally) counts() map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.n)
}
