package relay

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"kvasir/wire/seal"
)

// trust returns how to check the certificate of a gateway or hub that is dialled by name: it is of the
// hub of that id, or the root has granted its key, or an authority that this system knows vouches for
// the name. name may be empty; then authorities count for nothing.
func trust(root seal.PublicKey, hub, name string, now func() time.Time) *tls.Config {
	if now == nil {
		now = time.Now
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		// VerifyConnection decides, since there are three ways to be trusted.
		InsecureSkipVerify: true, //nolint:gosec // see above
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return fmt.Errorf("%w: none was shown", ErrUntrusted)
			}
			leaf := s.PeerCertificates[0]
			err := seal.CheckOuter(leaf, root, hub, now())
			if err == nil {
				return nil
			}
			if name == "" {
				return untrusted(leaf, hub, "the far side", nil, err)
			}
			o := x509.VerifyOptions{DNSName: name, CurrentTime: now(), Intermediates: x509.NewCertPool()}
			for _, c := range s.PeerCertificates[1:] {
				o.Intermediates.AddCert(c)
			}
			_, public := leaf.Verify(o)
			var invalid x509.CertificateInvalidError
			switch {
			case public == nil:
				return nil
			case errors.As(public, &invalid) && invalid.Reason == x509.Expired:
				return public
			}
			return untrusted(leaf, hub, name, public, err)
		},
	}
}

// untrusted says whose certificate was shown where that of a hub, or of a name, was wanted, and what to do.
// public is why no authority vouches for it, own why the swarm does not.
func untrusted(leaf *x509.Certificate, hub, name string, public, own error) error {
	var other x509.HostnameError
	key, swarms := seal.OuterKey(leaf)
	switch {
	case swarms && hub != "" && errors.Is(own, seal.ErrWrongKey):
		return fmt.Errorf("%w: %s shows the certificate of hub %s, and hub %s was asked for; compare the address and the id "+
			"with what that hub prints, or, if it is a gateway, have its key granted with kvasir token grant (%w)",
			ErrUntrusted, name, seal.HubID(key), hub, own)
	case swarms:
		return fmt.Errorf("%w: %s shows that of key %s, which is not of this swarm (%w); compare the address with what "+
			"you were given", ErrUntrusted, name, key.Short(), own)
	case errors.As(public, &other) && len(leaf.DNSNames) > 0:
		return fmt.Errorf("%w: %s was dialled, and the certificate is for %s; dial it by one of these names, or give it a "+
			"certificate for %[2]s", ErrUntrusted, name, nameList(leaf.DNSNames))
	}
	return fmt.Errorf("%w: %s: no authority of this system vouches for it (%w), nor does the swarm (%w)",
		ErrUntrusted, name, public, own)
}

// nameList lists some names of a certificate.
func nameList(names []string) string {
	const most = 3
	list := strings.Join(names[:min(len(names), most)], ", ")
	if n := len(names) - most; n > 0 {
		list += fmt.Sprintf(" and %d others", n)
	}
	return clip(list, 200)
}
