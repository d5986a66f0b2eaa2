package seal

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Role is what a token or a grant makes of a key.
type Role uint8

// The roles.
const (
	Worker   Role = 1
	Backbone Role = 2
	Hub      Role = 3
	Gateway  Role = 4
)

// String returns the role in lower case.
func (r Role) String() string {
	switch r {
	case Worker:
		return "worker"
	case Backbone:
		return "backbone"
	case Hub:
		return "hub"
	case Gateway:
		return "gateway"
	}
	return "unknown role"
}

// Valid reports whether r is one of the roles.
func (r Role) Valid() bool { return r >= Worker && r <= Gateway }

// MaxName is the longest id of a hub, and name of a grant, in bytes.
const MaxName = 64

// checkName returns an error unless s may be a hub's id or the name in a grant: up to MaxName
// letters, digits and ._:- in ASCII.
func checkName(s string) error {
	if len(s) > MaxName {
		return fmt.Errorf("name of %d bytes, want %d at most", len(s), MaxName)
	}
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '.' && c != '_' && c != ':' && c != '-' {
			return fmt.Errorf("name has the byte %q, want letters, digits and ._:- only", c)
		}
	}
	return nil
}

// TokenID names a token in lists and logs. It is no secret.
type TokenID [12]byte

// String returns the id in 24 hexadecimal digits.
func (id TokenID) String() string { return hex.EncodeToString(id[:]) }

// ParseTokenID parses an id.
func ParseTokenID(text string) (id TokenID, err error) {
	if len(text) == hex.EncodedLen(len(id)) {
		if raw, err := hex.DecodeString(text); err == nil {
			return TokenID(raw), nil
		}
	}
	return id, fmt.Errorf("%w: id %.40q, want 24 hexadecimal digits", ErrBadToken, text)
}

// Token lets its holder join a swarm. Its text is URL-safe base64 of
//
//	 1 byte   version, 1
//	 1 byte   role
//	12 bytes  id
//	 4 bytes  number of keys that may use it; 0: any number
//	 4 bytes  issued, Unix time in seconds
//	 4 bytes  expires, likewise; 0: never
//	 1 byte   length of the hub's id, then the id; empty: any hub
//	64 bytes  signature of the root, domain "token 1", over the above
//
// Numbers are big-endian. Whoever knows the text can join, so String does not print it.
type Token struct {
	Role    Role
	ID      TokenID
	Uses    uint32
	Issued  time.Time
	Expires time.Time // zero: never
	Hub     string

	sig [ed25519.SignatureSize]byte
}

const (
	tokenDomain  = "token 1"
	tokenVersion = 1
	tokenFixed   = 1 + 1 + 12 + 4 + 4 + 4 + 1 // before the hub's id
	maxTokenText = (tokenFixed + MaxName + ed25519.SignatureSize + 2) / 3 * 4
)

// SignToken returns t signed by root, with an id where it has none. It refuses a token that could
// not be written down.
func SignToken(root Key, t Token) (Token, error) {
	t.Issued, t.Expires = t.Issued.Truncate(time.Second), t.Expires.Truncate(time.Second)
	if t.ID == (TokenID{}) {
		_, _ = rand.Read(t.ID[:]) // never returns an error
	}
	if err := t.check(); err != nil {
		return Token{}, fmt.Errorf("sign token: %w", err)
	}
	copy(t.sig[:], root.Sign(tokenDomain, t.body()))
	return t, nil
}

func (t Token) check() error {
	switch {
	case t.Role != Worker && t.Role != Backbone:
		return fmt.Errorf("role %d, want worker or backbone", t.Role)
	case !fits(t.Issued) || t.Issued.IsZero():
		return errors.New("time of issue before 1970 or after 2106")
	case !fits(t.Expires):
		return errors.New("expiry before 1970 or after 2106")
	case !t.Expires.IsZero() && !t.Expires.After(t.Issued):
		return errors.New("expires before it is issued")
	}
	return checkName(t.Hub)
}

// body returns what is signed.
func (t Token) body() []byte {
	b := append(make([]byte, 0, tokenFixed+len(t.Hub)+ed25519.SignatureSize), tokenVersion, byte(t.Role))
	b = append(b, t.ID[:]...)
	b = binary.BigEndian.AppendUint32(b, t.Uses)
	b = binary.BigEndian.AppendUint32(b, seconds(t.Issued))
	b = binary.BigEndian.AppendUint32(b, seconds(t.Expires))
	return append(append(b, byte(len(t.Hub))), t.Hub...)
}

// Times travel as Unix seconds in 32 bits without a sign; 0 is the zero time.

func fits(t time.Time) bool { return t.IsZero() || t.Unix() > 0 && t.Unix() < 1<<32 }

func seconds(t time.Time) uint32 {
	if t.IsZero() {
		return 0
	}
	return uint32(t.Unix())
}

func fromSeconds(b []byte) time.Time {
	if s := binary.BigEndian.Uint32(b); s != 0 {
		return time.Unix(int64(s), 0).UTC()
	}
	return time.Time{}
}

// Text returns the token to be handed on. Whoever reads it can join.
func (t Token) Text() string { return encode(append(t.body(), t.sig[:]...)) }

// String describes the token without giving it away.
func (t Token) String() string {
	s := fmt.Sprintf("token %v for a %v", t.ID, t.Role)
	if t.Hub != "" {
		s += " at hub " + t.Hub
	}
	if t.Expires.IsZero() {
		return s + ", without expiry"
	}
	return s + ", until " + stamp(t.Expires)
}

// IsZero reports whether t is no token.
func (t Token) IsZero() bool { return t == Token{} }

// ParseToken parses the text of a token. Who signed it, Verify says.
func ParseToken(text string) (Token, error) {
	if len(text) > maxTokenText {
		return Token{}, fmt.Errorf("%w: %d characters, at most %d", ErrBadToken, len(text), maxTokenText)
	}
	raw, err := decode(text)
	switch {
	case err != nil:
		return Token{}, fmt.Errorf("%w: %w", ErrBadToken, err)
	case len(raw) > 0 && raw[0] != tokenVersion:
		return Token{}, fmt.Errorf("%w: version %d, this program knows %d", ErrBadToken, raw[0], tokenVersion)
	case len(raw) < tokenFixed:
		return Token{}, fmt.Errorf("%w: cut short", ErrBadToken)
	}
	n := int(raw[tokenFixed-1])
	if len(raw) != tokenFixed+n+ed25519.SignatureSize {
		return Token{}, fmt.Errorf("%w: characters are missing or too many", ErrBadToken)
	}
	t := Token{Role: Role(raw[1]), ID: TokenID(raw[2:14]), Uses: binary.BigEndian.Uint32(raw[14:]),
		Issued: fromSeconds(raw[18:]), Expires: fromSeconds(raw[22:]), Hub: string(raw[tokenFixed : tokenFixed+n])}
	copy(t.sig[:], raw[tokenFixed+n:])
	if err := t.check(); err != nil {
		return Token{}, fmt.Errorf("%w: a character is wrong: %w", ErrBadToken, err)
	}
	return t, nil
}

// Verify returns ErrNotRoot unless root has signed t.
func (t Token) Verify(root PublicKey) error {
	if !root.Verify(tokenDomain, t.body(), t.sig[:]) {
		return fmt.Errorf("%w: token %v", ErrNotRoot, t.ID)
	}
	return nil
}

// CheckTime returns ErrTokenExpired when the token's time is over by more than TokenSkew.
func (t Token) CheckTime(now time.Time) error {
	if !t.Expires.IsZero() && now.After(t.Expires.Add(TokenSkew)) {
		return expired(ErrTokenExpired, t.Expires, now)
	}
	return nil
}

// expired names both clocks, since one of them may be wrong.
func expired(err error, at, now time.Time) error {
	return fmt.Errorf("%w at %s; this machine's clock says %s", err, stamp(at), stamp(now))
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// MarshalText returns Text.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.Text()), nil }

// UnmarshalText is ParseToken.
func (t *Token) UnmarshalText(text []byte) (err error) {
	*t, err = ParseToken(string(text))
	return err
}
