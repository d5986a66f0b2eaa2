package seal

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
)

// PublicKey is an Ed25519 public key. Its text is 48 characters of URL-safe base64: the 32 bytes of
// the key and a checksum of 4, so that a typing error is found.
type PublicKey [ed25519.PublicKeySize]byte

// Length of the text of a key.
const keyText = 48

const sumSize = 4

// checksum is the first bytes of SHA-256 over a domain and the key.
func checksum(domain string, key []byte) []byte {
	sum := sha256.Sum256(append([]byte("kvasir "+domain+"\x00"), key...))
	return sum[:sumSize]
}

// String returns the text of the key.
func (k PublicKey) String() string { return encode(append(k[:], checksum("public", k[:])...)) }

// Short returns the first characters of the text, for logs.
func (k PublicKey) Short() string { return k.String()[:8] }

// IsZero reports whether k is no key.
func (k PublicKey) IsZero() bool { return k == PublicKey{} }

// ParsePublicKey parses the text of a key.
func ParsePublicKey(text string) (PublicKey, error) {
	raw, err := parseKey("public", text)
	if err != nil {
		return PublicKey{}, err
	}
	return PublicKey(raw), nil
}

// MarshalText returns the text of the key.
func (k PublicKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText parses the text of a key.
func (k *PublicKey) UnmarshalText(text []byte) (err error) {
	*k, err = ParsePublicKey(string(text))
	return err
}

// Verify reports whether sig is the signature of k's owner under body in a domain.
func (k PublicKey) Verify(domain string, body, sig []byte) bool {
	return len(sig) == ed25519.SignatureSize && ed25519.Verify(k[:], message(domain, body), sig)
}

// Key is a private key. Printing it prints its public half.
type Key struct{ private ed25519.PrivateKey }

// NewKey draws a key from the system's generator, and again where the public half's text begins with a
// dash: command lines would take it for a flag.
func NewKey() Key {
	for {
		_, private, err := ed25519.GenerateKey(nil)
		if err != nil {
			panic("BUG: crypto/rand failed: " + err.Error())
		}
		if k := (Key{private}); k.Public().String()[0] != '-' {
			return k
		}
	}
}

// Public returns the public half.
func (k Key) Public() PublicKey {
	if k.private == nil {
		return PublicKey{}
	}
	return PublicKey(k.private.Public().(ed25519.PublicKey))
}

// IsZero reports whether k is no key.
func (k Key) IsZero() bool { return k.private == nil }

// Sign signs body in a domain.
func (k Key) Sign(domain string, body []byte) []byte {
	return ed25519.Sign(k.private, message(domain, body))
}

// Secret derives 32 bytes from the key that nobody else can, for a purpose that the domain names (HKDF, RFC
// 5869, with SHA-256).
func (k Key) Secret(domain string) [32]byte {
	derived, err := hkdf.Key(sha256.New, k.private.Seed(), nil, "kvasir "+domain, 32)
	if err != nil {
		panic("BUG: " + err.Error()) // 32 bytes can be derived
	}
	return [32]byte(derived)
}

// Equal reports whether two keys are the same.
func (k Key) Equal(o Key) bool { return subtle.ConstantTimeCompare(k.private, o.private) == 1 }

// String names the key by its public half.
func (k Key) String() string { return "key of " + k.Public().String() }

// GoString is String.
func (k Key) GoString() string { return k.String() }

// secret returns the text of the private half, of the same shape as that of the public half.
func (k Key) secret() string {
	seed := k.private.Seed()
	return encode(append(seed, checksum("private", seed)...))
}

func parseSecret(text string) (Key, error) {
	seed, err := parseKey("private", text)
	if err != nil {
		return Key{}, err
	}
	return Key{ed25519.NewKeyFromSeed(seed)}, nil
}

func parseKey(half, text string) ([]byte, error) {
	if len(text) != keyText {
		return nil, fmt.Errorf("%w: %d characters, want %d", ErrBadKey, len(text), keyText)
	}
	raw, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadKey, err)
	}
	key, sum := raw[:len(raw)-sumSize], raw[len(raw)-sumSize:]
	if subtle.ConstantTimeCompare(sum, checksum(half, key)) != 1 {
		return nil, fmt.Errorf("%w: its checksum does not fit; a character is wrong", ErrBadKey)
	}
	return key, nil
}

// message is what is signed for body in a domain.
func message(domain string, body []byte) []byte {
	return append([]byte("kvasir "+domain+"\x00"), body...)
}

// Text is base64 in its URL-safe form without padding, in the one way that each value can be
// written.
var encoding = base64.RawURLEncoding.Strict()

func encode(raw []byte) string { return encoding.EncodeToString(raw) }

// decode is the inverse of encode. The caller has bounded the text. It does not quote it: it may be
// secret.
func decode(text string) ([]byte, error) {
	for i := range len(text) {
		c := text[i]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '-' && c != '_' {
			return nil, fmt.Errorf("character %d cannot be in it", i+1)
		}
	}
	raw, err := encoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("a character is missing or wrong near its end")
	}
	return raw, nil
}
