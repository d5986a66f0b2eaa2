package seal

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Challenge is what a hub asks in a 401: sign this. It travels in one header:
//
//	WWW-Authenticate: Kvasir hub="ID", nonce="NONCE", time="UNIX SECONDS"
type Challenge struct {
	Hub   string
	Nonce string
	Time  time.Time // the hub's clock; zero: it did not say
}

const (
	challengeHeader = "Www-Authenticate"
	challengeScheme = "Kvasir "
	maxChallenge    = 512
)

// Skew returns how far now is ahead of the hub's clock, or 0 when the hub did not say.
func (c Challenge) Skew(now time.Time) time.Duration {
	if c.Time.IsZero() {
		return 0
	}
	return now.Sub(c.Time)
}

// Header returns the header of a 401.
func (c Challenge) Header() http.Header {
	v := fmt.Sprintf(`%shub="%s", nonce="%s"`, challengeScheme, c.Hub, c.Nonce)
	if !c.Time.IsZero() {
		v += fmt.Sprintf(`, time="%d"`, c.Time.Unix())
	}
	return http.Header{challengeHeader: {v}}
}

// ParseChallenge finds the challenge in the header of a 401.
func ParseChallenge(h http.Header) (c Challenge, err error) {
	for _, v := range h.Values(challengeHeader) {
		if fields, ok := strings.CutPrefix(v, challengeScheme); ok && len(v) <= maxChallenge {
			return parseChallenge(fields)
		}
	}
	return c, fmt.Errorf("%w in the answer: is it a hub of Kvasir?", ErrBadChallenge)
}

func parseChallenge(fields string) (c Challenge, err error) {
	for field := range strings.SplitSeq(fields, ",") {
		name, v, _ := strings.Cut(strings.TrimSpace(field), "=")
		v, ok := strings.CutPrefix(v, `"`)
		v, end := strings.CutSuffix(v, `"`)
		if !ok || !end {
			return c, fmt.Errorf("%w: field %.20q", ErrBadChallenge, name)
		}
		switch name {
		case "hub":
			c.Hub = v
		case "nonce":
			c.Nonce = v
		case "time":
			s, err := strconv.ParseUint(v, 10, 32)
			if err != nil {
				return c, fmt.Errorf("%w: time %.20q", ErrBadChallenge, v)
			}
			c.Time = time.Unix(int64(s), 0).UTC()
		}
	}
	if _, err := decode(c.Nonce); err != nil || c.Nonce == "" || len(c.Nonce) > maxNonce {
		return c, fmt.Errorf("%w: nonce of %d characters", ErrBadChallenge, len(c.Nonce))
	}
	if err := checkName(c.Hub); err != nil || c.Hub == "" {
		return c, fmt.Errorf("%w: hub's id of %d characters", ErrBadChallenge, len(c.Hub))
	}
	return c, nil
}

// Proof shows a hub who asks: by a token or a grant, one of which is set, a key, and the key's
// signature. It travels in headers:
//
//	Kvasir-Token: TOKEN  or  Kvasir-Grant: GRANT
//	Kvasir-Key: KEY
//	Kvasir-Nonce: NONCE
//	Kvasir-Signature: 64 bytes in URL-safe base64, domain "proof 1", over
//	    hub, path and nonce, each after its length in 2 bytes,
//	    and SHA-256 of the token's or grant's text
//
// As JSON it is what a hub hands to the backbone that it pairs a worker with.
type Proof struct {
	Token     Token     `json:"token,omitzero"`
	Grant     Grant     `json:"grant,omitzero"`
	Key       PublicKey `json:"key"`
	Hub       string    `json:"hub"`
	Path      string    `json:"path"`
	Nonce     string    `json:"nonce"`
	Signature []byte    `json:"signature"`
}

const (
	proofDomain     = "proof 1"
	tokenHeader     = "Kvasir-Token"
	grantHeader     = "Kvasir-Grant"
	keyHeader       = "Kvasir-Key"
	nonceHeader     = "Kvasir-Nonce"
	signatureHeader = "Kvasir-Signature"

	maxNonce = 64      // characters
	maxPath  = 2 << 10 // bytes
)

// ProveToken answers a challenge for a request to path with a token. It refuses to answer a hub
// that the token is not for.
func ProveToken(self Key, t Token, c Challenge, path string) (Proof, error) {
	if t.Hub != "" && t.Hub != c.Hub {
		return Proof{}, fmt.Errorf("%w: it is for %s, this is %s", ErrWrongHub, t.Hub, c.Hub)
	}
	return prove(self, Proof{Token: t}, c, path), nil
}

// ProveGrant answers a challenge for a request to path with the grant of self.
func ProveGrant(self Key, g Grant, c Challenge, path string) (Proof, error) {
	if g.Key != self.Public() {
		return Proof{}, fmt.Errorf("%w: the grant is for key %s, this is %s", ErrWrongKey, g.Key.Short(), self.Public().Short())
	}
	return prove(self, Proof{Grant: g}, c, path), nil
}

func prove(self Key, p Proof, c Challenge, path string) Proof {
	p.Key, p.Hub, p.Path, p.Nonce = self.Public(), c.Hub, path, c.Nonce
	p.Signature = self.Sign(proofDomain, p.body())
	return p
}

func (p Proof) body() (b []byte) {
	for _, s := range []string{p.Hub, p.Path, p.Nonce} {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
	}
	text := p.Grant.String()
	if !p.Token.IsZero() {
		text = p.Token.Text()
	}
	sum := sha256.Sum256([]byte(text))
	return append(b, sum[:]...)
}

// Role returns what the token or grant makes of the key.
func (p Proof) Role() Role {
	if !p.Token.IsZero() {
		return p.Token.Role
	}
	return p.Grant.Role
}

// Header returns the headers of a request.
func (p Proof) Header() http.Header {
	h := http.Header{keyHeader: {p.Key.String()}, nonceHeader: {p.Nonce}, signatureHeader: {encode(p.Signature)}}
	if !p.Token.IsZero() {
		h.Set(tokenHeader, p.Token.Text())
	} else {
		h.Set(grantHeader, p.Grant.String())
	}
	return h
}

// ParseProof reads the proof in the headers of a request to path, at the hub of the given id. It
// returns ErrNoProof when there is none at all. Whether the proof holds, Verify and Door say.
func ParseProof(h http.Header, hub, path string) (p Proof, err error) {
	if h.Get(nonceHeader) == "" && h.Get(signatureHeader) == "" {
		return p, ErrNoProof
	}
	if len(path) > maxPath {
		return p, fmt.Errorf("%w: path of %d bytes", ErrBadProof, len(path))
	}
	for _, name := range []string{tokenHeader, grantHeader, keyHeader, nonceHeader, signatureHeader} {
		if n := len(h.Values(name)); n > 1 {
			return p, fmt.Errorf("%w: %d headers %s", ErrBadProof, n, name)
		}
	}
	token, grant := h.Get(tokenHeader), h.Get(grantHeader)
	switch {
	case token != "" && grant != "":
		return p, fmt.Errorf("%w: it has a token and a grant", ErrBadProof)
	case token != "":
		p.Token, err = ParseToken(token)
	case grant != "":
		p.Grant, err = ParseGrant(grant)
	default:
		return p, fmt.Errorf("%w: neither a token nor a grant is in it", ErrBadProof)
	}
	if err != nil {
		return p, err
	}
	if p.Key, err = ParsePublicKey(h.Get(keyHeader)); err != nil {
		return p, err
	}
	p.Hub, p.Path, p.Nonce = hub, path, h.Get(nonceHeader)
	sig := h.Get(signatureHeader)
	if len(sig) != encoding.EncodedLen(ed25519.SignatureSize) || len(p.Nonce) > maxNonce {
		return p, fmt.Errorf("%w: signature of %d characters, nonce of %d", ErrBadProof, len(sig), len(p.Nonce))
	}
	if p.Signature, err = decode(sig); err != nil {
		return p, fmt.Errorf("%w: signature: %w", ErrBadProof, err)
	}
	return p, nil
}

// Verify checks all of a proof that does not depend on time or on what was shown before: root has
// signed the token or grant, it is for this hub and key, and the key has signed the proof.
func (p Proof) Verify(root PublicKey) error {
	if p.Token.IsZero() == p.Grant.IsZero() {
		return fmt.Errorf("%w: neither a token nor a grant is in it, or both", ErrBadProof)
	}
	if len(p.Path) > maxPath || len(p.Hub) > MaxName || len(p.Nonce) > maxNonce {
		return fmt.Errorf("%w: a part is too long", ErrBadProof)
	}
	if p.Token.IsZero() {
		if err := p.Grant.Verify(root); err != nil {
			return err
		}
		if p.Grant.Key != p.Key {
			return fmt.Errorf("%w: the grant is for key %s, this is %s", ErrWrongKey, p.Grant.Key.Short(), p.Key.Short())
		}
	} else {
		if err := p.Token.Verify(root); err != nil {
			return err
		}
		if p.Token.Hub != "" && p.Token.Hub != p.Hub {
			return fmt.Errorf("%w: it is for %s, this is %s", ErrWrongHub, p.Token.Hub, p.Hub)
		}
	}
	if !p.Key.Verify(proofDomain, p.body(), p.Signature) {
		return fmt.Errorf("%w: signature of key %s over hub, path and nonce", ErrBadProof, p.Key.Short())
	}
	return nil
}
