package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"kvasir/engine"
	"kvasir/wire/seal"
)

// swarmCommands are those of a swarm of several machines.
type swarmCommands struct {
	Serve   serveCmd   `cmd:"" help:"Serve a model over HTTP, with the help of workers."`
	Worker  workerCmd  `cmd:"" help:"Compute experts for a swarm."`
	Hub     hubCmd     `cmd:"" help:"Run the place where workers and backbones meet."`
	Gateway gatewayCmd `cmd:"" help:"Run the public machine before a hub."`
	Token   tokenCmd   `cmd:"" help:"Make and revoke what lets others into a swarm."`
	Wallet  walletCmd  `cmd:"" help:"Print what workers have earned."`
}

// server marks a command that runs until it is stopped. Its log is what a person watches, so it is on
// from info up unless --log says otherwise.
type server interface{ server() }

// logLevelFor returns the level that holds for a command line.
func logLevelFor(parsed *kong.Context, level logLevel) logLevel {
	for _, p := range parsed.Path {
		if p.Flag != nil && p.Flag.Name == "log" {
			return level
		}
	}
	if node := parsed.Selected(); node != nil && node.Target.CanAddr() {
		if _, ok := node.Target.Addr().Interface().(server); ok {
			return "info"
		}
	}
	return level
}

// hubRefs is one or more ID@HOST:PORT with commas between. A flag that is given again adds to it.
type hubRefs string

// UnmarshalText checks references, wherever they come from.
func (h *hubRefs) UnmarshalText(text []byte) error {
	for ref := range strings.SplitSeq(string(text), ",") {
		if _, err := engine.ParseHubRef(ref); err != nil {
			return err
		}
	}
	if *h != "" {
		*h += ","
	}
	*h += hubRefs(text)
	return nil
}

func (h hubRefs) list() (refs []engine.HubRef) {
	if h == "" {
		return nil
	}
	for text := range strings.SplitSeq(string(h), ",") {
		r, err := engine.ParseHubRef(text)
		if err != nil {
			panic("BUG: hub " + text + " passed its check")
		}
		refs = append(refs, r)
	}
	return refs
}

// publicKey is the text of a public key.
type publicKey string

// UnmarshalText checks a key, wherever it comes from.
func (k *publicKey) UnmarshalText(text []byte) error {
	_, err := seal.ParsePublicKey(string(text))
	*k = publicKey(text)
	return err
}

// key returns the key, or zero where none was given.
func (k publicKey) key() seal.PublicKey {
	if k == "" {
		return seal.PublicKey{}
	}
	p, err := seal.ParsePublicKey(string(k))
	if err != nil {
		panic("BUG: a key passed its check")
	}
	return p
}

// grantText is the text of a grant.
type grantText string

// UnmarshalText checks a grant, wherever it comes from.
func (g *grantText) UnmarshalText(text []byte) error {
	_, err := seal.ParseGrant(string(text))
	*g = grantText(text)
	return err
}

// grant returns the grant, or zero where none was given.
func (g grantText) grant() seal.Grant {
	if g == "" {
		return seal.Grant{}
	}
	v, err := seal.ParseGrant(string(g))
	if err != nil {
		panic("BUG: a grant passed its check")
	}
	return v
}

// clockVariable puts the clock of hub, serve and worker wrong by so much, for tests of what happens
// then.
const clockVariable = "KVASIR_TEST_CLOCK"

func (a *app) clock() (func() time.Time, error) {
	text := a.settings.environ[clockVariable]
	if text == "" {
		return time.Now, nil
	}
	off, err := time.ParseDuration(text)
	if err != nil {
		return nil, usagef("%s: want a duration, got %q", clockVariable, text)
	}
	return func() time.Time { return time.Now().Add(off) }, nil
}

func (a *app) homeFolder() engine.Home { return engine.Home(a.settings.home) }

// reachable returns an address that others can dial in the place of one that is listened on: host where
// that names no machine.
func reachable(addr, host string) string {
	name, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip := net.ParseIP(name); name == "" || ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort(host, port)
	}
	return addr
}

// ended is what a server returns: being stopped is how it is meant to end.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

type hubCmd struct {
	Listen string    `help:"Address to listen on (default ${default})." placeholder:"HOST:PORT" default:":7700"`
	Root   publicKey `help:"Public half of the swarm's root key. Default: of the root key in the home folder." placeholder:"ROOT"`
	jsonFlag
}

func (hubCmd) server() {}

// Help is printed by kvasir hub --help.
func (hubCmd) Help() string {
	return `A hub brings workers and backbones together and passes on what they say to each other, which it cannot read. Workers reach it by a gateway, or directly where they can. The root's public half is what kvasir token root prints on the machine of the swarm's owner. The hub prints what to run next.

Example:

    kvasir hub --root ROOT`
}

// hubReady is what kvasir hub --json prints when it listens.
type hubReady struct {
	ID     string `json:"id"`
	Listen string `json:"listen"`
	Root   string `json:"root"`
	Hub    string `json:"hub"` // for --hub of gateway and serve; HOST is this machine's name
}

// Run is a hub until it is stopped.
func (c *hubCmd) Run(ctx context.Context, a *app) error {
	now, err := a.clock()
	if err != nil {
		return err
	}
	n, err := engine.NewHubNode(engine.HubOptions{
		Home: a.homeFolder(), Listen: c.Listen, Root: c.Root.key(), Log: a.log, Now: now,
	})
	if err != nil {
		return err
	}
	there := engine.HubRef{ID: n.ID(), Addr: reachable(n.Ref.Addr, "HOST")}
	if c.JSON {
		err = a.stdout.printJSON(hubReady{n.ID(), n.Ref.Addr, n.Root.String(), there.String()})
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
	Cert   filePath  `help:"Certificate of a public authority, in PEM, with its chain." placeholder:"FILE"`
	Key    filePath  `help:"Its private key, in PEM." placeholder:"FILE"`
	Plain  bool      `help:"Speak no TLS: only behind something that does."`
	jsonFlag
}

func (gatewayCmd) server() {}

// Help is printed by kvasir gateway --help.
func (gatewayCmd) Help() string {
	return `A gateway is what workers dial, usually on port 443 of a rented machine. It passes everything on to a hub and keeps nothing.

Whoever comes must know that it is the right one. Beside the only hub it leads to, in the same home folder, it shows the hub's key, and nothing is to be done. Elsewhere the swarm's owner grants its key: the gateway says how. Or it has a certificate of a public authority.

Examples:

    kvasir gateway --hub ID@127.0.0.1:7700
    kvasir gateway --hub ID@10.0.0.2:7700 --cert fullchain.pem --key privkey.pem`
}

// gatewayReady is what kvasir gateway --json prints when it listens.
type gatewayReady struct {
	Listen string   `json:"listen"`
	Hubs   []string `json:"hubs"` // for --hub of serve; HOST is this machine's name
}

// Run is a gateway until it is stopped.
func (c *gatewayCmd) Run(ctx context.Context, a *app) error {
	o := engine.GatewayOptions{
		Home: a.homeFolder(), Listen: c.Listen, Root: c.Root.key(), Hubs: c.Hub.list(), Grant: c.Grant.grant(),
		Plain: c.Plain, Log: a.log,
	}
	switch {
	case c.Hub == "":
		return usagef("--hub is missing: kvasir gateway --hub ID@HOST:PORT, as kvasir hub prints it")
	case (c.Cert == "") != (c.Key == ""):
		return usagef("--cert and --key go together")
	case c.Plain && c.Cert != "":
		return usagef("--plain speaks no TLS, so --cert and --key are of no use")
	case c.Cert != "":
		cert, err := engine.LoadCertificate(string(c.Cert), string(c.Key))
		if err != nil {
			return err
		}
		o.Cert = &cert
	}
	n, err := engine.NewGatewayNode(o)
	if err != nil {
		return err
	}
	ready := gatewayReady{Listen: n.Addr}
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
