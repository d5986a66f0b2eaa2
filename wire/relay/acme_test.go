package relay

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kvasir/internal/acmetest"
	"kvasir/wire/seal"
)

func startAuthority(t testing.TB) *acmetest.Authority {
	t.Helper()
	a, err := acmetest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Close()
		if f := a.Seen().Faults; len(f) > 0 {
			t.Errorf("the authority: %v", f)
		}
	})
	return a
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
	f := startAuthority(t)
	key := seal.NewKey()
	other, err := outerTLS(nil, false, key, granted(t, key, seal.Gateway))
	if err != nil {
		t.Fatal(err)
	}
	cache := filepath.Join(t.TempDir(), "home", "acme")
	start := func() string {
		config, err := ACME{Hosts: []string{"one.example", "two.example"}, Email: "owner@one.example", Cache: cache,
			Directory: f.Directory(), HTTP: f.Client(), Other: other}.TLS()
		if err != nil {
			t.Fatal(err)
		}
		g, err := NewGateway(GatewayConfig{Routes: []Route{{Addr: "127.0.0.1:1"}}, TLS: config, Limits: quick})
		if err != nil {
			t.Fatal(err)
		}
		return listen4(t, g.Serve, g.Close)
	}
	gate := start()
	f.Gate(gate)
	for _, name := range []string{"one.example", "two.example", "ONE.example"} {
		s, err := greeting(t, gate, name, "h2", "http/1.1")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		o := x509.VerifyOptions{DNSName: name, Roots: f.Pool()}
		if _, err := s.PeerCertificates[0].Verify(o); err != nil || s.NegotiatedProtocol != "http/1.1" {
			t.Errorf("%s: %v, protocol %q", name, err, s.NegotiatedProtocol)
		}
	}
	seen := f.Seen()
	if got := fmt.Sprint(seen.Orders, seen.Contacts, seen.Proofs); got != "[one.example two.example] [mailto:owner@one.example] [acme-tls/1 acme-tls/1]" {
		t.Errorf("the authority saw %s", got)
	}
	// By other names, and by none, it shows what the swarm knows, and asks the authority for nothing.
	for _, name := range []string{"three.example", ""} {
		s, err := greeting(t, gate, name, "http/1.1")
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		if err := seal.CheckOuter(s.PeerCertificates[0], root.Public(), "", time.Now()); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := greeting(t, gate, "one.example", "h2"); err == nil {
		t.Error("HTTP/2 was agreed on")
	}
	if info, err := os.Stat(cache); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("the cache: %v, %v", info, err)
	}
	// The next gateway finds them in the cache.
	if _, err := greeting(t, start(), "two.example"); err != nil || len(f.Seen().Orders) != 2 {
		t.Errorf("again: %v, orders %v", err, f.Seen().Orders)
	}
}

func TestACMEWithoutAnotherCertificateRefusesOtherNames(t *testing.T) {
	f := startAuthority(t)
	config, err := ACME{Hosts: []string{"one.example"}, Cache: t.TempDir(), Directory: f.Directory(), HTTP: f.Client()}.TLS()
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
	if o := f.Seen().Orders; len(o) > 0 {
		t.Errorf("orders %v", o)
	}
	for _, hosts := range [][]string{nil, {""}, {"localhost"}, {"192.0.2.1"}, {"*.example"}, {"a.example:443"}, {"https://a.example"}} {
		if _, err := (ACME{Hosts: hosts, Cache: t.TempDir()}).TLS(); err == nil {
			t.Errorf("%q were taken", hosts)
		}
	}
}

// TestACMESaysWhyThereIsNoCertificate has an authority that refuses: the log is told so, not once for each who dials
// and not for names that are none of its own.
func TestACMESaysWhyThereIsNoCertificate(t *testing.T) {
	f, log := startAuthority(t), &logbook{}
	f.Break(true)
	var passed atomic.Int64
	start := time.Now()
	config, err := ACME{
		Hosts: []string{"one.example"}, Cache: t.TempDir(), Directory: f.Directory(), HTTP: f.Client(), Log: log.logger(),
		Now: func() time.Time { return start.Add(time.Duration(passed.Load())) },
	}.TLS()
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGateway(GatewayConfig{Routes: []Route{{Addr: "127.0.0.1:1"}}, TLS: config, Limits: quick})
	if err != nil {
		t.Fatal(err)
	}
	addr := listen4(t, g.Serve, g.Close)
	told := func(name string, want int) {
		t.Helper()
		if _, err := greeting(t, addr, name); err == nil {
			t.Errorf("%q was greeted", name)
		}
		until(t, "the log is told", func() bool { return strings.Count(log.String(), "no certificate of the authority") == want })
	}
	told("two.example", 0)
	told("one.example", 1)
	told("one.example", 1)
	passed.Store(int64(acmeEvery))
	told("one.example", 2)
	if !strings.Contains(log.String(), "not today") {
		t.Errorf("it does not say why:\n%s", log)
	}
}

func TestCertificateFilesAreReadAgain(t *testing.T) {
	a, err := acmetest.NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	dir, start, log := t.TempDir(), time.Now(), &logbook{}
	var passed atomic.Int64
	later := func() { passed.Add(int64(certEvery)) }
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write := func(serial int64, broken bool) {
		t.Helper()
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := a.Sign(k.Public(), serial, "one.example")
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
