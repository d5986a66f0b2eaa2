package relay

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"kvasir/wire/seal"
)

// HubClientConfig is for NewHubClient.
type HubClientConfig struct {
	Address string // https://HOST:PORT, or http:// for a plain hub
	Hub     string // id; needed for https unless the hub's key is granted
	Root    seal.PublicKey
	Key     seal.Key
	Grant   seal.Grant // that makes Key a gateway's
	Dialer  Dialer
}

// HubClient asks a hub's ledger as a gateway. It is an http.RoundTripper; of a request's URL the path and
// query count, and the path begins with /ledger.
type HubClient struct {
	c    HubClientConfig
	base *url.URL
	t    *http.Transport
}

// NewHubClient returns a client. Close ends its idle connections.
func NewHubClient(c HubClientConfig) (*HubClient, error) {
	base, err := url.Parse(c.Address)
	if err != nil {
		return nil, err
	}
	if base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, fmt.Errorf("address %q: want https://HOST:PORT", c.Address)
	}
	config := c.Dialer.TLS
	if config == nil {
		config = trust(c.Root, c.Hub, base.Hostname(), c.Dialer.Now)
	}
	return &HubClient{c: c, base: base, t: &http.Transport{
		TLSClientConfig: config, DialContext: c.Dialer.NetDial, Proxy: c.Dialer.Proxy, MaxIdleConnsPerHost: 2,
		IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: time.Minute,
		MaxResponseHeaderBytes: 64 << 10,
	}}, nil
}

// Close ends the idle connections.
func (c *HubClient) Close() { c.t.CloseIdleConnections() }

// Do sends a request and returns the answer, whose body the caller closes. A refusal is an error of
// package seal.
func (c *HubClient) Do(req *http.Request) (*http.Response, error) { return c.RoundTrip(req) }

// RoundTrip is Do. A nonce holds once, so a request is two on the wire; the first has no body.
func (c *HubClient) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close() //nolint:errcheck // it was only read
	}
	u := *req.URL
	u.Scheme, u.Host = c.base.Scheme, c.base.Host
	ask := (&http.Request{Method: http.MethodGet, URL: &u, Header: http.Header{}}).WithContext(req.Context())
	res, err := c.t.RoundTrip(ask)
	if err != nil {
		return nil, c.explain(req, err)
	}
	reason, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	_ = res.Body.Close() // it was only read
	if res.StatusCode != http.StatusUnauthorized {
		return nil, refusal(res, string(reason))
	}
	challenge, err := seal.ParseChallenge(res.Header)
	if err != nil {
		return nil, err
	}
	if c.c.Hub != "" && challenge.Hub != c.c.Hub {
		return nil, fmt.Errorf("%w: wanted hub %s, this is %s", seal.ErrWrongHub, c.c.Hub, challenge.Hub)
	}
	proof, err := seal.ProveGrant(c.c.Key, c.c.Grant, challenge, u.RequestURI())
	if err != nil {
		return nil, err
	}
	real := req.Clone(req.Context())
	real.URL, real.Host = &u, ""
	for name, v := range proof.Header() {
		real.Header[name] = v
	}
	if res, err = c.t.RoundTrip(real); err != nil {
		return nil, c.explain(req, err)
	}
	if res.Header.Get("Kvasir-Refused") != "" {
		reason, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10))
		_ = res.Body.Close() // it was only read
		return nil, withSkew(refusal(res, string(reason)), challenge.Skew(c.c.Dialer.now()))
	}
	return res, nil
}

func (c *HubClient) explain(req *http.Request, err error) error {
	if req.Context().Err() != nil || errors.Is(err, ErrUntrusted) {
		return err
	}
	return fmt.Errorf("%w: hub %s: %w", ErrNotThere, c.base.Host, err)
}

func refusal(res *http.Response, reason string) error {
	if told := seal.Told(res.Header, clip(strings.TrimSpace(reason), 200)); told != nil {
		return told
	}
	return fmt.Errorf("%w: the hub answered %s: %.200q", ErrProtocol, res.Status, reason)
}
