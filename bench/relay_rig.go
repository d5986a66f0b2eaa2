package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"kvasir/bench/wan"
	"kvasir/internal/moe"
	"kvasir/wire"
	"kvasir/wire/link"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

// Ends of a session, all of them in this process. Their goroutines are told apart by these words.
const (
	endWorker   = "worker"
	endGateway  = "gateway"
	endHub      = "hub"
	endBackbone = "backbone"
)

// relayEnds lists them.
var relayEnds = []string{endWorker, endGateway, endHub, endBackbone}

// relaySwarm is a gateway, a hub, and a backbone that takes whoever comes, with real TLS on real sockets. There
// are no engines: sessions are all there is.
type relaySwarm struct {
	hidden int             // values a row
	hop    *wan.Link       // from the gateway to the hub; nil: sockets alone
	own    *wan.Link       // from the backbone to the hub
	back   link.Options    // of the backbone's ends
	limits relay.Limits    // of the hub, whenever it starts
	token  seal.Token      // of all workers
	root   seal.Key        // of the swarm
	hubKey seal.Key        // stays when the hub begins again
	bbKey  seal.Key        // of the backbone
	came   arrivals        // of workers at the hub
	wg     sync.WaitGroup  // of all goroutines that are not in a part of the swarm
	served sync.WaitGroup  // of listeners
	ctx    context.Context // ends with close
	cancel context.CancelFunc

	gateway  *relay.Gateway
	hub      *relay.Hub
	backbone *relay.Backbone
	gateAddr string
	hubAddr  string

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when a session or a control connection begins or ends
	live    map[seal.PublicKey]*link.Session
	begun   int
	ended   int
	online  int  // times that the backbone's control connection came
	up      bool // it is there
	broken  error
}

// newRelaySwarm starts one. ctx ends it, and everything that waits for it; close is to follow.
func newRelaySwarm(ctx context.Context, s *relaySwarm) (*relaySwarm, error) {
	s.root, s.hubKey, s.bbKey = seal.NewKey(), seal.NewKey(), seal.NewKey()
	s.changed, s.live = make(chan struct{}), map[seal.PublicKey]*link.Session{}
	s.ctx, s.cancel = context.WithCancel(ctx)
	if err := s.start(); err != nil {
		s.close()
		return nil, fmt.Errorf("starting gateway, hub and backbone: %w", err)
	}
	return s, nil
}

func (s *relaySwarm) start() error {
	if err := s.startHub(); err != nil {
		return err
	}
	gateKey := seal.NewKey()
	gateGrant, err1 := s.grant(gateKey, seal.Gateway)
	bbGrant, err2 := s.grant(s.bbKey, seal.Backbone)
	token, err3 := seal.SignToken(s.root, seal.Token{Role: seal.Worker, Issued: time.Now(), Hub: s.hub.ID()})
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	s.token = token
	var err error
	labelled(endGateway, func() {
		s.gateway, err = relay.NewGateway(relay.GatewayConfig{
			Routes: []relay.Route{{Hub: s.hub.ID(), Addr: s.hubAddr, TLS: true}}, Key: gateKey, Grant: gateGrant,
			Limits: gatewayLimits(), Dial: dialOver(s.hop),
		})
	})
	if err != nil {
		return err
	}
	if s.gateAddr, err = s.listen(endGateway, s.gateway.Serve, "127.0.0.1:0"); err != nil {
		return err
	}
	labelled(endBackbone, func() {
		s.backbone, err = relay.NewBackbone(relay.BackboneConfig{
			Key: s.bbKey, Grant: bbGrant, Root: s.root.Public(), Want: relay.Want{Workers: relaySessionsMost + 1},
			Hubs: []relay.Target{{Address: "wss://" + s.hubAddr, Hub: s.hub.ID()}}, Online: s.onOnline,
			Dialer: relay.Dialer{NetDial: dialOver(s.own)},
		})
		if err == nil {
			s.wg.Go(s.accept)
		}
	})
	if err != nil {
		return err
	}
	return s.wait("the backbone is connected to its hub", func() bool { return s.up })
}

// gatewayLimits are the default ones. Where workers can come from many addresses of loopback, the limits of an
// address hold for these too.
func gatewayLimits() relay.Limits {
	if runtime.GOOS != "linux" {
		return relay.Limits{}
	}
	return relay.Limits{Behind: []netip.Prefix{}}
}

func (s *relaySwarm) grant(k seal.Key, role seal.Role) (seal.Grant, error) {
	return seal.SignGrant(s.root, seal.Grant{Role: role, Key: k.Public(), Issued: time.Now(), Name: role.String()})
}

// dialOver returns how to dial over a path; nil is a socket and nothing else.
func dialOver(l *wan.Link) func(context.Context, string, string) (net.Conn, error) {
	if l == nil {
		return (&net.Dialer{}).DialContext
	}
	return l.Dial
}

// startHub starts the hub, also again after it was closed, and then where it was.
func (s *relaySwarm) startHub() (err error) {
	labelled(endHub, func() {
		s.hub, err = relay.NewHub(relay.HubConfig{Key: s.hubKey, Root: s.root.Public(), Limits: s.limits, Log: slog.New(&s.came)})
	})
	if err != nil {
		return err
	}
	if s.hubAddr == "" {
		s.hubAddr = "127.0.0.1:0"
	}
	s.hubAddr, err = s.listen(endHub, s.hub.Serve, s.hubAddr)
	return err
}

// listen serves on an address until who serves is closed, and returns it.
func (s *relaySwarm) listen(end string, serve func(net.Listener) error, addr string) (string, error) {
	l, err := relay.Listen(addr)
	if err != nil {
		return "", err
	}
	s.served.Go(func() {
		labelled(end, func() {
			if err := serve(l); err != nil {
				s.fail(fmt.Errorf("the %s: %w", end, err))
			}
		})
	})
	return l.Addr().String(), nil
}

// close ends all. No goroutine is left when it returns.
func (s *relaySwarm) close() {
	s.cancel()
	s.mu.Lock()
	for _, x := range s.live {
		s.wg.Go(func() { _ = x.Close() }) // it is over
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
	for _, l := range []*wan.Link{s.hop, s.own} {
		if l != nil {
			_ = l.Close() // always nil
		}
	}
	s.wg.Wait()
	s.served.Wait()
}

// fail ends the waiting of whoever waits for the swarm.
func (s *relaySwarm) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.broken = err
	}
	s.change()
}

// change wakes those in wait. mu is held.
func (s *relaySwarm) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// relayPatience bounds what a swarm is waited for; nothing is measured by it.
const relayPatience = 3 * time.Minute

// wait returns when ok, which is called with mu held, is true.
func (s *relaySwarm) wait(what string, ok func() bool) error {
	timer := time.NewTimer(relayPatience)
	defer timer.Stop()
	for {
		s.mu.Lock()
		fine, changed, broken := ok(), s.changed, s.broken
		s.mu.Unlock()
		switch {
		case fine:
			return nil
		case broken != nil:
			return broken
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return s.ctx.Err()
		case <-timer.C:
			return fmt.Errorf("still not after %v: %s; close what keeps this machine busy, and run it again", relayPatience, what)
		}
	}
}

// all returns when there are n sessions.
func (s *relaySwarm) all(n int) error {
	return s.wait(fmt.Sprintf("%d sessions", n), func() bool { return len(s.live) == n })
}

func (s *relaySwarm) onOnline(_ string, up bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up = up; up {
		s.online++
	}
	s.change()
}

// accept makes a session of whoever comes, until the swarm ends.
func (s *relaySwarm) accept() {
	for {
		a, err := s.backbone.Accept(s.ctx)
		if err != nil {
			return
		}
		s.wg.Go(func() { s.session(a) })
	}
}

func (s *relaySwarm) hello() wire.Hello {
	return wire.Hello{Layers: 1, Experts: 1, Hidden: s.hidden, Model: wire.Hash{1}, Profile: wire.Hash{2}, Agent: []byte("kvasir-bench")}
}

// session is the backbone's end of a session, from its acceptance to its end.
func (s *relaySwarm) session(a *relay.Accepted) {
	inner, err := seal.Server(s.ctx, a.Conn, seal.ServerConfig{Self: s.bbKey, Root: s.root.Public(), Paired: a.Worker})
	if err != nil {
		_ = a.Conn.Close()
		return // the worker learns it too, and says so
	}
	o := s.back
	o.Hello, o.Name = s.hello(), a.Worker.Key.Short()
	x, err := link.Open(s.ctx, inner, o)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.live[a.Worker.Key] = x
	s.begun++
	s.change()
	s.mu.Unlock()
	<-x.Done()
	_ = x.Close() // it has ended
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[a.Worker.Key] == x {
		delete(s.live, a.Worker.Key)
	}
	s.ended++
	s.change()
}

// sessions returns those that stand.
func (s *relaySwarm) sessions() (list []*link.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.live {
		list = append(list, x)
	}
	return list
}

// relayWorker is a worker of a relaySwarm.
type relayWorker struct {
	s    *relaySwarm
	key  seal.Key
	at   string // wss://HOST:PORT of the gateway, or of a path to it
	dial func(context.Context, string, string) (net.Conn, error)
	o    link.Options
	met  func(*link.Peer) // may be nil
}

func (s *relaySwarm) worker(dial func(context.Context, string, string) (net.Conn, error)) *relayWorker {
	return &relayWorker{s: s, key: seal.NewKey(), at: "wss://" + s.gateAddr, dial: dial}
}

// work joins, and serves one session to its end.
func (w *relayWorker) work(ctx context.Context) error {
	s := w.s
	p, err := relay.DialWorker(ctx, relay.WorkerConfig{Join: seal.Join{Host: "bench", Token: s.token, Root: s.root.Public()},
		Address: w.at, Key: w.key, Dialer: relay.Dialer{NetDial: w.dial}})
	if err != nil {
		return err
	}
	inner, err := seal.Client(ctx, p.Conn, seal.ClientConfig{Self: w.key, Root: s.root.Public(), Paired: p.Grant, Now: time.Now})
	if err != nil {
		_ = p.Conn.Close()
		return err
	}
	o := w.o
	o.Hello = s.hello()
	return seal.Explain(link.Serve(ctx, inner, link.Worker{Experts: wide{}, Started: w.met}, o))
}

// dialFrom dials from one of many addresses of this machine, where the system has many.
func dialFrom(i int) func(context.Context, string, string) (net.Conn, error) {
	d := &net.Dialer{}
	if runtime.GOOS == "linux" {
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%relayAddresses))}
	}
	return d.DialContext
}

// wide is an executor without weights, whose answers are as long as they can be: 52 bits a value. They follow from
// the rows.
type wide struct{}

// Forward implements moe.Experts.
func (wide) Forward(_ context.Context, b *moe.Batch, out *moe.Partials) error {
	out.Reset(b.Rows, b.Hidden)
	for r := range b.Rows {
		row := b.Row(r)
		for i := range b.Hidden {
			out.Sum[r*b.Hidden+i] = (1<<51 - 1 - int64(i) - int64(uint8(row.Q[i]))<<16) * (1 - 2*int64(i%2))
		}
	}
	return nil
}

// wideBatch makes rows for it.
func wideBatch(hidden, rows, seed int) (*moe.Batch, error) {
	b, err := moe.NewBatch(moe.Shape{Hidden: hidden, Format: moe.RowQ8K}, rows, rows)
	if err != nil {
		return nil, err
	}
	v := uint32(seed)
	for range rows {
		row := b.Row(b.Grow([]uint16{0}, []float32{1}))
		for i := range row.Q {
			v = v*1664525 + 1013904223
			row.Q[i] = int8(v>>24) | 1 // -128 is none
		}
		for i := range row.Scales {
			row.Scales[i] = 1
		}
	}
	return b, nil
}
