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
	Key     keyCmd     `cmd:"" help:"Make and revoke API keys of those who may ask a server."`
	Worker  workerCmd  `cmd:"" help:"Compute experts for a swarm."`
	Hub     hubCmd     `cmd:"" help:"Run the place where workers and backbones meet."`
	Gateway gatewayCmd `cmd:"" help:"Run the public machine before a hub."`
	Token   tokenCmd   `cmd:"" help:"Make and revoke what lets others into a swarm."`
	Wallet  walletCmd  `cmd:"" help:"Print what workers have earned."`
	Ledger  ledgerCmd  `cmd:"" help:"Check and steer the books that wallets stand in."`
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
