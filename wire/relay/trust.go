package relay

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
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
				return fmt.Errorf("%w: %w", ErrUntrusted, err)
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
			return fmt.Errorf("%w: %s: no authority of this system vouches for it (%w), nor does the swarm (%w)",
				ErrUntrusted, name, public, err)
		},
	}
}
