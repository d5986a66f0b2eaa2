package access

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"kvasir/engine/serve"
)

// Options are for New.
type Options struct {
	Keys    string           // file of the keys; empty: nobody is asked for one
	Near    bool             // without keys: only this machine may ask, by an address or as localhost
	Origins []string         // of pages that may ask, as https://example.org, or * for all; none: none
	Log     io.Writer        // gets a line of JSON for each request; nil: none
	Errors  *slog.Logger     // of the node; nil: none
	Now     func() time.Time // nil: time.Now
}

// Guard stands before a handler.
type Guard struct {
	o     Options
	log   *slog.Logger // nil: none
	cross *http.CrossOriginProtection

	mu     sync.Mutex
	keys   map[string]*holder // by id; under mu
	file   os.FileInfo        // that they were read from; under mu
	looked time.Time          // when it was looked at last; under mu
}

// reread is how often the file of keys is looked at, at most.
const reread = time.Second

// New returns a guard. The file of keys is read, and need not be there.
func New(o Options) (*Guard, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Errors == nil {
		o.Errors = slog.New(slog.DiscardHandler)
	}
	g := &Guard{o: o, cross: http.NewCrossOriginProtection()}
	if o.Log != nil {
		g.log = newLog(o.Log)
	}
	for _, origin := range o.Origins {
		if origin == "*" {
			continue
		}
		if err := CheckOrigin(origin); err != nil {
			return nil, err
		}
		if err := g.cross.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("access: %w", err)
		}
	}
	if o.Keys != "" {
		if err := g.read(); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// CheckOrigin refuses what no browser sends as an origin; * is all.
func CheckOrigin(text string) error {
	u, err := url.Parse(text)
	if text == "*" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && text == u.Scheme+"://"+u.Host {
		return nil
	}
	return fmt.Errorf("access: want an origin such as https://example.org, or * for all, got %.100q", text)
}

// read reads the keys, if they have changed. A key keeps its buckets. g.mu is held, or nobody else is there.
func (g *Guard) read() error {
	g.looked = g.o.Now()
	info, err := os.Stat(g.o.Keys)
	if errors.Is(err, fs.ErrNotExist) {
		g.keys, g.file = nil, nil
		return nil
	}
	if err != nil {
		return fmt.Errorf("access: %w", err)
	}
	if g.file != nil && os.SameFile(info, g.file) && info.ModTime().Equal(g.file.ModTime()) && info.Size() == g.file.Size() {
		return nil
	}
	if info.Size() > MaxBytes {
		return fmt.Errorf("%w: %s has %d bytes", ErrKeys, g.o.Keys, info.Size())
	}
	text, err := os.ReadFile(g.o.Keys)
	if err != nil {
		return fmt.Errorf("access: %w", err)
	}
	l, err := Parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", g.o.Keys, err)
	}
	keys := make(map[string]*holder, len(l.Keys))
	for _, k := range l.Keys {
		if !k.Revoked.IsZero() {
			continue
		}
		old := g.keys[k.ID]
		if old == nil || old.Hash != k.Hash || old.Limits != k.Limits || !slices.Equal(old.Scopes, k.Scopes) {
			old = newHolder(k, g.looked)
		}
		keys[k.ID] = old
	}
	g.keys, g.file = keys, info
	return nil
}

// nobody is compared with where no key has the ID, so that it takes as long.
var nobody = &Key{Hash: hex.EncodeToString(make([]byte, 32))}

// find returns the key of a text; nil: there is none.
func (g *Guard) find(text string) *holder {
	id, secret, ok := split(text)
	if !ok {
		return nil
	}
	h := g.holder(id)
	if h == nil {
		nobody.opens(secret)
		return nil
	}
	if !h.opens(secret) {
		return nil
	}
	return h
}

// holder returns the key of an id; nil: none in force has it.
func (g *Guard) holder(id string) *holder {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.o.Keys != "" && g.o.Now().Sub(g.looked) >= reread {
		if err := g.read(); err != nil {
			g.o.Errors.Error("the keys as they were last are still in force", "err", err)
		}
	}
	return g.keys[id]
}

// Behind returns a context for work that the key of an id has left behind, such as a line of a batch job: its
// tokens are charged to the key. It is not to begin before wait is over. What a key has left behind that was
// revoked since goes on, and so does what was left without one.
func (g *Guard) Behind(ctx context.Context, id string) (_ context.Context, wait time.Duration) {
	h := g.holder(id)
	if h == nil {
		return ctx, 0
	}
	now := g.o.Now()
	return (&Call{key: h, begun: now, now: g.o.Now}).in(ctx), h.behind(now)
}

// Count is how many keys are in force.
func (g *Guard) Count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.keys)
}

// Around returns next with the guard before it.
func (g *Guard) Around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &Call{ID: newID(), begun: g.o.Now(), now: g.o.Now}
		out := &answer{ResponseWriter: w}
		out.Header().Set("X-Request-Id", c.ID)
		r = r.WithContext(c.in(r.Context()))
		if g.log != nil {
			defer g.note(r, c, out)
		}
		if !g.origin(out, r) && g.admit(out, r, c) {
			next.ServeHTTP(out, r)
		}
	})
}

func newID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never returns an error
	return "req_" + hex.EncodeToString(b[:])
}

// scope is what a request needs: none of a key, or one of a key. Of what is not listed any key will do.
func scope(r *http.Request) (s Scope, key bool) {
	under := func(path string) bool { return r.URL.Path == path || strings.HasPrefix(r.URL.Path, path+"/") }
	get := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case under("/healthz"), under("/readyz"):
		return "", false
	case get && !strings.HasPrefix(r.URL.Path, "/v1/") && (r.URL.Path == "/" || under("/page") || under("/favicon.ico")):
		return "", false // the page itself, which knows nothing
	case under("/metrics"), under("/debug"):
		return Admin, true
	case under("/v1/files"), under("/v1/batches"):
		return Batch, true
	case under("/v1/models"):
		return "", true
	case strings.HasPrefix(r.URL.Path, "/v1/"):
		return Chat, true
	}
	return "", true
}

// admit lets a request in, or refuses it.
func (g *Guard) admit(w http.ResponseWriter, r *http.Request, c *Call) bool {
	if g.o.Keys == "" {
		if err := g.cross.Check(r); err != nil && !slices.Contains(g.o.Origins, "*") {
			serve.Deny(w, serve.Denial{Status: http.StatusForbidden, Kind: "invalid_request_error", Code: "cross_origin",
				Message: "a page of another origin has sent this; --cors allows it"})
			return false
		}
		return g.near(w, r)
	}
	need, asked := scope(r)
	if !asked {
		return true
	}
	scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || text == "" {
		return unknown(w, "an API key is needed: send it as Authorization: Bearer KEY")
	}
	if c.key = g.find(strings.TrimSpace(text)); c.key == nil {
		return unknown(w, "this API key is not known here, or was revoked")
	}
	if !c.key.May(need) {
		serve.Deny(w, serve.Denial{Status: http.StatusForbidden, Kind: "invalid_request_error", Code: "insufficient_permissions",
			Message: fmt.Sprintf("this API key lacks the scope %s", need)})
		return false
	}
	if limit, wait := c.key.enter(g.o.Now()); wait > 0 {
		serve.Deny(w, serve.Denial{Status: http.StatusTooManyRequests, Kind: "rate_limit_error", Code: "rate_limit_exceeded", Retry: wait,
			Message: "this API key has used up its " + limit + "; try again later"})
		return false
	}
	return true
}

// near refuses, where nobody is asked for a key, what only this machine may ask: all of it with Options.Near,
// else what is for finding faults. A page elsewhere whose name was made to lead to this machine counts as the
// server's own in its reader's browser; what gives it away is the name.
func (g *Guard) near(w http.ResponseWriter, r *http.Request) bool {
	deny := func(message string) bool {
		serve.Deny(w, serve.Denial{Status: http.StatusForbidden, Kind: "invalid_request_error", Code: "not_local", Message: message})
		return false
	}
	if g.o.Near && !g.local(r.Host) {
		return deny(fmt.Sprintf("this server is for its own machine, and was asked for as %.100q; --keys or --open lets others in", r.Host))
	}
	if strings.HasPrefix(r.URL.Path, "/debug/") && !loopback(r.RemoteAddr) {
		return deny("this is for the server's own machine, or for an API key with the scope admin (--keys)")
	}
	return true
}

// local reports whether a request that came to host means this machine, or comes from a page that may ask.
func (g *Guard) local(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.Trim(name, "[]"))
	if _, err := netip.ParseAddr(name); err == nil || name == "" || name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	return slices.ContainsFunc(g.o.Origins, func(o string) bool {
		u, err := url.Parse(o)
		return o == "*" || err == nil && u.Hostname() == name
	})
}

// loopback reports whether an address, with its port, is of this machine.
func loopback(addr string) bool {
	a, err := netip.ParseAddrPort(addr)
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// unknown refuses a request without a key that holds.
func unknown(w http.ResponseWriter, message string) bool {
	w.Header().Set("WWW-Authenticate", `Bearer realm="kvasir"`)
	serve.Deny(w, serve.Denial{Status: http.StatusUnauthorized, Kind: "invalid_request_error", Code: "invalid_api_key", Message: message})
	return false
}

// longestHeaders bounds the names of headers that a page asks to send.
const longestHeaders = 1000

// origin tells a browser whether a page of another origin may read the answer. It returns true when the
// request only asked for that, and has been answered.
func (g *Guard) origin(w http.ResponseWriter, r *http.Request) (answered bool) {
	if len(g.o.Origins) == 0 {
		return false
	}
	head, origin := w.Header(), r.Header.Get("Origin")
	head.Add("Vary", "Origin")
	if origin == "" || !slices.Contains(g.o.Origins, origin) && !slices.Contains(g.o.Origins, "*") {
		return false
	}
	head.Set("Access-Control-Allow-Origin", origin)
	head.Set("Access-Control-Expose-Headers", "X-Request-Id, Retry-After")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	head.Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
	if names := r.Header.Get("Access-Control-Request-Headers"); names != "" && len(names) <= longestHeaders {
		head.Set("Access-Control-Allow-Headers", names)
	}
	head.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}
