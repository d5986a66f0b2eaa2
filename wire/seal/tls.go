package seal

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"time"
)

// ALPN is the protocol of the inner TLS session.
const ALPN = "kvasir/1"

// MaxChunk is the most that is written to an inner session at once: such a Write is one TLS record,
// and one Write on the connection beneath.
const MaxChunk = 16_000

// HandshakeTime is how long a handshake of the inner session may take. With the two seconds that a close
// may take on the way out, who says nothing after pairing is gone within ten.
const HandshakeTime = 7 * time.Second

// ClientConfig is a worker's side of an inner session.
type ClientConfig struct {
	Self   Key
	Root   PublicKey
	Paired Grant // of the backbone, as the hub sent it
	Now    func() time.Time
}

// ServerConfig is a backbone's side of an inner session.
type ServerConfig struct {
	Self   Key
	Root   PublicKey
	Paired Proof // of the worker, as the hub passed it on
}

// Client opens the inner session over nc as a worker. The grant is checked before anything is sent.
// It returns when the backbone is known; that the backbone has accepted the worker, the first
// message from it says, or a read error that Explain makes ErrRefused. After an error nc is
// useless, and the caller closes it.
func Client(ctx context.Context, nc net.Conn, c ClientConfig) (*tls.Conn, error) {
	want := c.Paired.Key
	err := c.Paired.Verify(c.Root)
	if err == nil && c.Paired.Role != Backbone {
		err = fmt.Errorf("%w: it is for a %v", ErrWrongRole, c.Paired.Role)
	}
	if err == nil {
		err = c.Paired.CheckTime(c.Now())
	}
	if err != nil {
		return nil, fmt.Errorf("backbone that the hub offers: %w", err)
	}
	config, err := innerTLS(c.Self, "backbone", want)
	if err != nil {
		return nil, err
	}
	return handshake(ctx, tls.Client(nc, config))
}

// Server opens the inner session over nc as a backbone. The worker's proof is checked before
// anything is read. After an error nc is useless, and the caller closes it.
func Server(ctx context.Context, nc net.Conn, c ServerConfig) (*tls.Conn, error) {
	err := c.Paired.Verify(c.Root)
	if err == nil && c.Paired.Role() != Worker {
		err = fmt.Errorf("%w: it is for a %v", ErrWrongRole, c.Paired.Role())
	}
	if err != nil {
		return nil, fmt.Errorf("worker that the hub offers: %w", err)
	}
	config, err := innerTLS(c.Self, "worker", c.Paired.Key)
	if err != nil {
		return nil, err
	}
	return handshake(ctx, tls.Server(nc, config))
}

func handshake(ctx context.Context, t *tls.Conn) (*tls.Conn, error) {
	limit, cancel := context.WithTimeout(ctx, HandshakeTime)
	defer cancel()
	err := t.HandshakeContext(limit)
	switch {
	case err == nil:
		return t, nil
	case limit.Err() != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("%w within %v: the far side is silent", ErrHandshake, HandshakeTime)
	case errors.Is(err, ErrWrongKey), errors.Is(err, ErrHandshake):
		return nil, err
	}
	if err = Explain(err); !errors.Is(err, ErrRefused) {
		err = fmt.Errorf("%w: %w", ErrHandshake, err)
	}
	return nil, err
}

// innerTLS returns the configuration for either side. peer names the far side in errors, want is
// the key that it must show.
func innerTLS(self Key, peer string, want PublicKey) (*tls.Config, error) {
	if self.IsZero() {
		return nil, fmt.Errorf("%w: none for this machine", ErrBadKey)
	}
	cert, err := selfSigned(self)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates:                []tls.Certificate{cert},
		MinVersion:                  tls.VersionTLS13,
		NextProtos:                  []string{ALPN},
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true, // one chunk, one record
		ClientAuth:                  tls.RequireAnyClientCert,
		// Names, dates and signatures in a certificate mean nothing here: VerifyConnection compares
		// its key, and TLS itself has the far side prove that it owns that.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection:   func(s tls.ConnectionState) error { return verify(s, peer, want) },
	}, nil
}

func verify(s tls.ConnectionState, peer string, want PublicKey) error {
	if s.Version != tls.VersionTLS13 || s.NegotiatedProtocol != ALPN || s.DidResume {
		return fmt.Errorf("%w: the %s speaks %s with protocol %.20q, want TLS 1.3 with %s",
			ErrHandshake, peer, tls.VersionName(s.Version), s.NegotiatedProtocol, ALPN)
	}
	if len(s.PeerCertificates) != 1 {
		return fmt.Errorf("%w: the %s shows %d certificates, want 1", ErrWrongKey, peer, len(s.PeerCertificates))
	}
	key, ok := s.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
	if !ok || len(key) != ed25519.PublicKeySize {
		return fmt.Errorf("%w: the %s shows a key that is not Ed25519", ErrWrongKey, peer)
	}
	if got := PublicKey(key); got != want || want.IsZero() {
		return fmt.Errorf("%w: the %s shows key %s, the hub has announced %s", ErrWrongKey, peer, got.Short(), want.Short())
	}
	return nil
}

// commonName is the subject of the certificates that are made here.
const commonName = "kvasir"

// selfSigned wraps a key in a certificate. Its dates span what can be written.
func selfSigned(k Key, uris ...*url.URL) (tls.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: commonName},
		NotBefore:    time.Unix(0, 0),
		NotAfter:     time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		URIs:         uris,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.private.Public(), k.private)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: k.private}, nil
}

// Explain returns err, or ErrRefused where err is the far side's alert about our certificate. A
// worker learns so, in its first read and after its own handshake, that the backbone expected
// another key.
func Explain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" && op.Err.Error() == "tls: bad certificate" {
		return fmt.Errorf("%w: it expected another (%w)", ErrRefused, err)
	}
	return err
}
