package seal

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"
)

// Grant is the root's signature under another key: it makes that key a backbone's. It is a
// backbone's certificate, which a hub shows to workers. Its text is URL-safe base64 of
//
//	 1 byte   version, 1
//	 1 byte   role
//	32 bytes  the key
//	 4 bytes  issued, Unix time in seconds
//	 4 bytes  expires, likewise; 0: never
//	 1 byte   length of a name, then the name
//	64 bytes  signature of the root, domain "grant 1", over the above
//
// Numbers are big-endian. A grant is no secret.
type Grant struct {
	Role    Role
	Key     PublicKey
	Issued  time.Time
	Expires time.Time // zero: never
	Name    string    // for people

	sig [ed25519.SignatureSize]byte
}

const (
	grantDomain  = "grant 1"
	grantVersion = 1
	grantFixed   = 1 + 1 + 32 + 4 + 4 + 1 // before the name
	maxGrantText = (grantFixed + MaxName + ed25519.SignatureSize + 2) / 3 * 4
)

// SignGrant returns g signed by root. It refuses a grant that could not be written down.
func SignGrant(root Key, g Grant) (Grant, error) {
	g.Issued, g.Expires = g.Issued.Truncate(time.Second), g.Expires.Truncate(time.Second)
	if err := g.check(); err != nil {
		return Grant{}, fmt.Errorf("sign grant: %w", err)
	}
	copy(g.sig[:], root.Sign(grantDomain, g.body()))
	return g, nil
}

func (g Grant) check() error {
	switch {
	case g.Role != Backbone && g.Role != Hub && g.Role != Gateway:
		return fmt.Errorf("role %d, want backbone, hub or gateway", g.Role)
	case g.Key.IsZero():
		return errors.New("no key")
	case !fits(g.Issued) || g.Issued.IsZero():
		return errors.New("time of issue before 1970 or after 2106")
	case !fits(g.Expires):
		return errors.New("expiry before 1970 or after 2106")
	case !g.Expires.IsZero() && !g.Expires.After(g.Issued):
		return errors.New("expires before it is issued")
	}
	return checkName(g.Name)
}

func (g Grant) body() []byte {
	b := append(make([]byte, 0, grantFixed+len(g.Name)+ed25519.SignatureSize), grantVersion, byte(g.Role))
	b = append(b, g.Key[:]...)
	for _, t := range []time.Time{g.Issued, g.Expires} {
		s := seconds(t)
		b = append(b, byte(s>>24), byte(s>>16), byte(s>>8), byte(s))
	}
	return append(append(b, byte(len(g.Name))), g.Name...)
}

// String returns the text of the grant.
func (g Grant) String() string { return encode(append(g.body(), g.sig[:]...)) }

// IsZero reports whether g is no grant.
func (g Grant) IsZero() bool { return g == Grant{} }

// ParseGrant parses the text of a grant. Who signed it, Verify says.
func ParseGrant(text string) (Grant, error) {
	if len(text) > maxGrantText {
		return Grant{}, fmt.Errorf("%w: %d characters, at most %d", ErrBadGrant, len(text), maxGrantText)
	}
	raw, err := decode(text)
	switch {
	case err != nil:
		return Grant{}, fmt.Errorf("%w: %w", ErrBadGrant, err)
	case len(raw) > 0 && raw[0] != grantVersion:
		return Grant{}, fmt.Errorf("%w: version %d, this program knows %d", ErrBadGrant, raw[0], grantVersion)
	case len(raw) < grantFixed:
		return Grant{}, fmt.Errorf("%w: cut short", ErrBadGrant)
	}
	n := int(raw[grantFixed-1])
	if len(raw) != grantFixed+n+ed25519.SignatureSize {
		return Grant{}, fmt.Errorf("%w: characters are missing or too many", ErrBadGrant)
	}
	g := Grant{Role: Role(raw[1]), Key: PublicKey(raw[2:34]), Issued: fromSeconds(raw[34:]),
		Expires: fromSeconds(raw[38:]), Name: string(raw[grantFixed : grantFixed+n])}
	copy(g.sig[:], raw[grantFixed+n:])
	if err := g.check(); err != nil {
		return Grant{}, fmt.Errorf("%w: %w", ErrBadGrant, err)
	}
	return g, nil
}

// Verify returns ErrNotRoot unless root has signed g.
func (g Grant) Verify(root PublicKey) error {
	if !root.Verify(grantDomain, g.body(), g.sig[:]) {
		return fmt.Errorf("%w: grant of key %s", ErrNotRoot, g.Key.Short())
	}
	return nil
}

// CheckTime returns ErrGrantExpired when the grant's time is over by more than GrantSkew.
func (g Grant) CheckTime(now time.Time) error {
	if !g.Expires.IsZero() && now.After(g.Expires.Add(GrantSkew)) {
		return expired(ErrGrantExpired, g.Expires, now)
	}
	return nil
}

// MarshalText returns the text of the grant.
func (g Grant) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText is ParseGrant.
func (g *Grant) UnmarshalText(text []byte) (err error) {
	*g, err = ParseGrant(string(text))
	return err
}
