package relay

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/acme"

	"kvasir/wire/seal"
)

// testAuthority signs certificates for tests.
type testAuthority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newTestAuthority(t testing.TB) *testAuthority {
	t.Helper()
	a := &testAuthority{pool: x509.NewCertPool()}
	a.key = newECKey(t)
	self := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	raw, err := x509.CreateCertificate(rand.Reader, self, self, a.key.Public(), a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

func newECKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// sign returns a certificate and its issuer's, in PEM.
func (a *testAuthority) sign(public any, serial int64, names ...string) ([]byte, error) {
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: names,
		Subject: pkix.Name{CommonName: names[0]}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(23 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, a.cert, public, a.key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})...), nil
}

// fakeACME is as much of an authority of RFC 8555 as a client needs that comes once for each name. It
// believes signatures, but not that somebody has a name.
type fakeACME struct {
	*testAuthority
	t      testing.TB
	srv    *httptest.Server
	gate   string // where all names are
	domain string // of the order under way

	mu      sync.Mutex
	email   []string
	thumb   string // of the account's key
	valid   bool   // the challenge was met
	cert    []byte
	orders  []string
	checked []string // protocols that the gateway chose when it was asked for a proof
}

const challengeToken = "a-token-of-the-authority"

func newFakeACME(t testing.TB) *fakeACME {
	f := &fakeACME{testAuthority: newTestAuthority(t), t: t}
	f.srv = httptest.NewServer(f)
	t.Cleanup(f.srv.Close)
	return f
}

func (f *fakeACME) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := func(path string) string { return f.srv.URL + path }
	w.Header().Set("Replay-Nonce", newID())
	body, key, err := jws(r)
	if err != nil {
		f.t.Errorf("%s: %v", r.URL, err)
	}
	say := func(status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	order := func() map[string]any {
		status := "pending"
		switch {
		case f.cert != nil:
			status = "valid"
		case f.valid:
			status = "ready"
		}
		return map[string]any{"status": status, "identifiers": []any{map[string]any{"type": "dns", "value": f.domain}},
			"authorizations": []string{at("/authz")}, "finalize": at("/finalize"), "certificate": at("/cert")}
	}
	challenge := func() map[string]any {
		status := "pending"
		if f.valid {
			status = "valid"
		}
		return map[string]any{"type": "tls-alpn-01", "url": at("/challenge"), "token": challengeToken, "status": status}
	}
	switch r.URL.Path {
	case "/":
		say(200, map[string]any{"newNonce": at("/nonce"), "newAccount": at("/account"), "newOrder": at("/order"),
			"revokeCert": at("/revoke"), "keyChange": at("/change")})
	case "/nonce":
		w.WriteHeader(http.StatusNoContent)
	case "/account":
		var a struct{ Contact []string }
		_ = json.Unmarshal(body, &a)
		f.email = append(f.email, a.Contact...)
		f.thumb, err = acme.JWKThumbprint(key)
		w.Header().Set("Location", at("/account/1"))
		say(201, map[string]any{"status": "valid"})
	case "/order":
		var o struct {
			Identifiers []struct{ Value string }
		}
		_ = json.Unmarshal(body, &o)
		f.domain, f.valid, f.cert = o.Identifiers[0].Value, false, nil
		f.orders = append(f.orders, f.domain)
		w.Header().Set("Location", at("/order/1"))
		say(201, order())
	case "/order/1":
		w.Header().Set("Location", at("/order/1"))
		say(200, order())
	case "/authz":
		say(200, map[string]any{"status": challenge()["status"], "identifier": map[string]any{"type": "dns", "value": f.domain},
			"challenges": []any{challenge()}})
	case "/challenge":
		err = f.check()
		f.valid = err == nil
		say(200, challenge())
	case "/finalize":
		var c struct{ CSR string }
		_ = json.Unmarshal(body, &c)
		f.cert, err = f.issue(c.CSR)
		w.Header().Set("Location", at("/order/1"))
		say(200, order())
	case "/cert":
		w.Header().Set("Content-Type", "application/pem-certificate-chain")
		_, _ = w.Write(f.cert)
	default:
		say(404, map[string]any{"type": "about:blank"})
	}
	if err != nil {
		f.t.Errorf("authority, %s: %v", r.URL, err)
	}
}

// check asks the gateway for its proof, as RFC 8737 says.
func (f *fakeACME) check() error {
	nc, err := net.Dial("tcp", f.gate)
	if err != nil {
		return err
	}
	defer nc.Close() //nolint:errcheck // of a test
	c := tls.Client(nc, &tls.Config{ServerName: f.domain, NextProtos: []string{acme.ALPNProto}, InsecureSkipVerify: true})
	if err := c.Handshake(); err != nil {
		return err
	}
	s := c.ConnectionState()
	f.checked = append(f.checked, s.NegotiatedProtocol)
	want := sha256.Sum256([]byte(challengeToken + "." + f.thumb))
	for _, e := range s.PeerCertificates[0].Extensions {
		var got []byte
		if e.Id.Equal(asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 31}) {
			_, err := asn1.Unmarshal(e.Value, &got)
			if err == nil && (string(got) != string(want[:]) || !e.Critical) {
				err = fmt.Errorf("proof %x, want %x", got, want)
			}
			return err
		}
	}
	return errors.New("a certificate without a proof")
}

func (f *fakeACME) issue(csr string) ([]byte, error) {
	raw, err := base64.RawURLEncoding.DecodeString(csr)
	if err != nil {
		return nil, err
	}
	req, err := x509.ParseCertificateRequest(raw)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(req.DNSNames, []string{f.domain}) || !f.valid {
		return nil, fmt.Errorf("asked for %v, ordered %s, valid %v", req.DNSNames, f.domain, f.valid)
	}
	return f.sign(req.PublicKey, 7, f.domain)
}

// jws returns the payload of a request, and the key where it has one.
func jws(r *http.Request) (payload []byte, key *ecdsa.PublicKey, err error) {
	if r.Method != http.MethodPost {
		return nil, nil, nil
	}
	var m struct{ Protected, Payload string }
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		return nil, nil, err
	}
	part := func(s string) []byte {
		b, derr := base64.RawURLEncoding.DecodeString(s)
		err = errors.Join(err, derr)
		return b
	}
	var head struct {
		JWK *struct{ X, Y string }
	}
	if err := json.Unmarshal(part(m.Protected), &head); err != nil {
		return nil, nil, err
	}
	if head.JWK != nil {
		raw := append([]byte{4}, append(part(head.JWK.X), part(head.JWK.Y)...)...)
		if key, err = ecdsa.ParseUncompressedPublicKey(elliptic.P256(), raw); err != nil {
			return nil, nil, err
		}
	}
	return part(m.Payload), key, err
}

// greeting dials a gateway by a name and returns what it shows.
func greeting(t testing.TB, addr, name string, protos ...string) (tls.ConnectionState, error) {
	t.Helper()
	nc := dialRaw(t, addr, false)
	defer sever(nc)
	c := tls.Client(nc, &tls.Config{ServerName: name, NextProtos: protos, InsecureSkipVerify: true})
	err := c.Handshake()
	return c.ConnectionState(), err
}

func TestACMEGetsCertificatesForItsNamesAlone(t *testing.T) {
	f := newFakeACME(t)
	key := seal.NewKey()
	other, err := outerTLS(nil, false, key, granted(t, key, seal.Gateway))
	if err != nil {
		t.Fatal(err)
	}
	cache := filepath.Join(t.TempDir(), "home", "acme")
	start := func() string {
		config, err := ACME{Hosts: []string{"one.example", "two.example"}, Email: "owner@one.example", Cache: cache,
			Directory: f.srv.URL + "/", HTTP: f.srv.Client(), Other: other}.TLS()
		if err != nil {
			t.Fatal(err)
		}
		g, err := NewGateway(GatewayConfig{Routes: []Route{{Addr: "127.0.0.1:1"}}, TLS: config, Limits: quick})
		if err != nil {
			t.Fatal(err)
		}
		return listen4(t, g.Serve, g.Close)
	}
	f.gate = start()
	for _, name := range []string{"one.example", "two.example", "ONE.example"} {
		s, err := greeting(t, f.gate, name, "h2", "http/1.1")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		o := x509.VerifyOptions{DNSName: name, Roots: f.pool}
		if _, err := s.PeerCertificates[0].Verify(o); err != nil || s.NegotiatedProtocol != "http/1.1" {
			t.Errorf("%s: %v, protocol %q", name, err, s.NegotiatedProtocol)
		}
	}
	if got := fmt.Sprint(f.orders, f.email, f.checked); got != "[one.example two.example] [mailto:owner@one.example] [acme-tls/1 acme-tls/1]" {
		t.Errorf("the authority saw %s", got)
	}
	// By other names, and by none, it shows what the swarm knows, and asks the authority for nothing.
	for _, name := range []string{"three.example", ""} {
		s, err := greeting(t, f.gate, name, "http/1.1")
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		if err := seal.CheckOuter(s.PeerCertificates[0], root.Public(), "", time.Now()); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := greeting(t, f.gate, "one.example", "h2"); err == nil {
		t.Error("HTTP/2 was agreed on")
	}
	if info, err := os.Stat(cache); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the cache: %v, %v", info, err)
	}
	// The next gateway finds them in the cache.
	if _, err := greeting(t, start(), "two.example"); err != nil || len(f.orders) != 2 {
		t.Errorf("again: %v, orders %v", err, f.orders)
	}
}

func TestACMEWithoutAnotherCertificateRefusesOtherNames(t *testing.T) {
	f := newFakeACME(t)
	config, err := ACME{Hosts: []string{"one.example"}, Cache: t.TempDir(), Directory: f.srv.URL}.TLS()
	if err != nil {
		t.Fatal(err)
	}
	r := outerRules(config)
	if fmt.Sprint(r.NextProtos) != "[http/1.1 acme-tls/1]" || !r.SessionTicketsDisabled || !r.DynamicRecordSizingDisabled {
		t.Errorf("rules %v", r.NextProtos)
	}
	g, err := NewGateway(GatewayConfig{Routes: []Route{{Addr: "127.0.0.1:1"}}, TLS: config, Limits: quick})
	if err != nil {
		t.Fatal(err)
	}
	addr := listen4(t, g.Serve, g.Close)
	for _, name := range []string{"", "two.example", "192.0.2.1"} {
		if _, err := greeting(t, addr, name); err == nil {
			t.Errorf("%q was greeted", name)
		}
	}
	until(t, "they are counted", func() bool { return g.Counts()["refused_tls"] == 3 })
	if len(f.orders) > 0 {
		t.Errorf("orders %v", f.orders)
	}
	for _, hosts := range [][]string{nil, {""}, {"localhost"}, {"192.0.2.1"}, {"*.example"}, {"a.example:443"}, {"https://a.example"}} {
		if _, err := (ACME{Hosts: hosts, Cache: t.TempDir()}).TLS(); err == nil {
			t.Errorf("%q were taken", hosts)
		}
	}
}

func TestCertificateFilesAreReadAgain(t *testing.T) {
	a := newTestAuthority(t)
	dir, start, log := t.TempDir(), time.Now(), &logbook{}
	var passed atomic.Int64
	later := func() { passed.Add(int64(certEvery)) }
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write := func(serial int64, broken bool) {
		t.Helper()
		k := newECKey(t)
		cert, err := a.sign(k.Public(), serial, "one.example")
		if err != nil {
			t.Fatal(err)
		}
		raw, err := x509.MarshalPKCS8PrivateKey(k)
		if err != nil {
			t.Fatal(err)
		}
		key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
		if broken {
			key = key[:len(key)/2]
		}
		if err := errors.Join(os.WriteFile(certFile, cert, 0o600), os.WriteFile(keyFile, key, 0o600)); err != nil {
			t.Fatal(err)
		}
		stamp := start.Add(time.Duration(serial) * time.Second) // clocks of file systems are coarse
		if err := errors.Join(os.Chtimes(certFile, stamp, stamp), os.Chtimes(keyFile, stamp, stamp)); err != nil {
			t.Fatal(err)
		}
	}
	write(1, true)
	if _, err := CertFiles(certFile, keyFile, nil, nil); err == nil || !strings.Contains(err.Error(), keyFile) {
		t.Errorf("half a key: %v", err)
	}
	write(2, false)
	config, err := CertFiles(certFile, keyFile, log.logger(), func() time.Time { return start.Add(time.Duration(passed.Load())) })
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGateway(GatewayConfig{Routes: []Route{{Addr: "127.0.0.1:1"}}, TLS: config, Limits: quick})
	if err != nil {
		t.Fatal(err)
	}
	addr := listen4(t, g.Serve, g.Close)
	shown := func(want int64) {
		t.Helper()
		s, err := greeting(t, addr, "one.example", "http/1.1")
		if err != nil || s.PeerCertificates[0].SerialNumber.Int64() != want || s.NegotiatedProtocol != "http/1.1" {
			t.Errorf("shown %v with %q, %v; want %d", s.PeerCertificates[0].SerialNumber, s.NegotiatedProtocol, err, want)
		}
	}
	shown(2)
	write(3, false)
	shown(2) // not so soon
	later()
	shown(3)
	write(4, true) // and then for good
	later()
	shown(3)
	later()
	shown(3)
	if n := strings.Count(log.String(), "the last one stays"); n != 1 {
		t.Errorf("%d lines:\n%s", n, log)
	}
	write(5, false)
	later()
	shown(5)
	if err := os.Remove(certFile); err != nil {
		t.Fatal(err)
	}
	later()
	shown(5)
}
