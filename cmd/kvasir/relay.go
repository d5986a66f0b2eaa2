package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"kvasir/engine"
	"kvasir/wire/relay"
)

// relayFlags bound what hub and gateway spend on others.
type relayFlags struct {
	Connections  count    `help:"Connections at a time, all together (default ${default})." placeholder:"N" default:"16384" group:"limits"`
	Handshakes   count    `help:"Of them, those of whom it is not known yet who they are (default ${default}). Who comes beyond is turned away." placeholder:"N" default:"512" group:"limits"`
	AddressRate  count    `help:"New connections a second from one address, of IPv6 from one /64 (default ${default}); some more may come at once. At a hub, who proves a key does not count." placeholder:"N" default:"20" group:"limits"`
	AddressBytes byteSize `help:"Bytes a second from and to one address, as in 20MB. Default: no limit." placeholder:"SIZE" group:"limits"`
	Metrics      string   `help:"Answer /metrics for Prometheus at this address, to anybody who can reach it. Default: nowhere." placeholder:"HOST:PORT"`
	Behind       networks `help:"Addresses from which many come, as from a gateway, a CDN, or a backbone with hundreds of workers: limits by address do not hold there. Several with commas between (default: this machine's own)." placeholder:"ADDRESS[/BITS]" group:"limits"`
}

func (f *relayFlags) metrics() engine.MetricsOptions {
	return engine.MetricsOptions{Listen: f.Metrics, Build: build()}
}

// limits returns them; sessions is how many connections one address may have.
func (f *relayFlags) limits(sessions int) relay.Limits {
	const burst = 6.4 // seconds' worth at once: a household that comes back together
	return relay.Limits{
		Conns: int(f.Connections), Pending: int(f.Handshakes), Behind: f.Behind,
		Address: relay.Quota{Rate: float64(f.AddressRate), Burst: int(burst * float64(f.AddressRate)),
			Sessions: sessions, Bytes: float64(f.AddressBytes.bytes())},
	}
}

// networks is a list of addresses and networks with commas between.
type networks []netip.Prefix

// UnmarshalText checks them, wherever they come from.
func (n *networks) UnmarshalText(text []byte) error {
	*n = networks{}
	for part := range strings.SplitSeq(string(text), ",") {
		part = strings.TrimSpace(part)
		p, err := netip.ParsePrefix(part)
		if a, aerr := netip.ParseAddr(part); aerr == nil {
			p, err = a.Prefix(a.BitLen())
		}
		if err != nil {
			return fmt.Errorf("want an address or a network, as in 192.0.2.7 or 2001:db8::/64, got %q", part)
		}
		*n = append(*n, p)
	}
	return nil
}

// hostNames is a list of names with commas between.
type hostNames []string

// UnmarshalText checks them, wherever they come from.
func (h *hostNames) UnmarshalText(text []byte) error {
	*h = nil
	for name := range strings.SplitSeq(string(text), ",") {
		if name = strings.TrimSpace(name); name == "" || !strings.Contains(name, ".") || strings.ContainsAny(name, "/:* ") {
			return fmt.Errorf("want names as in gateway.example.org, got %q", name)
		}
		*h = append(*h, name)
	}
	return nil
}

// hubNames is a list of NAME=ID with commas between: names by the hub's id.
type hubNames map[string]string

// UnmarshalText checks them, wherever they come from.
func (h *hubNames) UnmarshalText(text []byte) error {
	*h = hubNames{}
	for pair := range strings.SplitSeq(string(text), ",") {
		name, id, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if _, err := engine.ParseHubRef(id + "@x"); !ok || err != nil || !strings.Contains(name, ".") || (*h)[id] != "" {
			return fmt.Errorf("want NAME=ID, each hub once, as in a.example.org=ID, got %q", pair)
		}
		(*h)[id] = name
	}
	return nil
}

type hubCmd struct {
	Listen string    `help:"Address to listen on (default ${default})." placeholder:"HOST:PORT" default:":7700"`
	Root   publicKey `help:"Public half of the swarm's root key. Default: of the root key in the home folder." placeholder:"ROOT"`
	booksFlag
	jsonFlag
	relayFlags
	AddressSessions count    `help:"Connections at a time from one address (default ${default}: a gateway's is that of many)." placeholder:"N" default:"16384" group:"limits"`
	WorkerRate      count    `help:"Workers that are let in a second, all together (default ${default}). Others wait for two seconds at most, or are told when to come back." placeholder:"N" default:"90" group:"limits"`
	KeyRate         count    `help:"Times a second that one key may come (default ${default}); sixteen times as many at once." placeholder:"N" default:"1" group:"limits"`
	KeyWorkers      count    `help:"Workers that one backbone may have (default ${default})." placeholder:"N" default:"16384" group:"limits"`
	KeyBytes        byteSize `help:"Bytes a second from and to one worker, as in 20MB. Default: no limit." placeholder:"SIZE" group:"limits"`
}

func (hubCmd) server() {}

func (c *hubCmd) limits() relay.Limits {
	l := c.relayFlags.limits(int(c.AddressSessions))
	l.Pace = float64(c.WorkerRate)
	l.Key = relay.Quota{Rate: float64(c.KeyRate), Burst: 16 * int(c.KeyRate), Sessions: int(c.KeyWorkers),
		Bytes: float64(c.KeyBytes.bytes())}
	return l
}

// Help is printed by kvasir hub --help.
func (hubCmd) Help() string {
	return `A hub brings workers and backbones together and passes on what they say to each other, which it cannot read. Workers reach it by a gateway, or directly where they can. The root's public half is what kvasir token root prints on the machine of the swarm's owner. The hub prints what to run next.

It keeps a ledger of what it sees, in a file of the home folder; hubs that stand for each other share one with --books.

Examples:

    kvasir hub --root ROOT
    kvasir hub --books postgres://kvasir@db.example/kvasir`
}

// hubReady is what kvasir hub --json prints when it listens.
type hubReady struct {
	ID      string `json:"id"`
	Listen  string `json:"listen"`
	Root    string `json:"root"`
	Hub     string `json:"hub"`               // for --hub of gateway and serve; HOST is this machine's name
	Metrics string `json:"metrics,omitempty"` // address of /metrics
}

// Run is a hub until it is stopped.
func (c *hubCmd) Run(ctx context.Context, a *app) error {
	now, err := a.clock()
	if err != nil {
		return err
	}
	n, err := engine.NewHubNode(engine.HubOptions{
		Home: a.homeFolder(), Listen: c.Listen, Root: c.Root.key(), Limits: c.limits(), Log: a.log, Now: now,
		Books: string(c.Books), Metrics: c.metrics(),
	})
	if err != nil {
		return err
	}
	there := engine.HubRef{ID: n.ID(), Addr: reachable(n.Ref.Addr, "HOST")}
	if c.JSON {
		err = a.stdout.printJSON(hubReady{n.ID(), n.Ref.Addr, n.Root.String(), there.String(), n.MetricsAddr()})
	} else {
		here := engine.HubRef{ID: n.ID(), Addr: reachable(n.Ref.Addr, "127.0.0.1")}
		a.stdout.printf("Hub %s listens on %s.\n\nNext, a gateway, here:\n\n    kvasir gateway --hub %v\n\n"+
			"or serve where this machine can be reached:\n\n    kvasir serve --hub %v\n\n", n.ID(), n.Ref.Addr, here, there)
		if strings.HasPrefix(there.Addr, "HOST:") {
			a.stdout.printf("HOST is this machine's name or address.\n")
		}
	}
	if err != nil {
		return errors.Join(err, n.Close())
	}
	return ended(ctx, n.Run(ctx))
}

type gatewayCmd struct {
	Listen string    `help:"Address to listen on (default ${default})." placeholder:"HOST:PORT" default:":443"`
	Hub    hubRefs   `help:"Hub to lead to, as kvasir hub prints it; several with commas between." placeholder:"ID@HOST:PORT"`
	Root   publicKey `help:"Public half of the swarm's root key. Default: of the root key in the home folder." placeholder:"ROOT"`
	Grant  grantText `help:"What kvasir token grant has printed for this gateway; it is kept." placeholder:"GRANT"`
	booksFlag

	tlsFlags
	Plain       bool     `help:"Speak no TLS: only behind something that does." group:"tls"`
	Passthrough bool     `help:"Hold no key: read which name is dialled, and pass TLS through to that hub as it is." group:"tls"`
	Names       hubNames `help:"Names that are dialled for hubs; several with commas between. Without one, a hub is dialled by a name that begins with its ID, or is the first." placeholder:"NAME=ID" group:"tls"`
	jsonFlag
	relayFlags
	AddressSessions count `help:"Connections at a time from one address (default ${default})." placeholder:"N" default:"1024" group:"limits"`
}

func (gatewayCmd) server() {}

// Help is printed by kvasir gateway --help.
func (gatewayCmd) Help() string {
	return `A gateway is what workers dial, usually on port 443 of a rented machine. It passes everything on to a hub and keeps nothing but the wallets of workers: they are in a file of the home folder; gateways that stand for each other share them with --books, which is then also where the hub of the same home folder has its ledger.

Whoever comes must know that it is the right one. Beside the only hub it leads to, in the same home folder, it shows the hub's key, and nothing is to be done. Elsewhere the swarm's owner grants its key: the gateway says how. Or it has a certificate of a public authority. Or it passes TLS through, and the hub shows its own.

Examples:

    kvasir gateway --hub ID@127.0.0.1:7700
    kvasir gateway --hub ID@10.0.0.2:7700 --acme gateway.example.org
    kvasir gateway --hub ID@10.0.0.2:7700 --cert fullchain.pem --key privkey.pem
    kvasir gateway --hub ID@10.0.0.2:7700 --books postgres://kvasir@db.example/kvasir`
}

// gatewayReady is what kvasir gateway --json prints when it listens.
type gatewayReady struct {
	Listen  string   `json:"listen"`
	Hubs    []string `json:"hubs"`              // for --hub of serve; HOST is this machine's name
	Metrics string   `json:"metrics,omitempty"` // address of /metrics
}

// check says what does not go together.
func (c *gatewayCmd) check() error {
	given := 0
	for _, on := range []bool{len(c.ACME) > 0, c.Cert != "", c.Plain, c.Passthrough} {
		if on {
			given++
		}
	}
	switch {
	case c.Hub == "":
		return usagef("--hub is missing: kvasir gateway --hub ID@HOST:PORT, as kvasir hub prints it")
	case c.Plain && c.Cert != "":
		return usagef("--plain speaks no TLS, so --cert and --key are of no use")
	case given > 1:
		return usagef("--acme, --cert with --key, --plain and --passthrough are four ways, of which one can be gone")
	}
	if err := c.tlsFlags.check(); err != nil {
		return err
	}
	for id := range c.Names {
		if !slices.ContainsFunc(c.Hub.list(), func(r engine.HubRef) bool { return r.ID == id }) {
			return usagef("--names has hub %s, which --hub has not", id)
		}
	}
	return nil
}

// Run is a gateway until it is stopped.
func (c *gatewayCmd) Run(ctx context.Context, a *app) error {
	if err := c.check(); err != nil {
		return err
	}
	o := engine.GatewayOptions{
		Home: a.homeFolder(), Listen: c.Listen, Root: c.Root.key(), Hubs: c.Hub.list(), Grant: c.Grant.grant(),
		Limits: c.limits(int(c.AddressSessions)), Log: a.log, Plain: c.Plain, Passthrough: c.Passthrough, Names: c.Names,
		CertFile: string(c.Cert), KeyFile: string(c.Key), ACME: c.acme(), Books: string(c.Books), Metrics: c.metrics(),
		Rhythm: a.pace.rhythm,
	}
	n, err := engine.NewGatewayNode(o)
	if err != nil {
		return err
	}
	ready := gatewayReady{Listen: n.Addr, Metrics: n.MetricsAddr()}
	for _, h := range o.Hubs {
		ready.Hubs = append(ready.Hubs, engine.HubRef{ID: h.ID, Addr: reachable(n.Addr, "HOST")}.String())
	}
	if c.JSON {
		err = a.stdout.printJSON(ready)
	} else {
		a.stdout.printf("Gateway listens on %s.\n\nNext, where the model is:\n\n    kvasir serve --hub %s\n",
			n.Addr, strings.Join(ready.Hubs, ","))
		if strings.Contains(ready.Hubs[0], "@HOST:") {
			a.stdout.printf("\nHOST is this machine's public name or address.\n")
		}
	}
	if err != nil {
		return errors.Join(err, n.Close())
	}
	return ended(ctx, n.Run(ctx))
}
