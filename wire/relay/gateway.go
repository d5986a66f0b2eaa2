package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

// A Route leads to a hub. Of several, the first wins whose Hub is the first part of the path, then the
// first whose Host is the request's, then the first that has no Host.
type Route struct {
	Host string // of the request, without a port; may be empty
	Hub  string // id; may be empty where the hub is plain
	Addr string // HOST:PORT
	TLS  bool   // the hub speaks TLS, with the key that its id is made of
}

// GatewayConfig is for NewGateway.
type GatewayConfig struct {
	Routes []Route
	// TLS is what the gateway shows to the world. Where it is nil, and Plain is not set, the gateway makes
	// a certificate of Key and Grant; a worker trusts it when Grant makes Key a gateway's.
	TLS   *tls.Config
	Plain bool // no TLS: behind a CDN, or in tests
	// Passthrough is for a gateway that holds no keys. It reads the name that a ClientHello asks for,
	// terminates nothing, and leads to the first Route with that Host, then to the first whose Hub is the
	// name's first label, then to the first that has no Host. TLS is the hub's own then.
	Passthrough bool
	Key         seal.Key
	Grant       seal.Grant

	Limits Limits
	Log    *slog.Logger // nil: none
	Dial   func(ctx context.Context, network, addr string) (net.Conn, error)
}

// A Gateway splices connections through to hubs. It keeps nothing, and understands nothing after the
// upgrade request.
type Gateway struct {
	c GatewayConfig
	f *front
}

// NewGateway returns a gateway, to be given listeners by Serve.
func NewGateway(c GatewayConfig) (*Gateway, error) {
	if len(c.Routes) == 0 {
		return nil, errors.New("gateway without a route to any hub")
	}
	for i, r := range c.Routes {
		if slices.ContainsFunc(c.Routes[:i], func(o Route) bool { return r.Hub != "" && o.Hub == r.Hub && o.Host == r.Host }) {
			return nil, fmt.Errorf("hub %s is given twice: a gateway leads to each hub once", r.Hub)
		}
		if _, _, err := net.SplitHostPort(r.Addr); err != nil {
			return nil, fmt.Errorf("address of hub %q: %w", r.Hub, err)
		}
		if r.TLS && r.Hub == "" && !c.Passthrough {
			return nil, fmt.Errorf("hub at %s speaks TLS: its id is needed to know it", r.Addr)
		}
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	g := &Gateway{c: c}
	if c.Passthrough {
		if c.TLS != nil || c.Plain {
			return nil, errors.New("a gateway that passes TLS through shows none of its own")
		}
		var err error
		g.f, err = newFront(c.Limits.withDefaults(), nil, c.Log, g.passthrough)
		return g, err
	}
	config, err := outerTLS(c.TLS, c.Plain, c.Key, c.Grant)
	if err != nil {
		return nil, err
	}
	g.f, err = newFront(c.Limits.withDefaults(), config, c.Log, g.visit)
	return g, err
}

// OwnTLS returns what a gateway shows to whoever knows the swarm: a certificate of its key, which grant
// makes a gateway's.
func OwnTLS(key seal.Key, grant seal.Grant) (*tls.Config, error) {
	return outerTLS(nil, false, key, grant)
}

// outerTLS returns what a listener shows: config if there is one, nothing when plain, and else a
// certificate of k, drawn where it is missing.
func outerTLS(config *tls.Config, plain bool, k seal.Key, g seal.Grant) (*tls.Config, error) {
	if plain || config != nil {
		return config, nil
	}
	if k.IsZero() {
		k = seal.NewKey()
	}
	cert, err := seal.OuterCertificate(k, g)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}, nil
}

// Serve accepts connections from l until Close, and then returns nil. It may be called several times.
func (g *Gateway) Serve(l net.Listener) error { return g.f.serve(l) }

// Close ends all connections. It returns when no goroutine is left.
func (g *Gateway) Close() { g.f.close() }

// Counts returns what has been counted, by name: accepted, spliced, bytes_in and bytes_out (from and to
// the world), refused_REASON, and cut_REASON of splices.
func (g *Gateway) Counts() map[string]uint64 { return g.f.tally.counts() }

// Active is the number of connections that are open now.
func (g *Gateway) Active() int { return g.f.active() }

func (g *Gateway) visit(v *visitor) func() {
	req, err := ws.ReadRequest(v.nc, nil, g.f.o.Head)
	if err != nil {
		v.refuse("request", err)
		return nil
	}
	if !asks(req.Request, "") {
		g.answer(v, req)
		return nil
	}
	r, ok := g.route(req)
	if !ok {
		v.refuse("route", &ws.Refusal{Status: http.StatusNotFound, Reason: "this gateway knows no such hub"})
		return nil
	}
	nc, err := g.reach(v, r, append(sayFrom(req.Head, host(v.raw)), req.Rest...))
	if err != nil {
		g.f.tally.refuse("hub", host(v.raw), err)
		v.extend()
		_ = ws.Refuse(v.nc, &ws.Refusal{Status: http.StatusBadGateway,
			Reason: "the gateway cannot reach the hub; it may be back soon"}) // the same error
		return nil
	}
	return func() { g.splice(v, nc, len(req.Head)+len(req.Rest)) }
}

// reach dials a hub and hands on what has been read for it.
func (g *Gateway) reach(v *visitor, r Route, early []byte) (net.Conn, error) {
	ctx, cancel := context.WithDeadline(g.f.ctx, v.limit)
	defer cancel()
	nc, err := g.dial(ctx, r)
	if err != nil {
		return nil, err
	}
	if offer := offerShed(nc); offer != "" {
		early = addLine(early, shedHeader, offer)
	}
	_ = nc.SetWriteDeadline(v.limit)
	if _, err := nc.Write(early); err != nil {
		sever(nc)
		return nil, err
	}
	_ = nc.SetWriteDeadline(time.Time{}) // should it fail, so does what follows
	return sheds(nc), nil
}

func (g *Gateway) splice(v *visitor, nc net.Conn, early int) {
	v.settle()
	stop := context.AfterFunc(g.f.ctx, func() { sever(nc) })
	defer stop()
	g.f.tally.add("spliced", 1)
	v.quiet = true // splice says all that is to be said
	up, down, err := splice(leg{nc: v.nc, tolls: tollsOf(v.account)}, leg{nc: nc}, g.f.o, nil)
	g.f.tally.add("bytes_in", up+uint64(early))
	g.f.tally.add("bytes_out", down)
	g.f.tally.cut(err)
	g.f.log.Debug("splice ended", "from", host(v.raw), "up", up, "down", down, "why", why(err))
}

// answer is for requests that ask for no upgrade.
func (g *Gateway) answer(v *visitor, req *ws.Request) {
	switch {
	case req.Method != http.MethodGet:
		v.answer(http.StatusMethodNotAllowed, "only GET is answered here")
	case req.URL.Path == "/"+healthPath:
		v.answer(http.StatusOK, "ok")
	case req.URL.Path == "/":
		v.answer(http.StatusOK, "This is a gateway of Kvasir. Workers join with: kvasir worker kvasir://HOST/TOKEN#ROOT")
	default:
		v.answer(http.StatusNotFound, "nothing is here")
	}
}

func (g *Gateway) route(req *ws.Request) (Route, bool) {
	hub, _ := splitPath(req.URL.Path)
	name := req.Host
	if h, _, err := net.SplitHostPort(name); err == nil {
		name = h
	}
	return g.first(
		func(r Route) bool { return hub != "" && r.Hub == hub },
		func(r Route) bool { return r.Host != "" && strings.EqualFold(r.Host, name) },
		func(r Route) bool { return r.Host == "" },
	)
}

// first returns the first route for which the first of the rules holds that holds for any.
func (g *Gateway) first(rules ...func(Route) bool) (Route, bool) {
	for _, fits := range rules {
		if i := slices.IndexFunc(g.c.Routes, fits); i >= 0 {
			return g.c.Routes[i], true
		}
	}
	return Route{}, false
}

func (g *Gateway) dial(ctx context.Context, r Route) (net.Conn, error) {
	nc, err := g.c.Dial(ctx, "tcp", r.Addr)
	if err != nil {
		return nil, fmt.Errorf("%w: hub %s: %w", ErrNotThere, r.Addr, err)
	}
	if !r.TLS {
		return nc, nil
	}
	t := tls.Client(overRecords(nc), trust(seal.PublicKey{}, r.Hub, "", nil))
	if err := t.HandshakeContext(ctx); err != nil {
		sever(nc)
		return nil, fmt.Errorf("hub %s: %w", r.Addr, err)
	}
	return t, nil
}
