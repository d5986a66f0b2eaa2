package seal

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base32"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// The outer TLS session, to a gateway or a hub, hides tokens from the path, and nothing else hangs on
// it. A machine without a certificate from a public authority makes its own, which carries the grant
// that makes its key a hub's or a gateway's, as the URI kvasir:grant/GRANT.

const grantPath = "grant/"

// HubID returns the id of the hub that owns a key, 26 letters and digits. It is 16 bytes of SHA-256 over
// the key, in base32.
func HubID(k PublicKey) string {
	sum := sha256.Sum256(append([]byte("kvasir hub\x00"), k[:]...))
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
}

// OuterCertificate returns a self-signed certificate of k for outer TLS. g may be zero; then only who
// knows the key, or the hub's id that is made of it, can trust it.
func OuterCertificate(k Key, g Grant) (tls.Certificate, error) {
	if k.IsZero() {
		return tls.Certificate{}, fmt.Errorf("%w: none for this machine", ErrBadKey)
	}
	if g.IsZero() {
		return selfSigned(k)
	}
	return selfSigned(k, &url.URL{Scheme: "kvasir", Opaque: grantPath + g.String()})
}

// OuterKey returns the key of a certificate as OuterCertificate makes them; ok is false for others.
func OuterKey(cert *x509.Certificate) (k PublicKey, ok bool) {
	public, is := cert.PublicKey.(ed25519.PublicKey)
	if !is || len(public) != ed25519.PublicKeySize || cert.Subject.CommonName != commonName {
		return k, false
	}
	return PublicKey(public), true
}

// CheckOuter returns nil when cert is that of the hub of id hub, or carries a grant by root that makes
// its key a hub's or a gateway's. hub may be empty. TLS has the far side prove that it owns the key.
func CheckOuter(cert *x509.Certificate, root PublicKey, hub string, now time.Time) error {
	public, ok := cert.PublicKey.(ed25519.PublicKey)
	if !ok || len(public) != ed25519.PublicKeySize {
		return fmt.Errorf("%w: the certificate is not of this swarm", ErrWrongKey)
	}
	k := PublicKey(public)
	if hub != "" && HubID(k) == hub {
		return nil
	}
	for _, u := range cert.URIs {
		text, ok := strings.CutPrefix(u.Opaque, grantPath)
		if u.Scheme != "kvasir" || !ok {
			continue
		}
		g, err := ParseGrant(text)
		if err == nil {
			err = g.Verify(root)
		}
		switch {
		case err != nil:
			return err
		case g.Key != k:
			return fmt.Errorf("%w: the grant is for key %s, this is %s", ErrWrongKey, g.Key.Short(), k.Short())
		case g.Role != Hub && g.Role != Gateway:
			return fmt.Errorf("%w: it is for a %v", ErrWrongRole, g.Role)
		}
		return g.CheckTime(now)
	}
	return fmt.Errorf("%w: key %s is neither the hub's nor granted by the root", ErrWrongKey, k.Short())
}
