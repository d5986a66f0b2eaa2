package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"kvasir/batcher"
	"kvasir/engine/ledger"
	"kvasir/engine/worker"
	"kvasir/internal/moe"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

// LoopbackConfig is for NewLoopback.
type LoopbackConfig struct {
	Model   worker.Model // with the Experts that the workers compute with
	Workers int
	Place   Placement
	Local   moe.Experts // the backbone's fallback; nil: none

	// Slices, if set, are served to the workers, which then have no model: worker i has Memory(i) for what
	// it fetches, and Shelf(i) keeps it.
	Slices    SliceSource
	Exponents []int
	TopK      int
	Shelf     func(i int) (worker.Shelf, error)
	Memory    func(i int) int64
	Trace     func(*batcher.Call) // is told of every call; may be nil

	// Wait and Patience are SwarmConfig's.
	Wait, Patience time.Duration

	// Audit says how answers are checked; nil: they are not.
	Audit *AuditOptions
	// Refuse and Outbox are SwarmConfig's.
	Refuse func(seal.Proof) error
	Outbox *ledger.Outbox

	Backbone seal.Key // zero: one is drawn

	// Home, if set, is a folder for the hub's ledger and the gateway's wallet.
	Home string

	// Dial replaces the way from worker i to the gateway, for instance by an emulated wide-area path.
	Dial func(i int) func(ctx context.Context, network, addr string) (net.Conn, error)
	// Worker, if set, changes how worker i is made.
	Worker func(i int, c *worker.Config)
	// Wrap, if set, wraps the executor of worker i.
	Wrap func(i int, x moe.Experts) moe.Experts
	Log  *slog.Logger
}

// Loopback is a whole swarm in one process over real sockets of this machine: a gateway with TLS, a hub,
// workers that dial the gateway, and a backbone's Swarm that dials the hub. Everything is as it is
// between machines, but for the keys, which are drawn anew.
type Loopback struct {
	Swarm   *Swarm
	Gateway *relay.Gateway
	Hub     *relay.Hub
	Books   *ledger.Hub    // nil without LoopbackConfig.Home
	Wallet  *ledger.Wallet // likewise; PollWallet fills it

	client    *relay.HubClient // of the gateway, for the ledger's feed
	listeners []net.Listener
	workers   []func() // ends worker i
	more      func(i int) error
	wg        sync.WaitGroup

	mu  sync.Mutex
	err error // first error of a part; under mu
}

// NewLoopback starts all parts and waits until the workers have come. Close ends it, also after an
// error.
func NewLoopback(ctx context.Context, c LoopbackConfig) (*Loopback, error) {
	l := &Loopback{}
	if err := l.start(ctx, c); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Loopback) start(ctx context.Context, c LoopbackConfig) error {
	root, hubKey, gatewayKey, backboneKey := seal.NewKey(), seal.NewKey(), seal.NewKey(), seal.NewKey()
	if !c.Backbone.IsZero() {
		backboneKey = c.Backbone
	}
	now := time.Now()
	grant := func(role seal.Role, k seal.Key) (seal.Grant, error) {
		return seal.SignGrant(root, seal.Grant{Role: role, Key: k.Public(), Issued: now})
	}
	hub := relay.HubConfig{Key: hubKey, Root: root.Public(), Log: c.Log}
	if c.Home != "" {
		if err := l.openBooks(ctx, c, root.Public()); err != nil {
			return err
		}
		keepBooks(&hub, l.Books)
	}
	hubAddr, err := l.startHub(hub)
	if err != nil {
		return err
	}
	gatewayGrant, err := grant(seal.Gateway, gatewayKey)
	if err != nil {
		return err
	}
	if c.Home != "" {
		l.client, err = relay.NewHubClient(relay.HubClientConfig{
			Address: "https://" + hubAddr, Hub: l.Hub.ID(), Root: root.Public(), Key: gatewayKey, Grant: gatewayGrant,
		})
		if err != nil {
			return err
		}
	}
	gatewayAddr, err := l.startGateway(relay.GatewayConfig{
		Routes: []relay.Route{{Hub: l.Hub.ID(), Addr: hubAddr, TLS: true}},
		Key:    gatewayKey, Grant: gatewayGrant, Log: c.Log,
	})
	if err != nil {
		return err
	}
	backboneGrant, err := grant(seal.Backbone, backboneKey)
	if err != nil {
		return err
	}
	l.Swarm, err = NewSwarm(SwarmConfig{
		Key: backboneKey, Grant: backboneGrant, Root: root.Public(),
		Hubs:  []relay.Target{{Address: "wss://" + hubAddr, Hub: l.Hub.ID()}},
		Model: c.Model, Workers: c.Workers + moreWorkers, Place: c.Place, Local: c.Local, Wait: c.Wait, Patience: c.Patience, Log: c.Log,
		Slices: c.Slices, Exponents: c.Exponents, TopK: c.TopK, Trace: c.Trace, Audit: c.Audit, Refuse: c.Refuse, Outbox: c.Outbox,
	})
	if err != nil {
		return err
	}
	token, err := seal.SignToken(root, seal.Token{Role: seal.Worker, Issued: now, Hub: l.Hub.ID()})
	if err != nil {
		return err
	}
	join := seal.Join{Host: gatewayAddr, Token: token, Root: root.Public()}
	l.more = func(i int) error { return l.startWorker(ctx, c, i, join) }
	for range c.Workers {
		if err := l.AddWorker(); err != nil {
			return err
		}
	}
	if err := l.Swarm.WaitFor(ctx, c.Workers); err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		return errors.Join(err, l.err)
	}
	return nil
}

func (l *Loopback) openBooks(ctx context.Context, c LoopbackConfig, root seal.PublicKey) (err error) {
	if l.Books, err = ledger.OpenHub(ctx, filepath.Join(c.Home, "hub.db"), c.Log); err != nil {
		return err
	}
	l.Wallet, err = ledger.OpenWallet(ctx, filepath.Join(c.Home, "wallet.db"), root, c.Log)
	return err
}

// PollWallet has the gateway read the hub's ledger and credit what it finds.
func (l *Loopback) PollWallet(ctx context.Context) (ledger.Polled, error) {
	feed := &ledger.Client{URL: "https://hub/ledger", HTTP: &http.Client{Transport: l.client}}
	return l.Wallet.Poll(ctx, l.Hub.ID(), feed)
}

func (l *Loopback) listen() (net.Listener, string, error) {
	n, err := relay.Listen("127.0.0.1:0")
	if err != nil {
		return nil, "", err
	}
	l.listeners = append(l.listeners, n)
	return n, n.Addr().String(), nil
}

func (l *Loopback) startHub(c relay.HubConfig) (addr string, err error) {
	n, addr, err := l.listen()
	if err != nil {
		return "", err
	}
	if l.Hub, err = relay.NewHub(c); err != nil {
		return "", err
	}
	l.wg.Go(func() { l.note("hub", l.Hub.Serve(n)) })
	return addr, nil
}

func (l *Loopback) startGateway(c relay.GatewayConfig) (addr string, err error) {
	n, addr, err := l.listen()
	if err != nil {
		return "", err
	}
	if l.Gateway, err = relay.NewGateway(c); err != nil {
		return "", err
	}
	l.wg.Go(func() { l.note("gateway", l.Gateway.Serve(n)) })
	return addr, nil
}

// moreWorkers is how many AddWorker may add.
const moreWorkers = 8

// AddWorker starts one more worker, whose number is the next. It does not wait for it.
func (l *Loopback) AddWorker() error { return l.more(len(l.workers)) }

func (l *Loopback) startWorker(ctx context.Context, c LoopbackConfig, i int, join seal.Join) error {
	w := worker.Config{Join: join, Key: seal.NewKey(), Model: c.Model, Log: c.Log}
	if c.Slices != nil {
		shelf, err := c.Shelf(i)
		if err != nil {
			return err
		}
		w.Model, w.Shelf, w.Memory = worker.Model{}, shelf, c.Memory(i)
	}
	if c.Dial != nil {
		w.Dialer.NetDial = c.Dial(i)
	}
	if c.Wrap != nil {
		w.Wrap = func(x moe.Experts) moe.Experts { return c.Wrap(i, x) }
	}
	if c.Worker != nil {
		c.Worker(i, &w)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	l.wg.Go(func() {
		defer close(done)
		l.note(fmt.Sprintf("worker %d", i), worker.Run(ctx, w))
	})
	l.workers = append(l.workers, func() {
		cancel()
		<-done
	})
	return nil
}

// note keeps the first error of a part.
func (l *Loopback) note(part string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil && l.err == nil {
		l.err = fmt.Errorf("%s: %w", part, err)
	}
}

// StopWorker ends worker i in order: it finishes what is under way.
func (l *Loopback) StopWorker(i int) { l.workers[i]() }

// Close ends all parts and returns when no goroutine is left.
func (l *Loopback) Close() {
	if l.Swarm != nil {
		l.Swarm.Close()
	}
	for _, stop := range l.workers {
		stop()
	}
	if l.Gateway != nil {
		l.Gateway.Close()
	}
	if l.Hub != nil {
		l.Hub.Close()
	}
	for _, n := range l.listeners {
		_ = n.Close() // a listener that served is closed already
	}
	l.wg.Wait()
	if l.client != nil {
		l.client.Close()
	}
	if l.Wallet != nil {
		_ = l.Wallet.Close() // what it confirmed is on the disk
	}
	if l.Books != nil {
		_ = l.Books.Close() // likewise
	}
}
