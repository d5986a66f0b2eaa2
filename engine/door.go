package engine

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"

	"kvasir/engine/access"
	"kvasir/wire/relay"
)

// ErrOpen: a node would answer anybody who can reach it, and nobody has said that it shall.
var ErrOpen = errors.New("anybody who can reach it could use the model; make a key with kvasir key create, " +
	"or let everybody in with --open")

// DoorOptions say who may come to a serving node, and how. The zero value is for this machine alone.
type DoorOptions struct {
	Keys    bool      // ask everybody for an API key of the home
	Open    bool      // ask nobody, wherever they come from
	Origins []string  // of pages that may ask; see access.Options
	Log     io.Writer // gets a line for each request; nil: none

	CertFile string // certificate with its chain, in PEM; empty: no TLS, unless ACME has names
	KeyFile  string // its key
	ACME     ACMEOptions
}

// door is what stands before a serving node.
type door struct {
	guard *access.Guard
	l     net.Listener
	tls   bool
	keys  bool // are asked for
}

// open puts a door before what l takes. Beyond this machine keys are asked for, unless Open says no; where
// there are none, that is an error.
func (o *DoorOptions) open(l net.Listener, home Home, log *slog.Logger) (*door, error) {
	d := &door{l: l, keys: o.Keys}
	near := loopback(l.Addr())
	a := access.Options{Origins: o.Origins, Log: o.Log, Errors: log}
	if !near && !o.Open {
		d.keys = true
	}
	a.Near = near && !o.Open
	if d.keys {
		var err error
		if a.Keys, err = home.path(keysFile); err != nil {
			return nil, err
		}
	}
	var err error
	if d.guard, err = access.New(a); err != nil {
		return nil, err
	}
	if d.keys && !o.Keys && d.guard.Count() == 0 {
		return nil, fmt.Errorf("%s: %w", l.Addr(), ErrOpen)
	}
	if d.keys && d.guard.Count() == 0 && log != nil {
		log.Warn("there are no API keys yet, so nobody is let in; make one with kvasir key create")
	}
	c, err := certificates(o.CertFile, o.KeyFile, o.ACME, home, log)
	if err != nil {
		return nil, err
	}
	if c != nil {
		c = c.Clone()
		if len(c.NextProtos) == 0 {
			c.NextProtos = []string{"http/1.1"}
		}
		d.l, d.tls = tls.NewListener(l, c), true
	} else if !near && log != nil {
		log.Warn("this node speaks no TLS: keys and texts can be read on the way; give --cert and --key, or --acme", "listen", l.Addr())
	}
	return d, nil
}

// loopback reports whether only this machine can reach an address.
func loopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// certificates returns what is shown to the world: of files, or of a public authority; nil if neither is
// asked for.
func certificates(cert, key string, a ACMEOptions, home Home, log *slog.Logger) (*tls.Config, error) {
	switch {
	case cert != "":
		return relay.CertFiles(cert, key, log, nil)
	case len(a.Hosts) > 0:
		m, err := a.authority(home, log)
		if err != nil {
			return nil, err
		}
		return m.TLS()
	}
	return nil, nil
}

// authority is how to get certificates for the names, which are kept in a home: those of each authority apart, so
// that what one gave for a trial is not shown where another was meant.
func (a *ACMEOptions) authority(home Home, log *slog.Logger) (relay.ACME, error) {
	folder, err := home.path(acmeFolder)
	if a.Directory != "" {
		sum := sha256.Sum256([]byte(a.Directory))
		folder = filepath.Join(folder, "@"+hex.EncodeToString(sum[:8])) // no name begins so
	}
	return relay.ACME{Hosts: a.Hosts, Email: a.Email, Cache: folder, Directory: a.Directory, Log: log}, err
}
