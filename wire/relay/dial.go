package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"kvasir/wire/seal"
	"kvasir/wire/ws"
)

// skewSaid is from when on a difference of clocks is worth saying.
const skewSaid = 2 * time.Minute

// Dialer is how to reach a hub, directly or through a gateway. The zero value dials directly and trusts
// as trust does.
type Dialer struct {
	TLS     *tls.Config // in the place of the swarm's and this system's trust
	Proxy   func(*http.Request) (*url.URL, error)
	NetDial func(ctx context.Context, network, addr string) (net.Conn, error)
	Now     func() time.Time // time.Now
}

func (d Dialer) now() time.Time {
	if d.Now == nil {
		return time.Now()
	}
	return d.Now()
}

// An errand is one upgrade request to a hub.
type errand struct {
	address string // ws://HOST[:PORT] or wss://…
	hub     string // id, may be empty
	root    seal.PublicKey
	path    string // after the hub's id
	proto   string
	header  http.Header
	prove   func(c seal.Challenge, path string) (seal.Proof, error)
	nonce   string // of an offer: the proof goes with the first request
	shed    bool   // TLS, if it is of the hub itself, may be shed
}

// reached is a connection past its upgrade.
type reached struct {
	nc   net.Conn
	rest []byte
	skew time.Duration // how far this machine's clock is ahead of the hub's; 0: unknown
}

func (d Dialer) run(ctx context.Context, e errand) (reached, error) {
	u, err := url.Parse(e.address)
	if err != nil {
		return reached{}, err
	}
	u.Path = joinPath(e.hub, e.path)
	config := d.TLS
	if config == nil {
		config = trust(e.root, e.hub, u.Hostname(), d.Now)
	}
	o := ws.DialOptions{Header: e.header, TLS: config, Proxy: d.Proxy, NetDial: d.NetDial}
	if e.nonce != "" {
		p, err := e.prove(seal.Challenge{Hub: e.hub, Nonce: e.nonce}, u.RequestURI())
		if err != nil {
			return reached{}, err
		}
		o.Header = p.Header()
	}
	if e.shed {
		o.Under, o.Secured = overRecords, func(nc net.Conn) http.Header {
			if offer := offerShed(nc); offer != "" {
				return http.Header{shedHeader: {offer}}
			}
			return nil
		}
	}
	var skew time.Duration
	o.Challenge = func(h http.Header) (http.Header, error) {
		c, err := seal.ParseChallenge(h)
		if err != nil {
			return nil, err
		}
		if e.hub != "" && c.Hub != e.hub {
			return nil, fmt.Errorf("%w: wanted hub %s, this is %s", seal.ErrWrongHub, e.hub, c.Hub)
		}
		skew = c.Skew(d.now())
		p, err := e.prove(c, u.RequestURI())
		if err != nil {
			return nil, err
		}
		return p.Header(), nil
	}
	nc, rest, _, err := ws.DialProtocol(ctx, u.String(), e.proto, o)
	if err != nil {
		return reached{}, explain(ctx, u.Host, skew, err)
	}
	return reached{nc: sheds(nc), rest: rest, skew: skew}, nil
}

// explain makes one clear line of why a hub was not reached.
func explain(ctx context.Context, host string, skew time.Duration, err error) error {
	if ctx.Err() != nil {
		return err
	}
	var answer *ws.StatusError
	var op *net.OpError
	var dns *net.DNSError
	switch {
	case errors.As(err, &answer):
		if told := seal.Told(answer.Header, answer.Reason); told != nil {
			err = fmt.Errorf("%s: %w", host, told)
			break
		}
		if answer.Status == http.StatusBadGateway || answer.Status == http.StatusGatewayTimeout {
			return fmt.Errorf("%w: hub behind %s: %w", ErrNotThere, host, err)
		}
	case errors.As(err, &dns), errors.As(err, &op) && op.Op == "dial", errors.Is(err, ws.ErrSilent):
		return fmt.Errorf("%w: %w", ErrNotThere, err)
	}
	return withSkew(err, skew)
}

// withSkew says that a clock is off where one is.
func withSkew(err error, skew time.Duration) error {
	switch {
	case skew > skewSaid:
		return fmt.Errorf("%w (this machine's clock is %v ahead of the hub's)", err, skew.Round(time.Minute))
	case skew < -skewSaid:
		return fmt.Errorf("%w (this machine's clock is %v behind the hub's)", err, -skew.Round(time.Minute))
	}
	return err
}

// checkAddress returns an error unless address is ws://HOST[:PORT] or wss://HOST[:PORT].
func checkAddress(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return err
	case u.Scheme != "ws" && u.Scheme != "wss" || u.Host == "" || strings.Trim(u.Path, "/") != "":
		return fmt.Errorf("address %q: want ws://HOST:PORT or wss://HOST:PORT", address)
	}
	return nil
}
