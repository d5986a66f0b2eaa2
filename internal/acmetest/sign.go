package acmetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"time"
)

// Signer signs certificates that hold for a day.
type Signer struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// NewSigner returns a signer with a key of its own.
func NewSigner() (*Signer, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	self := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	raw, err := x509.CreateCertificate(rand.Reader, self, self, k.Public(), k)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(raw)
	return &Signer{k, cert}, err
}

// Pool trusts what is signed.
func (s *Signer) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(s.cert)
	return p
}

// Root is the signer's own certificate, in PEM.
func (s *Signer) Root() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Raw})
}

// Sign returns a certificate for names, of which there is one at least, and the signer's own, in PEM.
func (s *Signer) Sign(public any, serial int64, names ...string) ([]byte, error) {
	raw, err := x509.CreateCertificate(rand.Reader, s.leaf(serial, names), s.cert, public, s.key)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), s.Root()...), nil
}

func (s *Signer) leaf(serial int64, names []string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial), DNSNames: names, Subject: pkix.Name{CommonName: names[0]},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(23 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
}
