package engine

import (
	"context"
	"errors"
	"net"

	"kvasir/wire/relay"
)

// embedded is a hub and a gateway of this process: workers come to the gateway, the backbone to the hub.
type embedded struct {
	hub     *HubNode
	gateway *GatewayNode
	cancel  context.CancelFunc
	ended   chan error // of hub and gateway; has room for both
}

// newEmbedded makes the hub and the gateway of a backbone's home, and runs them. The gateway listens on
// listen and shows the hub's key, which the line for workers names: nothing is to be set up for it. o then
// leads to them.
func newEmbedded(listen string, o *BackboneOptions) (*embedded, error) {
	if _, err := o.Home.NewRoot(); err != nil {
		return nil, err
	}
	hub, err := NewHubNode(HubOptions{Home: o.Home, Listen: "127.0.0.1:0", Log: o.Log, Now: o.Now})
	if err != nil {
		return nil, err
	}
	gateway, err := NewGatewayNode(GatewayOptions{Home: o.Home, Listen: listen, Hubs: []HubRef{hub.Ref}, Log: o.Log, Rhythm: o.Rhythm})
	if err != nil {
		return nil, errors.Join(err, hub.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	m := &embedded{hub: hub, gateway: gateway, cancel: cancel, ended: make(chan error, 2)}
	go func() { m.ended <- hub.Run(ctx) }()     // ends with close
	go func() { m.ended <- gateway.Run(ctx) }() // likewise
	o.Hubs = []HubRef{hub.Ref}
	_, port, err := net.SplitHostPort(gateway.Addr)
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	switch _, _, err := net.SplitHostPort(o.Gateway); {
	case o.Gateway == "":
		o.Gateway = net.JoinHostPort(outward(gateway.Addr), port)
	case err != nil: // no port
		o.Gateway = net.JoinHostPort(o.Gateway, port)
	}
	return m, nil
}

// outward is the host of an address by which other machines reach this one: where it listens on all of its
// addresses, the one from which it would reach others.
func outward(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err == nil && host != "" && (ip == nil || !ip.IsUnspecified()) {
		return host
	}
	// No packet is sent: the system chooses a route to an address that nobody has (RFC 5737).
	c, err := net.Dial("udp4", "192.0.2.1:9")
	if err != nil {
		return "127.0.0.1" // there is no network
	}
	defer c.Close() //nolint:errcheck // nothing was sent
	here, _, err := net.SplitHostPort(c.LocalAddr().String())
	if err != nil {
		return "127.0.0.1"
	}
	return here
}

// close ends both, once nobody needs them any more, and waits. It may be called again.
func (m *embedded) close() error {
	if m == nil || m.cancel == nil {
		return nil
	}
	m.cancel()
	m.cancel = nil
	var errs []error
	for range cap(m.ended) {
		errs = append(errs, <-m.ended)
	}
	return errors.Join(errs...)
}

// failed waits until the hub or the gateway has ended by itself, or ctx has, and returns why.
func (m *embedded) failed(ctx context.Context) error {
	if m == nil {
		<-ctx.Done()
		return nil
	}
	select {
	case err := <-m.ended:
		m.ended <- err // for close
		return errors.Join(relay.ErrClosed, err)
	case <-ctx.Done():
		return nil
	}
}
