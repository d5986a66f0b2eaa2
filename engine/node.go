package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"kvasir/engine/ledger"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

// HubRef is how to reach a hub: ID@HOST:PORT, where the address is the hub's or that of a gateway before
// it. The id is what the hub is known by.
type HubRef struct {
	ID   string
	Addr string // HOST:PORT
}

// hubIDText is how long a hub's id is.
const hubIDText = 26

// ErrHubRef: the text is not ID@HOST:PORT.
var ErrHubRef = errors.New("want ID@HOST:PORT, as kvasir hub prints it")

// ParseHubRef parses ID@HOST:PORT. Without a port it is 443.
func ParseHubRef(text string) (HubRef, error) {
	id, addr, ok := strings.Cut(strings.TrimSpace(text), "@")
	if !ok || len(id) != hubIDText || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz234567") != "" {
		return HubRef{}, fmt.Errorf("%w; got %.80q", ErrHubRef, text)
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		addr = net.JoinHostPort(strings.Trim(addr, "[]"), "443")
	}
	if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" {
		return HubRef{}, fmt.Errorf("%w; got %.80q", ErrHubRef, text)
	}
	return HubRef{ID: id, Addr: addr}, nil
}

// String returns ID@HOST:PORT.
func (r HubRef) String() string { return r.ID + "@" + r.Addr }

// drainTime is how long a node waits for what is under way when it ends.
const drainTime = 3 * time.Second

// HubNode is a hub with its home and listener.
type HubNode struct {
	*relay.Hub
	Ref    HubRef // with the address that it listens on
	Root   seal.PublicKey
	books  *ledger.Hub
	l      net.Listener
	unlock func()

	metrics *metricsServer // nil: none
}

// HubOptions are for NewHubNode.
type HubOptions struct {
	Home   Home
	Listen string
	Root   seal.PublicKey // zero: of the root key in Home
	Limits relay.Limits
	Log    *slog.Logger
	Now    func() time.Time // nil: time.Now

	// Books is the address of a PostgreSQL database, which other hubs may share, and gateways; empty: the
	// ledger is a file in Home.
	Books string

	Metrics MetricsOptions
}

// NewHubNode makes a hub of what is in its home, and listens. Run is to follow.
func NewHubNode(o HubOptions) (*HubNode, error) {
	n := &HubNode{unlock: func() {}}
	if err := n.start(o); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *HubNode) start(o HubOptions) (err error) {
	if n.Root, err = o.Home.Root(o.Root); err != nil {
		return err
	}
	if n.l, err = relay.Listen(o.Listen); err != nil {
		return err
	}
	if n.unlock, err = o.Home.Lock(seal.Hub); err != nil {
		n.unlock = func() {}
		return err
	}
	c := relay.HubConfig{Root: n.Root, Limits: o.Limits, Log: o.Log, Now: o.Now}
	if c.Key, err = o.Home.Key(seal.Hub); err != nil {
		return err
	}
	if c.Store, err = OpenTokenStore(o.Home); err != nil {
		return err
	}
	if n.books, err = o.Home.openBooks(o.Books, o.Log); err != nil {
		return err
	}
	keepBooks(&c, n.books)
	if n.Hub, err = relay.NewHub(c); err != nil {
		return err
	}
	if n.metrics, err = o.Metrics.open(o.Log, hubMetrics(n.Hub, n.books.Counts)); err != nil {
		return err
	}
	n.Ref = HubRef{ID: n.ID(), Addr: n.l.Addr().String()}
	return nil
}

// MetricsAddr is where /metrics is answered; empty: nowhere.
func (n *HubNode) MetricsAddr() string { return n.metrics.addr() }

// Close ends all connections and closes the ledger.
func (n *HubNode) Close() (err error) {
	n.metrics.close()
	if n.Hub != nil {
		n.Hub.Close()
	}
	if n.l != nil {
		_ = n.l.Close() // served, it is closed already
	}
	if n.books != nil {
		err = n.books.Close()
	}
	n.unlock()
	return err
}

// Run serves until ctx ends; then it sends everybody away and returns nil.
func (n *HubNode) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- n.Serve(n.l) }() // ends with Close
	select {
	case err := <-served:
		return errors.Join(err, n.Close())
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	_ = n.Drain(drain, "the hub ends") // what is left is cut
	err := n.Close()
	return errors.Join(unlessClosed(<-served), err)
}

// unlessClosed is err of a Serve, without what it says when Close was the quicker of the two.
func unlessClosed(err error) error {
	if errors.Is(err, relay.ErrClosed) {
		return nil
	}
	return err
}

// GatewayNode is a gateway with its listener.
type GatewayNode struct {
	*relay.Gateway
	Addr    string
	l       net.Listener
	wallets *wallets
	metrics *metricsServer // nil: none
}

// GatewayOptions are for NewGatewayNode. Of Plain, Passthrough, CertFile and ACME one holds at most; where
// none does, the gateway shows a certificate of its key.
type GatewayOptions struct {
	Home   Home
	Listen string
	Root   seal.PublicKey // zero: of the root key in Home
	Hubs   []HubRef
	Grant  seal.Grant // of this gateway's key; zero: see Home.Grant
	Limits relay.Limits
	Log    *slog.Logger

	Plain       bool              // no TLS
	Passthrough bool              // TLS is the hub's: see relay.GatewayConfig
	Names       map[string]string // by the id of a hub: the name that is dialled for it
	CertFile    string            // certificate of a public authority with its chain, in PEM
	KeyFile     string            // its key
	ACME        ACMEOptions

	// Books is the address of a PostgreSQL database, which other gateways may share, and hubs, of which one of
	// Home does; empty: the wallets are a file in Home.
	Books string

	Metrics MetricsOptions
	Rhythm  Rhythm
}

// ACMEOptions are how to get certificates of a public authority.
type ACMEOptions struct {
	Hosts     []string // names; none: not so
	Email     string   // may be empty
	Directory string   // of the authority, an address as https://…; empty: Let's Encrypt
}

// acmeFolder is where certificates and their keys are kept in a home.
const acmeFolder = "acme"

// NewGatewayNode makes a gateway of what is in its home, and listens. Run is to follow.
func NewGatewayNode(o GatewayOptions) (*GatewayNode, error) {
	c := relay.GatewayConfig{Plain: o.Plain, Passthrough: o.Passthrough, Limits: o.Limits, Log: o.Log}
	for _, h := range o.Hubs {
		c.Routes = append(c.Routes, relay.Route{Host: o.Names[h.ID], Hub: h.ID, Addr: h.Addr, TLS: true})
	}
	if err := o.show(&c); err != nil {
		return nil, err
	}
	var err error
	n := &GatewayNode{}
	if n.Gateway, err = relay.NewGateway(c); err != nil {
		return nil, err
	}
	if n.l, err = relay.Listen(o.Listen); err != nil {
		n.Gateway.Close()
		return nil, err
	}
	n.Addr = n.l.Addr().String()
	if o.Plain {
		warnPlain(o.Log, n.l.Addr())
	}
	if n.wallets, err = o.openWallets(); err != nil {
		n.Gateway.Close()
		return nil, errors.Join(err, n.l.Close())
	}
	if n.metrics, err = o.Metrics.open(o.Log, gatewayMetrics(n.Gateway, n.wallets.counts())); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// show chooses what the gateway shows to the world.
func (o *GatewayOptions) show(c *relay.GatewayConfig) (err error) {
	switch {
	case o.Plain, o.Passthrough:
	case o.CertFile != "":
		c.TLS, err = certificates(o.CertFile, o.KeyFile, ACMEOptions{}, o.Home, o.Log)
	case len(o.ACME.Hosts) > 0:
		var a relay.ACME
		if a, err = o.ACME.authority(o.Home, o.Log); err != nil {
			return err
		}
		key, grant, ierr := o.identity()
		if ierr == nil {
			a.Other, err = relay.OwnTLS(key, grant)
		} else if !o.Grant.IsZero() { // it was meant to hold
			err = ierr
		}
		if err == nil {
			c.TLS, err = a.TLS()
		}
	default:
		c.Key, c.Grant, err = o.identity()
	}
	return err
}

// identity returns the key that the gateway shows, and what makes others trust it. A gateway for the hub
// of the same home alone shows the hub's key: whoever looks for that hub knows it, and the root has
// nothing to sign.
func (o *GatewayOptions) identity() (seal.Key, seal.Grant, error) {
	hub, err := o.Home.keyIfThere(seal.Hub.String())
	if err != nil {
		return seal.Key{}, seal.Grant{}, err
	}
	if len(o.Hubs) == 1 && !hub.IsZero() && seal.HubID(hub.Public()) == o.Hubs[0].ID && o.Grant.IsZero() {
		return hub, seal.Grant{}, nil
	}
	key, err := o.Home.Key(seal.Gateway)
	if err != nil {
		return seal.Key{}, seal.Grant{}, err
	}
	root, err := o.Home.Root(o.Root)
	if err != nil {
		return seal.Key{}, seal.Grant{}, err
	}
	g, err := o.Home.Grant(seal.Gateway, key.Public(), root, o.Grant)
	return key, g, err
}

// Run serves until ctx ends, and then returns nil.
func (n *GatewayNode) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, n.Gateway.Close)
	defer stop()
	credit, cancel := context.WithCancel(ctx)
	defer cancel()
	n.wallets.follow(credit)
	err := unlessClosed(n.Serve(n.l))
	cancel()
	return errors.Join(err, n.Close())
}

// MetricsAddr is where /metrics is answered; empty: nowhere.
func (n *GatewayNode) MetricsAddr() string { return n.metrics.addr() }

// Close ends all connections and closes the wallets.
func (n *GatewayNode) Close() error {
	n.metrics.close()
	n.Gateway.Close()
	_ = n.l.Close() // served, it is closed already
	return n.wallets.close()
}
