package relay

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"kvasir/wire/seal"
)

// maxBody is the most that a request to the ledger may carry, in bytes.
const maxBody = 1 << 20

// An httpDesk serves a hub's plain requests with net/http, on connections that the front has accepted.
type httpDesk struct {
	h     *Hub
	srv   *http.Server
	conns chan net.Conn
	once  sync.Once
	done  chan struct{} // closed by close
	ended chan struct{} // the server's goroutine has ended
}

type ctxKey int

const (
	handedKey ctxKey = iota
	proofKey
)

func newHTTPDesk(h *Hub) *httpDesk {
	d := &httpDesk{h: h, conns: make(chan net.Conn), done: make(chan struct{}), ended: make(chan struct{})}
	d.srv = &http.Server{
		Handler:           d,
		ReadHeaderTimeout: h.f.o.Greet,
		ReadTimeout:       3 * h.f.o.Greet,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    h.f.o.Head,

		DisableGeneralOptionsHandler: true, // which says yes to OPTIONS *
		ConnContext: func(ctx context.Context, nc net.Conn) context.Context {
			return context.WithValue(ctx, handedKey, nc)
		},
	}
	go func() {
		defer close(d.ended)
		_ = d.srv.Serve(d) // http.ErrServerClosed
	}()
	return d
}

// Accept, Close and Addr make a net.Listener for the server.

func (d *httpDesk) Accept() (net.Conn, error) {
	select {
	case nc := <-d.conns:
		return nc, nil
	case <-d.done:
		return nil, net.ErrClosed
	}
}

func (d *httpDesk) Close() error {
	d.once.Do(func() { close(d.done) })
	return nil
}

func (d *httpDesk) Addr() net.Addr { return &net.TCPAddr{} }

func (d *httpDesk) close() {
	_ = d.srv.Close()
	<-d.ended
}

// take hands a visitor to the server, and returns when that knows who it is or has closed the connection.
// got is what has been read from it.
func (d *httpDesk) take(v *visitor, got []byte) (rest func()) {
	c := &handed{Conn: v.nc, v: v, got: got, known: make(chan struct{}), closed: make(chan struct{})}
	v.quiet = true
	select {
	case d.conns <- c:
	case <-d.done:
		return nil
	}
	select {
	case <-c.known:
		return func() { <-c.closed }
	case <-c.closed:
		return nil
	}
}

// handed is a connection in the hands of net/http. The first deadline holds until the visitor is settled,
// whatever net/http sets.
type handed struct {
	net.Conn
	v   *visitor
	got []byte // of the reader

	mu      sync.Mutex
	settled bool

	known  chan struct{} // closed when settled
	once   sync.Once
	closed chan struct{}
}

func (c *handed) Read(p []byte) (int, error) {
	if len(c.got) > 0 && len(p) > 0 {
		n := copy(p, c.got)
		c.got = c.got[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

func (c *handed) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.closed) })
	return err
}

func (c *handed) clamp(t time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.settled && (t.IsZero() || t.After(c.v.limit)) {
		return c.v.limit
	}
	return t
}

func (c *handed) SetDeadline(t time.Time) error      { return c.Conn.SetDeadline(c.clamp(t)) }
func (c *handed) SetReadDeadline(t time.Time) error  { return c.Conn.SetReadDeadline(c.clamp(t)) }
func (c *handed) SetWriteDeadline(t time.Time) error { return c.Conn.SetWriteDeadline(c.clamp(t)) }

// settle lifts the first deadline.
func (c *handed) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.settled {
		c.settled = true
		c.v.settle()
		c.v.proved()
		close(c.known)
	}
}

// CloseWrite lets net/http end a connection so that its last answer is read.
func (c *handed) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// ServeHTTP answers a plain request.
func (d *httpDesk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	say := func(status int, body string) {
		if status != http.StatusUnauthorized {
			w.Header().Set("Connection", "close")
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		_, _ = fmt.Fprintln(w, body)
	}
	hub, path := splitPath(r.URL.Path)
	switch first, _, _ := strings.Cut(path, "/"); {
	case path == healthPath && hub == "" && r.Method == http.MethodGet:
		say(http.StatusOK, "ok")
		return
	case first != ledgerPath || d.h.c.Ledger == nil || hub != "" && hub != d.h.id:
		say(http.StatusNotFound, "nothing is here")
		return
	}
	p, err := d.h.door.Admit(r.Context(), r.Header, r.RequestURI, seal.Gateway)
	if err != nil {
		status, header, reason := d.h.door.Answer(err)
		for name, v := range header {
			w.Header()[name] = v
		}
		if status != http.StatusUnauthorized {
			d.h.f.tally.refuse("proof", r.RemoteAddr, err)
		}
		say(status, reason)
		return
	}
	r.Context().Value(handedKey).(*handed).settle()
	r = r.Clone(context.WithValue(r.Context(), proofKey, p))
	r.URL.Path, r.URL.RawPath = "/"+path, ""
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	d.h.c.Ledger.ServeHTTP(w, r)
}

// ProofFrom returns who has sent a request to HubConfig.Ledger.
func ProofFrom(ctx context.Context) (seal.Proof, bool) {
	p, ok := ctx.Value(proofKey).(seal.Proof)
	return p, ok
}
