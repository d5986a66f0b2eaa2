package relay

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"kvasir/wire/seal"
)

// elsewhere is a connection that says its far end has another address.
type elsewhere struct {
	net.Conn
	at string
}

func (e elsewhere) RemoteAddr() net.Addr {
	a, _ := net.ResolveTCPAddr("tcp", e.at)
	return a
}

// dribbling gives one byte a read.
type dribbling struct{ net.Conn }

func (c dribbling) Read(p []byte) (int, error) { return c.Conn.Read(p[:min(len(p), 1)]) }

// sheddable returns the ends of a TLS session that may be shed.
func sheddable(t *testing.T, under func(net.Conn) net.Conn) (dialled, accepted *tls.Conn) {
	t.Helper()
	near, far := tcpPair(t, false)
	config, err := outerTLS(nil, false, seal.NewKey(), seal.Grant{})
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(overRecords(under(near)), &tls.Config{InsecureSkipVerify: true})
	s := tls.Server(overRecords(under(far)), outerRules(config))
	done := make(chan error, 1)
	go func() { done <- s.Handshake() }()
	if err := errors.Join(c.Handshake(), <-done); err != nil {
		t.Fatal(err)
	}
	return c, s
}

func same(nc net.Conn) net.Conn { return nc }

func TestSheddingLosesNoByte(t *testing.T) {
	for name, under := range map[string]func(net.Conn) net.Conn{
		"whole": same, "crumbs": func(nc net.Conn) net.Conn { return dribbling{nc} },
	} {
		t.Run(name, func(t *testing.T) {
			c, s := sheddable(t, under)
			frames := map[string]int{"whole": 100, "crumbs": 4}[name]
			first := bytes.Repeat([]byte("under TLS "), 3000)
			if _, err := s.Write(first); err != nil {
				t.Fatal(err)
			}
			a := sheds(c)
			got := make([]byte, len(first))
			if _, err := io.ReadFull(a, got[:len(got)/2]); err != nil {
				t.Fatal(err)
			}
			b := lead(s) // the other half is on its way
			if _, err := io.ReadFull(a, got[len(got)/2:]); err != nil || !bytes.Equal(got, first) {
				t.Fatalf("the second half: %v", err)
			}
			exchange(t, a, b, 11, frames)
			exchange(t, a, b, 12, frames)
			x, y := a.(*shedding), b.(*shedding)
			if !x.bareIn || !x.bareOut.Load() || !y.bareIn || !y.bareOut.Load() {
				t.Error("TLS was not shed")
			}
		})
	}
}

func TestRealEndsAreSeenThroughSheddableTLS(t *testing.T) {
	for _, led := range []bool{false, true} {
		for _, first := range []string{"dialled", "accepted"} {
			t.Run(fmt.Sprintf("%v %s", led, first), func(t *testing.T) {
				c, s := sheddable(t, same)
				a, b := sheds(c), sheds(s)
				if led {
					b = lead(s)
				}
				if first == "accepted" {
					a, b = b, a
				}
				for _, dir := range [][2]net.Conn{{a, b}, {b, a}} {
					if _, err := dir[0].Write([]byte("last words")); err != nil {
						t.Fatal(err)
					}
					if err := dir[0].(*shedding).CloseWrite(); err != nil {
						t.Fatal(err)
					}
					if got, err := io.ReadAll(dir[1]); err != nil || string(got) != "last words" {
						t.Errorf("read %q, %v", got, err)
					}
				}
			})
		}
	}
}

func TestOnlyOwnSessionsAreShed(t *testing.T) {
	c, s := sheddable(t, same)
	_, other := sheddable(t, same)
	offer := offerShed(c)
	if offer == "" || !takesShed(s, http.Header{shedHeader: {"a stranger's", offer}}) {
		t.Errorf("the offer %q of this very session is not taken", offer)
	}
	for _, h := range []http.Header{nil, {shedHeader: {""}}, {shedHeader: {offer}}} {
		if takesShed(other, h) {
			t.Errorf("%v is taken for another session", h)
		}
	}
	if keepTLS(other); sheds(other) != net.Conn(other) {
		t.Error("TLS is shed that was to be kept")
	}
	for at, want := range map[string]bool{
		"127.0.0.1:443": true, "[::1]:1": true, "192.168.1.5:9": true, "10.1.2.3:9": true, "[fd00::1]:9": true,
		"192.0.2.1:443": false, "[2001:db8::1]:443": false, "100.64.0.1:443": false,
	} {
		c, _ := sheddable(t, func(nc net.Conn) net.Conn { return elsewhere{nc, at} })
		if got := offerShed(c) != ""; got != want {
			t.Errorf("offered to %s: %v, want %v", at, got, want)
		}
		if _, ok := sheds(c).(*shedding); ok != want {
			t.Errorf("shed to %s: %v, want %v", at, ok, want)
		}
	}
	plain, _ := tcpPair(t, false)
	if offerShed(plain) != "" || sheds(plain) != plain || takesShed(plain, nil) {
		t.Error("TLS is shed where there is none")
	}
}

// TestLegsShedTLSAndTellNothing looks at the wire: what backbone and gateway say to the hub is under TLS until
// the session begins, and is as the inner session has sealed it from then on; on legs to public addresses, and
// where another's TLS is between, it stays under TLS.
func TestLegsShedTLSAndTellNothing(t *testing.T) {
	for _, c := range []struct{ far, gate, wantBackbone, wantGateway bool }{
		{wantBackbone: true, wantGateway: true},
		{far: true},
		{gate: true, wantGateway: true}, // the backbone's TLS ends at the gateway
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			var atGateway, atBackbone keeper
			if c.far {
				atGateway.at, atBackbone.at = "192.0.2.1:443", "192.0.2.1:443"
			}
			r := newRig(t, rigConfig{hubTLS: true, gateTLS: true, gateDial: atGateway.dial})
			at := r.hubAt
			if c.gate {
				at = r.gateAt
			}
			b := r.backbone(at, func(c *BackboneConfig) { c.Dialer.NetDial = atBackbone.dial })
			p, a := r.pair(b, r.gateAt)
			mark := bytes.Repeat([]byte("of the inner session"), 5)
			exchange(t, p.Conn, a.Conn, 5, 20)
			written := make(chan error, 1)
			go func() { _, err := a.Conn.Write(mark); written <- err }()
			if _, err := io.ReadFull(p.Conn, make([]byte, len(mark))); err != nil {
				t.Fatal(err)
			}
			if err := <-written; err != nil { // what is written is kept when that is over
				t.Fatal(err)
			}
			leg := atBackbone.of(a.Conn)
			if got := leg.saw(mark); got != c.wantBackbone {
				t.Errorf("backbone and hub without TLS: %v, want %v", got, c.wantBackbone)
			}
			gateway := false
			for _, leg := range append(atGateway.all(), leg) {
				gateway = gateway || leg != atBackbone.of(a.Conn) && leg.saw(mark)
				for _, secret := range []string{"HTTP/1.1", "Kvasir-", `"paired"`, a.Session} {
					if leg.saw([]byte(secret)) {
						t.Errorf("%q in the clear", secret)
					}
				}
			}
			if gateway != c.wantGateway {
				t.Errorf("gateway and hub without TLS: %v, want %v", gateway, c.wantGateway)
			}
		})
	}
}
