package relay

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// maxHello is the most that is read for a ClientHello, records' headers included. One with keys that
// outlast quantum computers has some 2 KB.
const maxHello = 16 << 10

var errHello = errors.New("not a ClientHello of TLS")

// errNamed ends a handshake that is not meant to go further.
var errNamed = errors.New("the name is known")

// readHello reads a ClientHello without answering it, and returns the name that it asks for, which may
// be empty, and all that has been read.
func readHello(nc net.Conn) (name string, early []byte, err error) {
	t := &tape{Conn: muted{nc}, limit: maxHello}
	known := false
	server := tls.Server(t, &tls.Config{
		MinVersion: tls.VersionTLS10, // what is too old is the hub's to say
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name, known = strings.ToLower(strings.TrimSuffix(hello.ServerName, ".")), true
			return nil, errNamed
		},
	})
	if err := server.Handshake(); !known {
		if errors.Is(err, errTape) {
			err = fmt.Errorf("longer than %d bytes", maxHello)
		}
		return "", t.got, fmt.Errorf("%w: %w", errHello, err)
	}
	return name, t.got, nil
}

// muted drops what is written to it.
type muted struct{ net.Conn }

func (muted) Write(p []byte) (int, error)      { return len(p), nil }
func (muted) SetWriteDeadline(time.Time) error { return nil }
func (muted) Close() error                     { return nil }

// passthrough serves a visitor by the name that it asks for, and terminates nothing: the hub's key stays
// the hub's.
func (g *Gateway) passthrough(v *visitor) func() {
	name, early, err := readHello(v.nc)
	if err != nil {
		if len(early) > 0 && early[0] >= 'A' && early[0] <= 'Z' {
			v.inClear()
		} else {
			v.quiet = true
		}
		g.f.tally.refuse("hello", host(v.raw), err)
		return nil
	}
	r, ok := g.routeName(name)
	if !ok {
		g.f.tally.refuse("route", host(v.raw), fmt.Errorf("no hub for the name %.80q", name))
		alert(v.nc, alertUnrecognizedName)
		return nil
	}
	r.TLS = false // it is the visitor's
	nc, err := g.reach(v, r, early)
	if err != nil {
		g.f.tally.refuse("hub", host(v.raw), err)
		v.extend()
		alert(v.nc, alertInternalError)
		return nil
	}
	return func() { g.splice(v, nc, len(early)) }
}

// Alerts of TLS (RFC 8446, 6).
const (
	alertInternalError    = 80
	alertUnrecognizedName = 112
)

// alert says in TLS, before any handshake, why a connection ends.
func alert(w io.Writer, what byte) {
	_, _ = w.Write([]byte{21, 3, 3, 0, 2, 2, what}) // it ends either way
}

// routeName chooses a hub by the name that a ClientHello asks for: the first route with that Host, then
// the first whose Hub is the name's first label, then the first without a Host.
func (g *Gateway) routeName(name string) (Route, bool) {
	label, _, _ := strings.Cut(name, ".")
	return g.first(
		func(r Route) bool { return r.Host != "" && strings.EqualFold(r.Host, name) },
		func(r Route) bool { return label != "" && r.Hub == label },
		func(r Route) bool { return r.Host == "" },
	)
}
