// Package acmetest is a certificate authority for tests: as much of RFC 8555 as a client needs that comes once
// for each name. It believes signatures, but not that somebody has a name: it asks for the proof of RFC 8737.
package acmetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/crypto/acme"
)

// Authority is an authority that listens on loopback over TLS, with a certificate of its own for 127.0.0.1.
type Authority struct {
	*Signer
	srv *httptest.Server

	mu     sync.Mutex // all below is under it
	gate   string
	broken bool
	nonces int
	thumb  string // of the account's key
	domain string // of the order under way
	proven bool   // that its challenge was met
	cert   []byte
	seen   Seen
}

// Seen is what an authority has been asked, and what it did.
type Seen struct {
	Contacts []string // of accounts
	Orders   []string // names
	Proofs   []string // protocols that were chosen when it asked for a proof
	Faults   []error  // what was wrong with what came
}

// token is what every proof is made of.
const token = "a-token-of-the-authority"

// Start starts an authority. Close is to follow.
func Start() (*Authority, error) {
	s, err := NewSigner()
	if err != nil {
		return nil, err
	}
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	self := s.leaf(2, []string{"localhost"})
	self.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	raw, err := x509.CreateCertificate(rand.Reader, self, s.cert, k.Public(), s.key)
	if err != nil {
		return nil, err
	}
	a := &Authority{Signer: s}
	a.srv = httptest.NewUnstartedServer(a)
	a.srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: k}}, MinVersion: tls.VersionTLS12}
	a.srv.StartTLS()
	return a, nil
}

// Close ends it.
func (a *Authority) Close() { a.srv.Close() }

// Directory is the address that clients begin with.
func (a *Authority) Directory() string { return a.srv.URL + "/directory" }

// Client returns a client that trusts it.
func (a *Authority) Client() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.Pool(), MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}}
}

// Gate tells where all names are: proofs are asked for there.
func (a *Authority) Gate(addr string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gate = addr
}

// Break has it answer orders with an error, or no more.
func (a *Authority) Break(on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.broken = on
}

// Seen returns what it has seen so far.
func (a *Authority) Seen() Seen {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.seen
	s.Contacts, s.Orders = slices.Clone(s.Contacts), slices.Clone(s.Orders)
	s.Proofs, s.Faults = slices.Clone(s.Proofs), slices.Clone(s.Faults)
	return s
}

// ServeHTTP is http.Handler's.
func (a *Authority) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.nonces++
	w.Header().Set("Replay-Nonce", "nonce-"+strconv.Itoa(a.nonces))
	body, key, err := jws(r)
	if err == nil {
		err = a.answer(w, r.URL.Path, body, key)
	}
	if err != nil {
		a.seen.Faults = append(a.seen.Faults, fmt.Errorf("%s: %w", r.URL.Path, err))
	}
}

func (a *Authority) at(path string) string { return a.srv.URL + path }

func say(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // whoever asked may have gone
}

func (a *Authority) answer(w http.ResponseWriter, path string, body []byte, key *ecdsa.PublicKey) (err error) {
	order := func(status int) {
		w.Header().Set("Location", a.at("/order/1"))
		say(w, status, a.order())
	}
	switch path {
	case "/directory":
		say(w, http.StatusOK, map[string]any{"newNonce": a.at("/nonce"), "newAccount": a.at("/account"), "newOrder": a.at("/order"),
			"revokeCert": a.at("/revoke"), "keyChange": a.at("/change")})
	case "/nonce":
		w.WriteHeader(http.StatusNoContent)
	case "/account":
		var o struct{ Contact []string }
		err = json.Unmarshal(body, &o)
		a.seen.Contacts = append(a.seen.Contacts, o.Contact...)
		if err == nil {
			a.thumb, err = acme.JWKThumbprint(key)
		}
		w.Header().Set("Location", a.at("/account/1"))
		say(w, http.StatusCreated, map[string]any{"status": "valid"})
	case "/order":
		if a.broken {
			say(w, http.StatusForbidden, map[string]any{"type": "urn:ietf:params:acme:error:rejectedIdentifier", "detail": "not today"})
			return nil
		}
		err = a.begin(body)
		order(http.StatusCreated)
	case "/order/1":
		order(http.StatusOK)
	case "/authz":
		c := a.challenge()
		say(w, http.StatusOK, map[string]any{"status": c["status"], "identifier": map[string]any{"type": "dns", "value": a.domain},
			"challenges": []any{c}})
	case "/challenge":
		err = a.check()
		a.proven = err == nil
		say(w, http.StatusOK, a.challenge())
	case "/finalize":
		err = a.issue(body)
		order(http.StatusOK)
	case "/cert":
		w.Header().Set("Content-Type", "application/pem-certificate-chain")
		_, _ = w.Write(a.cert) // whoever asked may have gone
	default:
		say(w, http.StatusNotFound, map[string]any{"type": "about:blank"})
	}
	return err
}

// begin takes an order.
func (a *Authority) begin(body []byte) error {
	var o struct{ Identifiers []struct{ Value string } }
	if err := json.Unmarshal(body, &o); err != nil {
		return err
	}
	if len(o.Identifiers) != 1 {
		return fmt.Errorf("an order of %d names, want 1", len(o.Identifiers))
	}
	a.domain, a.proven, a.cert = o.Identifiers[0].Value, false, nil
	a.seen.Orders = append(a.seen.Orders, a.domain)
	return nil
}

func (a *Authority) order() map[string]any {
	status := "pending"
	switch {
	case a.cert != nil:
		status = "valid"
	case a.proven:
		status = "ready"
	}
	return map[string]any{"status": status, "identifiers": []any{map[string]any{"type": "dns", "value": a.domain}},
		"authorizations": []any{a.at("/authz")}, "finalize": a.at("/finalize"), "certificate": a.at("/cert")}
}

func (a *Authority) challenge() map[string]any {
	status := "pending"
	if a.proven {
		status = "valid"
	}
	return map[string]any{"type": "tls-alpn-01", "url": a.at("/challenge"), "token": token, "status": status}
}

// proof is the extension of the certificate that proves something (RFC 8737).
var proof = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 31}

// check asks who has the name for a proof.
func (a *Authority) check() error {
	nc, err := net.Dial("tcp", a.gate)
	if err != nil {
		return err
	}
	// What is shown is signed by nobody: it is looked at below.
	c := tls.Client(nc, &tls.Config{ServerName: a.domain, NextProtos: []string{acme.ALPNProto}, InsecureSkipVerify: true}) //nolint:gosec // see above
	defer c.Close()                                                                                                        //nolint:errcheck // it is of no more use
	if err := c.Handshake(); err != nil {
		return err
	}
	s := c.ConnectionState()
	a.seen.Proofs = append(a.seen.Proofs, s.NegotiatedProtocol)
	want := sha256.Sum256([]byte(token + "." + a.thumb))
	for _, e := range s.PeerCertificates[0].Extensions {
		if !e.Id.Equal(proof) {
			continue
		}
		var got []byte
		if _, err := asn1.Unmarshal(e.Value, &got); err != nil {
			return err
		}
		if string(got) != string(want[:]) || !e.Critical {
			return fmt.Errorf("proof %x, want %x", got, want)
		}
		return nil
	}
	return errors.New("a certificate without a proof")
}

// issue makes the certificate of the order under way.
func (a *Authority) issue(body []byte) error {
	var o struct{ CSR string }
	if err := json.Unmarshal(body, &o); err != nil {
		return err
	}
	raw, err := base64.RawURLEncoding.DecodeString(o.CSR)
	if err != nil {
		return err
	}
	req, err := x509.ParseCertificateRequest(raw)
	if err != nil {
		return err
	}
	if !slices.Equal(req.DNSNames, []string{a.domain}) || !a.proven {
		return fmt.Errorf("asked for %v, ordered %s, proven %v", req.DNSNames, a.domain, a.proven)
	}
	a.cert, err = a.Sign(req.PublicKey, 7, a.domain)
	return err
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
