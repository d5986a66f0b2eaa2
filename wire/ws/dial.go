package ws

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// maxBody is the most that is read of a refusal's body.
const maxBody = 4 << 10

// DialOptions are for Dial. The zero value dials directly.
type DialOptions struct {
	Options
	Header    http.Header   // of the request, beside those of the handshake
	TLS       *tls.Config   // for wss; cloned. ALPN is always http/1.1: HTTP/2 has no upgrade
	Handshake time.Duration // for connection, TLS and upgrade in all; DefaultHandshake
	// Proxy returns the HTTP proxy for a request, or nil. http.ProxyFromEnvironment fits.
	Proxy func(*http.Request) (*url.URL, error)
	// NetDial replaces net.Dialer.
	NetDial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Under, if set, is given the connection to the server before TLS is put on it, and returns what TLS is
	// put on in its place. Secured is then given the connection under TLS, and returns further headers of
	// the requests over it, or nil.
	Under   func(net.Conn) net.Conn
	Secured func(net.Conn) http.Header
	// Challenge is asked for further headers when the answer is 401. The request is then sent once
	// more, over the same connection if that stays open.
	Challenge func(http.Header) (http.Header, error)
}

// StatusError is an answer other than 101.
type StatusError struct {
	Status int
	Header http.Header
	Reason string // the body, made one printable line
}

// Error returns the status and the server's reason.
func (e *StatusError) Error() string {
	s := fmt.Sprintf("ws: the server answered %d %s", e.Status, http.StatusText(e.Status))
	if e.Status >= 300 && e.Status < 400 {
		return s + " to " + oneLine(e.Header.Get("Location")) + "; redirects are not followed"
	}
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// Dial connects to address, ws://HOST[:PORT]/PATH or wss://…, and upgrades the connection. It
// returns the headers of the answer too. ctx bounds only the dialling. An answer other than 101 is
// a *StatusError.
func Dial(ctx context.Context, address string, o DialOptions) (*Conn, http.Header, error) {
	nc, rest, h, err := DialProtocol(ctx, address, WebSocket, o)
	if err != nil {
		return nil, nil, err
	}
	return New(nc, Client, rest, o.Options), h, nil
}

// DialProtocol is like Dial but switches to any protocol. It returns the connection, without
// deadlines, what has been read from it beyond the answer, and the answer's headers.
func DialProtocol(ctx context.Context, address, protocol string, o DialOptions) (
	nc net.Conn, rest []byte, h http.Header, err error) {
	u, err := parseURL(address)
	if err != nil {
		return nil, nil, nil, err
	}
	if o.Handshake <= 0 {
		o.Handshake = DefaultHandshake
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Handshake,
		fmt.Errorf("%w: no connection within %v", ErrSilent, o.Handshake))
	defer cancel()

	d := dialer{o: o, url: u, protocol: protocol, extra: o.Header}
	defer func() {
		if err != nil {
			d.drop()
			// What the deadline did to a read or a dial is told as what it is.
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			err = fmt.Errorf("dial %s://%s%s: %w", u.Scheme, u.Host, u.Path, err)
		}
	}()
	h, err = d.try(ctx)
	var refused *StatusError
	if errors.As(err, &refused) && refused.Status == http.StatusUnauthorized && o.Challenge != nil {
		more, cerr := o.Challenge(refused.Header)
		if cerr != nil {
			return nil, nil, nil, cerr
		}
		d.extra = merge(o.Header, more)
		h, err = d.try(ctx)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	return d.nc, d.rest, h, nil
}

func parseURL(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, err
	case u.Scheme != "ws" && u.Scheme != "wss":
		return nil, fmt.Errorf("address %q: scheme is %q, want ws or wss", address, u.Scheme)
	case u.Hostname() == "":
		return nil, fmt.Errorf("address %q has no host", address)
	case u.User != nil || u.Fragment != "":
		return nil, fmt.Errorf("address of %s: a user or a fragment has no place in it", u.Host)
	}
	if u.Path == "" {
		u.Path = "/"
	}
	return u, nil
}

func merge(a, b http.Header) http.Header {
	all := http.Header{}
	for _, h := range []http.Header{a, b} {
		for k, v := range h {
			all[http.CanonicalHeaderKey(k)] = v
		}
	}
	return all
}

// dialer is one Dial under way.
type dialer struct {
	o        DialOptions
	url      *url.URL
	protocol string
	extra    http.Header
	own      http.Header // of requests over nc

	nc   net.Conn // nil: none
	rest []byte   // read from nc, not consumed
}

func (d *dialer) drop() {
	if d.nc != nil {
		_ = d.nc.Close()
		d.nc, d.rest = nil, nil
	}
}

// try sends the request, over the present connection if there is one, and reads the answer.
func (d *dialer) try(ctx context.Context) (http.Header, error) {
	if d.nc == nil {
		if err := d.connect(ctx); err != nil {
			return nil, err
		}
	}
	stop := interrupt(ctx, d.nc)
	h, err := d.upgrade()
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	return h, err
}

// interrupt makes reads and writes of nc fail when ctx is done. The function that it returns ends
// that, and reports whether nc is untouched.
func interrupt(ctx context.Context, nc net.Conn) (stop func() bool) {
	fired := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(fired)
		_ = nc.SetDeadline(time.Unix(1, 0))
	})
	return func() bool {
		if cancel() {
			return true
		}
		<-fired
		return false
	}
}

func (d *dialer) upgrade() (http.Header, error) {
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never returns an error
	key := base64.StdEncoding.EncodeToString(nonce[:])

	var head bytes.Buffer
	fmt.Fprintf(&head, "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: %s\r\nConnection: Upgrade\r\n",
		d.url.RequestURI(), d.url.Host, d.protocol)
	if d.protocol == WebSocket {
		head.WriteString("Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + "\r\n")
	}
	extra := d.extra
	if d.own != nil {
		extra = merge(extra, d.own)
	}
	if err := appendHeader(&head, extra); err != nil {
		return nil, err
	}
	if _, err := d.nc.Write(head.Bytes()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCut, err)
	}
	raw, rest, err := readHead(d.nc, d.rest, DefaultHead)
	if err != nil {
		return nil, err
	}
	d.rest = rest
	a, err := parseResponse(raw, http.MethodGet)
	if err != nil {
		return nil, err
	}
	if a.status != http.StatusSwitchingProtocols {
		return nil, d.refused(a)
	}
	return a.header, checkSwitch(a, d.protocol, key)
}

// checkSwitch returns an error unless a, a 101, is the answer to the request with key.
func checkSwitch(a answer, protocol, key string) error {
	bad := func(what string) error { return fmt.Errorf("%w: 101 with %s", ErrHandshake, what) }
	switch {
	case !a.http11:
		return bad("another version than HTTP/1.1")
	case !hasToken(a.header, "Connection", "upgrade") || !hasToken(a.header, "Upgrade", protocol):
		return bad("no upgrade to " + protocol)
	case protocol != WebSocket:
		return nil
	case a.header.Get("Sec-Websocket-Accept") != acceptKey(key):
		return bad("a wrong Sec-WebSocket-Accept")
	case len(a.header.Values("Sec-Websocket-Extensions")) > 0:
		return bad("an extension that was not offered")
	case len(a.header.Values("Sec-Websocket-Protocol")) > 0:
		return bad("a subprotocol that was not offered")
	}
	return nil
}

// refused reads the body of an answer other than 101. The connection is kept when it can carry
// another request.
func (d *dialer) refused(a answer) error {
	e := &StatusError{Status: a.status, Header: a.header}
	r := io.MultiReader(bytes.NewReader(d.rest), d.nc)
	size := a.length
	if size < 0 || size > maxBody {
		// Without a length the body ends with the connection. What has come already is enough of
		// it.
		e.Reason = oneLine(string(d.rest))
		d.drop()
		return e
	}
	body := make([]byte, size)
	n, err := io.ReadFull(r, body)
	e.Reason = oneLine(string(body[:n]))
	if err != nil || a.last {
		d.drop()
		return e
	}
	d.rest = d.rest[min(len(d.rest), int(size)):]
	return e
}

// connect opens the connection: through a proxy where there is one, and with TLS for wss.
func (d *dialer) connect(ctx context.Context) error {
	dial := d.o.NetDial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	proxy, err := d.proxy()
	if err != nil {
		return err
	}
	target := d.url
	if proxy != nil {
		target = proxy
	}
	nc, err := dial(ctx, "tcp", hostPort(target))
	if err != nil {
		return err
	}
	d.nc = nc
	if proxy != nil {
		if proxy.Scheme == "https" {
			if err := d.secure(ctx, proxy.Hostname(), nil); err != nil {
				return fmt.Errorf("proxy %s: %w", proxy.Host, err)
			}
		}
		if err := d.tunnel(ctx, proxy); err != nil {
			return fmt.Errorf("proxy %s: %w", proxy.Host, err)
		}
	}
	if d.url.Scheme != "wss" {
		return nil
	}
	if d.o.Under != nil {
		d.nc = d.o.Under(d.nc)
	}
	if err := d.secure(ctx, d.url.Hostname(), d.o.TLS); err != nil {
		return err
	}
	if d.o.Secured != nil {
		d.own = d.o.Secured(d.nc)
	}
	return nil
}

func (d *dialer) proxy() (*url.URL, error) {
	if d.o.Proxy == nil {
		return nil, nil
	}
	u := *d.url
	u.Scheme = map[string]string{"ws": "http", "wss": "https"}[u.Scheme]
	proxy, err := d.o.Proxy(&http.Request{Method: http.MethodGet, URL: &u, Host: u.Host})
	if err != nil {
		return nil, fmt.Errorf("proxy setting: %w", err)
	}
	if proxy != nil && proxy.Scheme != "http" && proxy.Scheme != "https" {
		return nil, fmt.Errorf("proxy %s: scheme is %q, want http or https", proxy.Host, proxy.Scheme)
	}
	return proxy, nil
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"ws": "80", "http": "80", "wss": "443", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// tunnel asks the proxy at the far end of d.nc for a connection to the server.
func (d *dialer) tunnel(ctx context.Context, proxy *url.URL) error {
	host := hostPort(d.url)
	var head bytes.Buffer
	fmt.Fprintf(&head, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n", host, host)
	if proxy.User != nil {
		password, _ := proxy.User.Password()
		login := base64.StdEncoding.EncodeToString([]byte(proxy.User.Username() + ":" + password))
		head.WriteString("Proxy-Authorization: Basic " + login + "\r\n")
	}
	head.WriteString("\r\n")

	stop := interrupt(ctx, d.nc)
	defer stop()
	if _, err := d.nc.Write(head.Bytes()); err != nil {
		return fmt.Errorf("%w: %w", ErrCut, err)
	}
	raw, rest, err := readHead(d.nc, nil, DefaultHead)
	if err != nil {
		return err
	}
	a, err := parseResponse(raw, http.MethodConnect)
	switch {
	case err != nil:
		return err
	case a.status != http.StatusOK:
		return fmt.Errorf("%w: CONNECT answered with %s", ErrHandshake, a.line)
	case len(rest) > 0:
		return fmt.Errorf("%w: %d bytes before the tunnel was used", ErrHandshake, len(rest))
	}
	return nil
}

// secure puts TLS on d.nc.
func (d *dialer) secure(ctx context.Context, host string, config *tls.Config) error {
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"}
	if config.ServerName == "" {
		config.ServerName = host
	}
	t := tls.Client(d.nc, config)
	if err := t.HandshakeContext(ctx); err != nil {
		var invalid x509.CertificateInvalidError
		if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
			return fmt.Errorf("certificate of %s: %s (is this machine's clock right?)", host, invalid.Error())
		}
		return err
	}
	if p := t.ConnectionState().NegotiatedProtocol; p != "" && p != "http/1.1" {
		return fmt.Errorf("%w: the server chose the protocol %.20q for TLS", ErrHandshake, p)
	}
	d.nc = t
	return nil
}
