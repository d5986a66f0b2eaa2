package relay

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

// HubConfig is for NewHub.
type HubConfig struct {
	Key   seal.Key       // the hub's id is made of it
	Grant seal.Grant     // that makes Key a hub's; only for workers whose token names no hub
	Root  seal.PublicKey // of the swarm
	Store seal.Store     // nil: a seal.MemoryStore
	TLS   *tls.Config    // nil: a certificate of Key
	Plain bool           // no TLS: on the gateway's own machine, or in tests

	Meter Meter // nil: none
	// Report takes a backbone's report, whose inside is a matter between it and the ledger, as the answer is,
	// of up to MaxAnswer bytes. The backbone sends it again until no error is returned. nil: reports are
	// refused.
	Report func(ctx context.Context, backbone seal.Grant, body []byte) (answer []byte, err error)
	// Statement takes what a worker says of its work, in the same way; body is valid until it returns. With an
	// answer beside an error the worker gets the answer alone.
	Statement func(ctx context.Context, worker seal.Proof, body []byte) (answer []byte, err error)
	// Ledger answers requests below /ledger that a gateway of the root proves to be its own. The hub's id
	// is off the path. nil: nothing is there.
	Ledger http.Handler

	Limits Limits
	Log    *slog.Logger // nil: none
	Now    func() time.Time
}

// A Hub pairs workers with backbones.
type Hub struct {
	c    HubConfig
	id   string
	door seal.Door
	f    *front
	http *httpDesk
	pace *pace // of workers
	keys *table[seal.PublicKey]

	mu       sync.Mutex // before front.mu and tally.mu; nobody waits for the network under it
	waiting  []*guest   // who came first is first
	guests   map[seal.PublicKey]*guest
	desks    []*desk // in the order in which they are offered workers
	sessions map[string]*session
	draining string        // why; empty: not
	empty    chan struct{} // closed when draining and no session is left
}

// usedNonces is how many joins a hub remembers for two minutes.
const usedNonces = 1 << 16

// NewHub returns a hub, to be given listeners by Serve.
func NewHub(c HubConfig) (*Hub, error) {
	switch {
	case c.Key.IsZero():
		return nil, errors.New("hub without a key")
	case c.Root.IsZero():
		return nil, errors.New("hub without the root's public key")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Store == nil {
		c.Store = seal.NewMemoryStore(1 << 16)
	}
	if c.Meter == nil {
		c.Meter = noMeter{}
	}
	config, err := outerTLS(c.TLS, c.Plain, c.Key, c.Grant)
	if err != nil {
		return nil, err
	}
	h := &Hub{c: c, id: seal.HubID(c.Key.Public()), guests: map[seal.PublicKey]*guest{}, sessions: map[string]*session{},
		empty: make(chan struct{})}
	h.door = seal.Door{Hub: h.id, Root: c.Root, Nonces: seal.NewNonces(usedNonces, c.Now), Store: c.Store, Now: c.Now}
	if h.f, err = newFront(c.Limits.withDefaults(), config, c.Log, h.visit); err != nil {
		return nil, err
	}
	h.f.sheds = true
	h.pace, h.keys = newPace(h.f.o.Pace), newTable[seal.PublicKey](h.f.o.Key, h.f.o.Conns)
	h.http = newHTTPDesk(h)
	return h, nil
}

// ID returns the id of the hub, which tokens and routes name.
func (h *Hub) ID() string { return h.id }

// Serve accepts connections from l until Close, and then returns nil. It may be called several times.
func (h *Hub) Serve(l net.Listener) error { return h.f.serve(l) }

// Close ends all connections. It returns when no goroutine is left.
func (h *Hub) Close() {
	h.f.close()
	h.http.close()
}

// Counts returns what has been counted, by name: accepted, workers, backbones, paired, bytes_to_backbones,
// bytes_to_workers, refused_REASON, and left_REASON of workers that have left the lobby without a session.
func (h *Hub) Counts() map[string]uint64 { return h.f.tally.counts() }

// HubStatus is a look at a hub.
type HubStatus struct {
	Conns, Waiting, Backbones, Sessions int
}

// Status returns how many there are of what.
func (h *Hub) Status() HubStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := HubStatus{Conns: h.f.active(), Waiting: len(h.waiting), Backbones: len(h.desks)}
	for _, x := range h.sessions {
		if x.live {
			s.Sessions++
		}
	}
	return s
}

// Drain takes nobody any more, tells the backbones to send their workers away, and waits until no session
// is left or ctx ends. Close is to follow.
func (h *Hub) Drain(ctx context.Context, reason string) error {
	h.mu.Lock()
	if h.draining == "" {
		h.draining = reason
		seconds := 0
		if t, ok := ctx.Deadline(); ok {
			seconds = max(0, int(time.Until(t)/time.Second))
		}
		for _, d := range h.desks {
			d.talk.send(message{Type: msgDrain, Reason: reason, Seconds: seconds})
		}
		for _, g := range h.waiting {
			g.leave(ErrDraining)
		}
		h.checkEmpty()
	}
	h.mu.Unlock()
	select {
	case <-h.empty:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d sessions are left: %w", h.Status().Sessions, ctx.Err())
	}
}

// checkEmpty is called with mu held when draining began or a session ended.
func (h *Hub) checkEmpty() {
	if h.draining == "" || len(h.sessions) > 0 {
		return
	}
	select {
	case <-h.empty:
	default:
		close(h.empty)
	}
}

// A tape keeps what is read through it.
type tape struct {
	net.Conn
	got   []byte
	limit int // bytes that may be read in all; 0: the reader has a limit of its own
}

var errTape = errors.New("read more than the limit")

func (t *tape) Read(p []byte) (int, error) {
	if t.limit > 0 {
		if len(t.got) >= t.limit {
			return 0, errTape
		}
		p = p[:min(len(p), t.limit-len(t.got))]
	}
	n, err := t.Conn.Read(p)
	t.got = append(t.got, p[:n]...)
	return n, err
}

// tries is how many requests one connection may send: the first, the answer to the challenge, and one
// more in case the nonce has become too old.
const tries = 3

func (h *Hub) visit(v *visitor) func() {
	t := &tape{Conn: v.nc}
	req, err := ws.ReadRequest(t, nil, h.f.o.Head)
	if err != nil || !takesShed(v.nc, req.Header) {
		keepTLS(v.nc)
	}
	if err == nil && !asks(req.Request, "") || err != nil && errors.Is(err, ws.ErrHandshake) && looksHTTP(t.got) {
		return h.http.take(v, t.got)
	}
	var from []string // a gateway says so in the first request
	if err == nil {
		from = req.Header[fromHeader]
	}
	for try := 1; ; try++ {
		if err != nil {
			v.refuse("request", err)
			return nil
		}
		var next func()
		if next, err = h.upgrade(v, req); err == nil {
			return next
		}
		var r *ws.Refusal
		if !errors.As(err, &r) || !r.Again || try == tries {
			v.refuse(reasonOf(r), err)
			return nil
		}
		_ = ws.Refuse(v.nc, err) // the same error
		if req, err = ws.ReadRequest(v.nc, req.Rest, h.f.o.Head); err == nil {
			req.Header[fromHeader] = from
		}
	}
}

// reasonOf is what a refusal is counted as.
func reasonOf(r *ws.Refusal) string {
	if r == nil {
		return "request"
	}
	switch r.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return "proof"
	case http.StatusNotFound:
		return "path"
	case http.StatusGone:
		return "gone"
	case http.StatusTooManyRequests:
		return "key"
	case http.StatusServiceUnavailable:
		return "busy"
	}
	return "request"
}

// looksHTTP reports whether b begins as a request does that net/http can answer in its own words.
func looksHTTP(b []byte) bool {
	for _, m := range []string{"GET /", "HEAD /", "POST /", "PUT /", "DELETE /"} {
		if bytes.HasPrefix(b, []byte(m)) {
			return true
		}
	}
	return false
}

// upgrade answers an upgrade request and returns what follows until the connection ends. An error is a
// request that is to be refused.
func (h *Hub) upgrade(v *visitor, req *ws.Request) (next func(), err error) {
	hub, path := splitPath(req.URL.Path)
	if hub != "" && hub != h.id {
		return nil, &ws.Refusal{Status: http.StatusNotFound, Reason: fmt.Sprintf("this is hub %s, not %.40q", h.id, hub)}
	}
	kind, id, _ := strings.Cut(path, "/")
	switch {
	case path == workerPath:
		return h.worker(v, req)
	case path == statementsPath:
		return h.statements(v, req)
	case path == backbonePath:
		return h.backbone(v, req)
	case kind == sessionPath && id != "":
		return h.session(v, req, id)
	}
	return nil, &ws.Refusal{Status: http.StatusNotFound, Reason: "nothing is here"}
}

// admit checks a request for protocol by who has the given role.
func (h *Hub) admit(v *visitor, req *ws.Request, protocol string, role seal.Role) (seal.Proof, error) {
	if !asks(req.Request, protocol) {
		return seal.Proof{}, &ws.Refusal{Status: http.StatusBadRequest, Reason: "this path is for Upgrade: " + protocol}
	}
	p, err := h.door.Admit(seal.WithOrigin(h.f.ctx, h.origin(req)), req.Header, req.RequestURI, role)
	if err == nil {
		v.proved()
		return p, nil
	}
	status, header, reason := h.door.Answer(err)
	r := &ws.Refusal{Status: status, Header: header, Reason: reason, Again: status == http.StatusUnauthorized}
	return p, fmt.Errorf("%w: %w", r, err)
}

// busy returns the refusal for a hub that is draining, or nil.
func (h *Hub) busy() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining == "" {
		return nil
	}
	return later(http.StatusServiceUnavailable, "the hub is draining: "+h.draining, h.pace.away(time.Now(), retrySeconds*time.Second))
}

// retrySeconds is for how long who comes during a drain stays away at least.
const retrySeconds = 5

// later is a refusal that says when to come back.
func later(status int, reason string, wait time.Duration) *ws.Refusal {
	return &ws.Refusal{Status: status, Reason: reason,
		Header: http.Header{"Retry-After": {strconv.Itoa(max(wholeSeconds(wait), 1))}}}
}

// enterKey holds a key to its limits, until the visitor leaves.
func (h *Hub) enterKey(v *visitor, key seal.PublicKey) (*account, error) {
	a, wait, err := h.keys.enter(key, time.Now())
	switch {
	case errors.Is(err, errTooOften):
		return nil, later(http.StatusTooManyRequests, "this key comes too often", wait)
	case err != nil:
		return nil, later(http.StatusTooManyRequests, "this key has too many connections", time.Minute)
	}
	v.after = func() { h.keys.leave(key) }
	return a, nil
}

// queue waits for a place among the workers that the hub takes a second.
func (h *Hub) queue(v *visitor) error {
	ctx, cancel := context.WithDeadline(h.f.ctx, v.limit)
	defer cancel()
	wait, err := h.pace.enter(ctx)
	if errors.Is(err, errTooOften) || errors.Is(err, context.DeadlineExceeded) {
		return later(http.StatusServiceUnavailable, "many workers come at once; there will be a place", wait)
	}
	return err
}

// newID returns 32 hexadecimal digits that nobody guesses.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never returns an error
	return hex.EncodeToString(b[:])
}
