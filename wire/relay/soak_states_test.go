package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kvasir/internal/moe"
	"kvasir/wire"
	"kvasir/wire/link"
	"kvasir/wire/seal"
)

// frozen passes writes until the one with a mark in it, of which it passes half. Whoever writes it waits
// for Close.
type frozen struct {
	net.Conn
	mark string
	at   chan struct{} // closed when half of it has left
	once sync.Once
	gone chan struct{}
	shut sync.Once
}

func freeze(nc net.Conn, mark string) *frozen {
	return &frozen{Conn: nc, mark: mark, at: make(chan struct{}), gone: make(chan struct{})}
}

func (f *frozen) Write(p []byte) (int, error) {
	if !bytes.Contains(p, []byte(f.mark)) {
		return f.Conn.Write(p)
	}
	n, err := f.Conn.Write(p[:len(p)/2])
	f.once.Do(func() { close(f.at) })
	if err == nil {
		<-f.gone
		err = net.ErrClosed
	}
	return n, err
}

func (f *frozen) Close() error {
	f.shut.Do(func() { close(f.gone) })
	return f.Conn.Close()
}

// accepted is a listener that keeps what it accepts.
type accepted struct {
	net.Listener
	mu   sync.Mutex
	last net.Conn
}

func (a *accepted) Accept() (net.Conn, error) {
	nc, err := a.Listener.Accept()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.last = nc
	}
	return nc, err
}

func (a *accepted) conn() net.Conn {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

// stage is a worker's connection on its way to a session, stopped at one state.
type stage struct {
	t     *testing.T
	r     *rig
	hubIn *accepted // the hub's sockets to the gateway
	gate  *Gateway
	at    string // address of gate

	worker net.Conn // the worker's socket
	far    net.Conn // the socket at the other end of the last leg that there is; nil: no leg yet
	beside int      // sockets of the hub that have nothing to do with it
	wg     sync.WaitGroup
}

func newStage(t *testing.T, secure bool) *stage {
	r := newRig(t, rigConfig{limits: longer(Limits{Linger: quick.Linger}, Limits{})})
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &stage{t: t, r: r, hubIn: &accepted{Listener: l}}
	served := make(chan error, 2)
	go func() { served <- r.hub.Serve(g.hubIn) }()
	key := seal.NewKey()
	g.gate, err = NewGateway(GatewayConfig{Routes: []Route{{Hub: r.hub.ID(), Addr: l.Addr().String()}}, Plain: !secure, Key: key,
		Grant: granted(t, key, seal.Gateway), Limits: r.gateway.f.o, Log: r.log.logger()})
	if err != nil {
		t.Fatal(err)
	}
	gl, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.at = gl.Addr().String()
	go func() { served <- g.gate.Serve(gl) }()
	t.Cleanup(func() {
		g.gate.Close()
		r.hub.Close()
		g.wg.Wait()
		for range 2 {
			if err := <-served; err != nil {
				t.Errorf("serve: %v", err)
			}
		}
	})
	return g
}

// later ends what the test itself has begun, before whoever waits for that is closed.
func (g *stage) later(f func()) { g.t.Cleanup(f) }

// dial returns a way to dial that keeps the socket in to, and freezes it at a mark unless that is empty.
func (g *stage) dial(to *net.Conn, mark string, at chan<- *frozen) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		*to = nc
		if mark == "" {
			return nc, nil
		}
		f := freeze(nc, mark)
		at <- f
		return f, nil
	}
}

// come lets a worker dial, and returns what comes of it.
func (g *stage) come(mark string, waiting func(string)) (<-chan *frozen, <-chan *Paired) {
	w := g.r.worker("ws://" + g.at)
	at, paired := make(chan *frozen, 1), make(chan *Paired, 1)
	w.Dialer.NetDial = g.dial(&g.worker, mark, at)
	w.Waiting = waiting
	ctx, cancel := context.WithCancel(within(g.t))
	g.later(cancel)
	g.wg.Go(func() {
		if p, err := DialWorker(ctx, w); err == nil {
			paired <- p
		}
	})
	return at, paired
}

// raw dials, says something, and reads the answer to it if one is to be waited for.
func (g *stage) raw(say string, answer bool) {
	g.worker = dialRaw(g.t, g.at, false)
	if _, err := io.WriteString(g.worker, say); err != nil {
		g.t.Fatal(err)
	}
	if answer {
		if n, err := g.worker.Read(make([]byte, 4096)); err != nil || n == 0 {
			g.t.Fatal(err)
		}
	}
}

// upgradeOf is a worker's first request.
func (g *stage) upgradeOf() string {
	return "GET /" + g.r.hub.ID() + "/worker HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
}

// join pairs a worker with a backbone, and keeps both sockets.
func (g *stage) join() (*Paired, *Accepted, WorkerConfig, seal.Key) {
	var k keeper
	b := g.r.backbone(g.r.hubAt, func(c *BackboneConfig) { c.Dialer.NetDial = k.dial })
	w := g.r.worker("ws://" + g.at)
	w.Dialer.NetDial = k.dial
	p, a := g.r.join(b, w)
	g.worker, g.far = k.of(p.Conn).Conn, k.of(a.Conn).Conn
	g.later(func() { sever(g.worker) })
	g.later(func() { sever(g.far) })
	return p, a, w, b.c.Key
}

// seal opens the inner session.
func (g *stage) seal() (worker, backbone net.Conn) {
	p, a, w, bk := g.join()
	ctx := within(g.t)
	got := make(chan error, 1)
	go func() {
		nc, err := seal.Client(ctx, p.Conn, seal.ClientConfig{Self: w.Key, Root: root.Public(), Paired: p.Grant, Now: time.Now})
		worker = nc
		got <- err
	}()
	backbone, err := seal.Server(ctx, a.Conn, seal.ServerConfig{Self: bk, Root: root.Public(), Paired: a.Worker})
	if err := errors.Join(err, <-got); err != nil {
		g.t.Fatal(err)
	}
	return worker, backbone
}

func stageHello() wire.Hello {
	return wire.Hello{Layers: 4, Experts: 256, Model: wire.Hash{1}, Profile: wire.Hash{2}}
}

// session opens a session whose worker computes with x.
func (g *stage) session(x moe.Experts) *link.Session {
	worker, backbone := g.seal()
	o := link.Options{Hello: stageHello()}
	g.wg.Go(func() { _ = link.Serve(context.Background(), worker, link.Worker{Experts: x}, o) })
	s, err := link.Open(within(g.t), backbone, o)
	if err != nil {
		g.t.Fatal(err)
	}
	g.later(func() { _ = s.Close() })
	return s
}

// states lists what a connection can be in the middle of. Where far is not set, there is no leg beyond
// the gateway yet. Until "paired", the far end is the hub's socket, then the backbone's.
var states = []struct {
	name string
	far  bool
	set  func(g *stage)
}{
	{"connected to the gateway", false, func(g *stage) { g.raw("", false) }},
	{"outer TLS is done", false, func(g *stage) { g.worker = dialRaw(g.t, g.at, true) }},
	{"half of the upgrade request is sent", false, func(g *stage) { g.raw(g.upgradeOf()[:60], false) }},
	{"the challenge has come", true, func(g *stage) { g.raw(g.upgradeOf(), true) }},
	{"half of the proof is sent", true, func(g *stage) {
		at, _ := g.come("Kvasir-Signature", nil)
		f := <-at
		g.later(func() { _ = f.Close() })
		<-f.at
	}},
	{"it waits in the lobby", true, func(g *stage) {
		waits := make(chan struct{}, 100)
		g.come("", func(string) { waits <- struct{}{} })
		<-waits
	}},
	{"it is offered", true, func(g *stage) {
		offers := make(chan struct{}, 100)
		first := true
		g.r.backbone(g.r.hubAt, func(c *BackboneConfig) {
			c.Dialer.NetDial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if first {
					first = false
					return (&net.Dialer{}).DialContext(ctx, network, addr)
				}
				offers <- struct{}{}
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		g.come("", nil)
		<-offers
	}},
	{"half of the backbone's request for the session is sent", true, func(g *stage) {
		at := make(chan *frozen, 2)
		var nc net.Conn
		g.r.backbone(g.r.hubAt, func(c *BackboneConfig) { c.Dialer.NetDial = g.dial(&nc, sessionProtocol, at) })
		control := <-at
		g.later(func() { _ = control.Close() })
		g.come("", nil)
		f := <-at
		g.later(func() { _ = f.Close() })
		<-f.at
		g.beside = 1
	}},
	{"paired is said", true, func(g *stage) { g.join() }},
	{"inner TLS is half way", true, func(g *stage) {
		p, a, w, bk := g.join()
		f := freeze(p.Conn, "\x14\x03\x03") // the worker's answer to the backbone's certificate
		ctx, cancel := context.WithCancel(within(g.t))
		g.later(func() { _ = f.Close() })
		g.later(cancel)
		g.wg.Go(func() {
			_, _ = seal.Client(ctx, f, seal.ClientConfig{Self: w.Key, Root: root.Public(), Paired: p.Grant, Now: time.Now})
		})
		g.wg.Go(func() {
			_, _ = seal.Server(ctx, a.Conn, seal.ServerConfig{Self: bk, Root: root.Public(), Paired: a.Worker})
			_ = a.Conn.Close()
		})
		<-f.at
	}},
	{"Hello has gone one way", true, func(g *stage) {
		worker, backbone := g.seal()
		h := stageHello()
		h.Min, h.Max, h.Role, h.Class, h.Arithmetic, h.Calls, h.Window = wire.VersionMin, wire.Version, wire.RoleWorker, wire.Exact, 1, 1, 1
		g.wg.Go(func() { _, _ = link.Open(context.Background(), backbone, link.Options{Hello: stageHello()}) })
		p := wire.AppendHello(nil, &h)
		if _, err := worker.Write(append(wire.AppendHeader(nil, wire.NewHeader(wire.TypeHello, len(p), 0)), p...)); err != nil {
			g.t.Fatal(err)
		}
		if _, err := worker.Read(make([]byte, 1)); err != nil { // the backbone's Hello
			g.t.Fatal(err)
		}
	}},
	{"an idle session", true, func(g *stage) {
		if err := ask(g.session(sums{}), soakBatch(g.t, 64, 3, 1)); err != nil {
			g.t.Fatal(err)
		}
	}},
	{"dispatches and answers are on their way", true, func(g *stage) {
		s := g.session(wide{})
		var answered sync.WaitGroup
		answered.Add(1)
		var once sync.Once
		for i := range 4 {
			b := soakBatch(g.t, 3072, 256, i)
			g.wg.Go(func() {
				for out := new(moe.Partials); s.Forward(context.Background(), b, out) == nil; {
					once.Do(answered.Done)
				}
			})
		}
		answered.Wait()
	}},
}

// TestBothLegsEndWhateverDiesWhenever lets a connection die at each of its states, by FIN or by RST, at
// the worker's end or at the far end. Gateway and hub let go of both legs: at once or after the linger,
// within 5 s in any case. No goroutine is left.
func TestBothLegsEndWhateverDiesWhenever(t *testing.T) {
	t.Run("states", func(t *testing.T) {
		for _, st := range states {
			for _, how := range []string{"FIN", "RST"} {
				for _, end := range []string{"worker", "far"} {
					if end == "far" && !st.far || testing.Short() && (how == "FIN") != (end == "worker") {
						continue // of four cases two are enough with the race detector
					}
					t.Run(fmt.Sprintf("%s, %s from the %s", st.name, how, end), func(t *testing.T) {
						t.Parallel()
						g := newStage(t, strings.Contains(st.name, "TLS is done"))
						st.set(g)
						if g.far == nil && st.far {
							g.far = g.hubIn.conn()
						}
						g.die(end, how)
					})
				}
			}
		}
	})
	goleak.VerifyNone(t)
}

func (g *stage) die(end, how string) {
	t := g.t
	until(t, "the gateway has it", func() bool { return g.gate.Active() == 1 })
	nc := map[string]net.Conn{"worker": g.worker, "far": g.far}[end]
	if c, ok := nc.(interface{ NetConn() net.Conn }); ok {
		nc = c.NetConn()
	}
	tcp := nc.(*net.TCPConn)
	died := time.Now()
	if how == "RST" {
		_ = tcp.SetLinger(0)
		_ = tcp.Close()
	} else {
		_ = tcp.CloseWrite()
	}
	left := func() int { // but for the backbone's control connection
		st := g.r.hub.Status()
		return g.gate.Active() + max(0, st.Conns-st.Backbones-g.beside)
	}
	until(t, "both legs are closed", func() bool { return left() == 0 })
	took := time.Since(died)
	if soaking() {
		t.Logf("both legs are closed after %v", took.Round(time.Millisecond))
		if took > 5*time.Second {
			t.Error("want at most 5s")
		}
	}
	if st := g.r.hub.Status(); st.Sessions != 0 || st.Waiting != 0 {
		t.Errorf("the hub has kept something: %+v\n%s", st, g.r.log)
	}
}
