package relay

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"

	"kvasir/wire/seal"
)

// Whoever dials a name gets told for which the certificate is, and what to do.
func TestAWrongCertificateIsNamed(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	named := func(names ...string) *x509.Certificate {
		c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, DNSNames: names,
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, c, c, public, private)
		if err != nil {
			t.Fatal(err)
		}
		c, err = x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	own := func(g seal.Grant, k seal.Key) *x509.Certificate {
		c, err := seal.OuterCertificate(k, g)
		if err != nil {
			t.Fatal(err)
		}
		x, err := x509.ParseCertificate(c.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	hub, foreign := seal.NewKey(), seal.NewKey()
	grant, err := seal.SignGrant(foreign, seal.Grant{Role: seal.Gateway, Key: hub.Public(), Issued: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	asked := seal.HubID(seal.NewKey().Public())
	for _, c := range []struct {
		name string
		cert *x509.Certificate
		hub  string
		dial string
		says []string
	}{
		{"another hub", own(seal.Grant{}, hub), asked, "a.test", []string{"a.test shows the certificate of hub " +
			seal.HubID(hub.Public()), "hub " + asked + " was asked for", "compare the address and the id"}},
		{"another hub, behind a gateway", own(seal.Grant{}, hub), asked, "", []string{"the far side shows the certificate of hub " +
			seal.HubID(hub.Public())}},
		{"another swarm", own(grant, hub), asked, "a.test", []string{hub.Public().Short(), "not of this swarm", "compare the address"}},
		{"another name", named("b.test", "c.test"), asked, "a.test", []string{"a.test was dialled", "is for b.test, c.test;"}},
		{"many names", named("b.test", "c.test", "d.test", "e.test", "f.test"), "", "a.test", []string{"d.test and 2 others"}},
		{"the name, and no authority", named("a.test"), asked, "a.test", []string{"no authority of this system", "nor does the swarm"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := trust(root.Public(), c.hub, c.dial, nil).VerifyConnection(tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.cert}})
			oneLine(t, err, ErrUntrusted, c.says...)
		})
	}
}

func TestAGatewayLeadsToAHubOnce(t *testing.T) {
	r := Route{Hub: "twqvytceobjjoezsrumlhpza", Addr: "10.0.0.1:7700"}
	again := r
	again.Addr = "10.0.0.2:7700"
	_, err := NewGateway(GatewayConfig{Routes: []Route{r, again}, Plain: true})
	oneLine(t, err, err, "hub "+r.Hub+" is given twice")
	if again.Host = "b.test"; err == nil {
		t.Fatal("no error")
	}
	g, err := NewGateway(GatewayConfig{Routes: []Route{r, again}, Plain: true}) // by another name
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
}
