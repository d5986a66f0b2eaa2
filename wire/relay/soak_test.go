package relay

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"kvasir/bench/wan"
	"kvasir/wire"
	"kvasir/wire/link"
	"kvasir/wire/seal"
)

// What follows, and the other files named soak_*, holds the whole path to what it promises: worker,
// gateway, hub and backbone with real sessions over them. Each test has a short form, which asserts
// counts and outcomes, and a long one for KVASIR_SOAK=1, which asserts times and sizes as well. Where no
// socket is needed the path stands in a synctest bubble: there times are exact, and cost nothing.

// soaking reports whether the long forms are asked for. They take minutes.
func soaking() bool { return os.Getenv("KVASIR_SOAK") == "1" }

// longer returns long when soaking, and else short.
func longer[T any](short, long T) T {
	if soaking() {
		return long
	}
	return short
}

// A memory is a network without sockets, for bubbles.
type memory struct {
	mu sync.Mutex
	ls map[string]*memoryListener
}

type memoryListener struct {
	addr  wan.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *memoryListener) Addr() net.Addr { return l.addr }

func (m *memory) listen(addr string) net.Listener {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ls == nil {
		m.ls = map[string]*memoryListener{}
	}
	l := &memoryListener{addr: wan.Addr(addr), conns: make(chan net.Conn), done: make(chan struct{})}
	m.ls[addr] = l
	return l
}

func (m *memory) dial(ctx context.Context, l *wan.Link, addr string) (net.Conn, error) {
	m.mu.Lock()
	to := m.ls[addr]
	m.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "memory", Err: errors.New("connection refused")}
	if to == nil {
		return nil, refused
	}
	near, far, err := l.Pipe()
	if err != nil {
		return nil, err
	}
	select {
	case to.conns <- far:
		return near, nil
	case <-to.done:
		err = refused
	case <-ctx.Done():
		err = ctx.Err()
	}
	_, _ = near.Close(), far.Close()
	return nil, err
}

// swarmConfig is for newSwarm.
type swarmConfig struct {
	memory bool // no sockets: for bubbles
	direct bool // sockets, and no emulated path between them
	tls    bool // on the outside of gateway and hub
	limits Limits
	hop    wan.Profile // from the gateway to the hub
	own    wan.Profile // from the backbone to the hub
	hidden int         // values a row; 64
	link   link.Options
}

// swarm is a gateway, a hub and a backbone that takes whoever comes.
type swarm struct {
	t        testing.TB
	c        swarmConfig
	net      memory
	hub      *Hub
	gateway  *Gateway
	key      seal.Key // of the hub
	hubAddr  string
	gateAddr string
	log      *logbook
	hop, own *wan.Link
	backbone *Backbone
	bbKey    seal.Key
	token    seal.Token
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	served   sync.WaitGroup
	closing  sync.Once

	mu      sync.Mutex
	came    chan struct{} // closed and replaced when a session begins or ends
	live    map[seal.PublicKey]*link.Session
	begun   int
	ends    map[seal.PublicKey]sessionEnd // the last of each key
	online  int                           // how often the backbone's control connection came
	offline []time.Time                   // when it went
}

// sessionEnd is how the backbone's end of a session ended.
type sessionEnd struct {
	at     time.Time
	reason string // that the backbone counts it under
	err    error
}

func newSwarm(t testing.TB, c swarmConfig) *swarm {
	t.Helper()
	if c.hidden == 0 {
		c.hidden = 64
	}
	s := &swarm{t: t, c: c, key: seal.NewKey(), bbKey: seal.NewKey(), log: &logbook{}, came: make(chan struct{}),
		live: map[seal.PublicKey]*link.Session{}, ends: map[seal.PublicKey]sessionEnd{},
		hubAddr: "hub.test:1", gateAddr: "gate.test:2"}
	s.hop, s.own = newPath(t, c.hop), newPath(t, c.own)
	t.Cleanup(s.close)
	s.startHub()
	gateKey := seal.NewKey()
	var err error
	s.gateway, err = NewGateway(GatewayConfig{Routes: []Route{{Hub: s.hub.ID(), Addr: s.hubAddr, TLS: c.tls}}, Plain: !c.tls,
		Key: gateKey, Grant: granted(t, gateKey, seal.Gateway), Limits: c.limits, Log: s.log.logger(), Dial: s.dial(s.hop)})
	if err != nil {
		t.Fatal(err)
	}
	s.gateAddr = s.serve(s.gateway.Serve, s.gateAddr)
	if s.token, err = seal.SignToken(root, seal.Token{Role: seal.Worker, Issued: time.Now(), Hub: s.hub.ID()}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.backbone, err = NewBackbone(BackboneConfig{Key: s.bbKey, Grant: granted(t, s.bbKey, seal.Backbone), Root: root.Public(),
		Want: Want{Workers: 10_000}, Hubs: []Target{{Address: s.scheme() + s.hubAddr, Hub: s.hub.ID()}}, Log: s.log.logger(),
		Online: s.onOnline, Dialer: Dialer{NetDial: s.dial(s.own)}})
	if err != nil {
		t.Fatal(err)
	}
	s.wg.Go(func() { s.accept(ctx) })
	return s
}

// labelled runs f, and marks its goroutines and those that they start with whose they are.
func labelled(end string, f func()) {
	pprof.Do(context.Background(), pprof.Labels("end", end), func(context.Context) { f() })
}

func newPath(t testing.TB, p wan.Profile) *wan.Link {
	t.Helper()
	l, err := wan.NewLink(p)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (s *swarm) scheme() string {
	if s.c.tls {
		return "wss://"
	}
	return "ws://"
}

// startHub starts the hub, also again after it was closed.
func (s *swarm) startHub() {
	s.t.Helper()
	h, err := NewHub(HubConfig{Key: s.key, Root: root.Public(), Plain: !s.c.tls, Limits: s.c.limits, Log: s.log.logger()})
	if err != nil {
		s.t.Fatal(err)
	}
	s.hub = h
	s.hubAddr = s.serve(h.Serve, s.hubAddr)
}

// serve listens on addr, or with sockets on a port that it returns.
func (s *swarm) serve(serve func(net.Listener) error, addr string) string {
	s.t.Helper()
	var l net.Listener
	var err error
	name, _, _ := strings.Cut(addr, ".")
	if s.c.memory {
		l = s.net.listen(addr)
	} else {
		if _, port, _ := net.SplitHostPort(addr); len(port) == 1 {
			addr = "127.0.0.1:0"
		}
		if l, err = Listen(addr); err != nil {
			s.t.Fatal(err)
		}
	}
	s.served.Go(func() {
		labelled(name, func() {
			if err := serve(l); err != nil {
				s.t.Errorf("serve: %v", err)
			}
		})
	})
	return l.Addr().String()
}

// dial returns how to dial over a path.
func (s *swarm) dial(l *wan.Link) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		switch {
		case s.c.memory:
			return s.net.dial(ctx, l, addr)
		case s.c.direct:
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
		return l.Dial(ctx, network, addr)
	}
}

// close ends all. Every goroutine has ended then, or the test's bubble or goleak says so.
func (s *swarm) close() {
	s.closing.Do(s.closeAll)
}

func (s *swarm) closeAll() {
	if s.cancel != nil {
		s.cancel()
	}
	s.mu.Lock()
	for _, x := range s.live {
		s.wg.Go(func() { _ = x.Close() })
	}
	s.mu.Unlock()
	if s.gateway != nil {
		s.gateway.Close()
	}
	if s.hub != nil {
		s.hub.Close()
	}
	if s.backbone != nil {
		s.backbone.Close()
	}
	_, _ = s.hop.Close(), s.own.Close()
	s.wg.Wait()
	s.served.Wait()
}

func (s *swarm) onOnline(_ string, up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if up {
		s.online++
	} else {
		s.offline = append(s.offline, time.Now())
	}
	s.changed()
}

// changed wakes those in until. mu is held.
func (s *swarm) changed() {
	close(s.came)
	s.came = make(chan struct{})
}

// until waits for ok, which is called with mu held, and looks again whenever the backbone's side changes.
func (s *swarm) until(limit time.Duration, what string, ok func() bool) {
	s.t.Helper()
	if !s.soon(limit, ok) {
		s.t.Fatalf("still not, after %v: %s", limit, what)
	}
}

// soon is until for other goroutines than the test's.
func (s *swarm) soon(limit time.Duration, ok func() bool) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		s.mu.Lock()
		fine, came := ok(), s.came
		s.mu.Unlock()
		if fine {
			return true
		}
		select {
		case <-came:
		case <-timer.C:
			return false
		}
	}
}

func (s *swarm) accept(ctx context.Context) {
	for {
		a, err := s.backbone.Accept(ctx)
		if err != nil {
			return
		}
		s.wg.Go(func() { labelled("backbone", func() { s.session(ctx, a) }) })
	}
}

func (s *swarm) hello() wire.Hello {
	return wire.Hello{Layers: 4, Experts: 256, Hidden: s.c.hidden, Model: wire.Hash{1}, Profile: wire.Hash{2}, Agent: []byte("soak")}
}

// session is a worker's session from its acceptance to its end.
func (s *swarm) session(ctx context.Context, a *Accepted) {
	inner, err := seal.Server(ctx, a.Conn, seal.ServerConfig{Self: s.bbKey, Root: root.Public(), Paired: a.Worker})
	if err != nil {
		_ = a.Conn.Close()
		s.end(a, nil, err)
		return
	}
	o := s.c.link
	o.Hello, o.Name, o.Log = s.hello(), a.Worker.Key.Short(), s.log.logger()
	x, err := link.Open(ctx, inner, o)
	if err != nil {
		s.end(a, nil, err)
		return
	}
	s.mu.Lock()
	s.live[a.Worker.Key] = x
	s.begun++
	s.changed()
	s.mu.Unlock()
	<-x.Done()
	s.end(a, x, x.Err())
	_ = x.Close()
}

func (s *swarm) end(a *Accepted, x *link.Session, err error) {
	k, reason := a.Worker.Key, a.Ended(err, link.Kind(err))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[k] == x {
		delete(s.live, k)
	}
	s.ends[k] = sessionEnd{time.Now(), reason, err}
	s.changed()
}

// of returns the session of a worker, when it has one.
func (s *swarm) of(k seal.PublicKey) *link.Session {
	s.t.Helper()
	var x *link.Session
	s.until(patience, "the worker has a session", func() bool {
		x = s.live[k]
		return x != nil
	})
	return x
}
