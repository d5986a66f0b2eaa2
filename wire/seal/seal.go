// Package seal is who is who in a swarm, and the inner TLS session that keeps what workers and
// backbones say to each other from everybody between them.
//
// A swarm has a root, an Ed25519 key. It signs grants, which make a key a backbone's, and tokens,
// which let whoever holds one join as a worker. Hubs and gateways have the public half only.
// Everything that is signed begins with a domain of its own, so that no signature can be taken for
// another:
//
//	"kvasir " DOMAIN 0x00 BODY
//
// Joining: a worker asks the hub for an upgrade, gets a 401 with a Challenge, and asks again with a
// Proof: its token, its key, and a signature over the hub's id, the path, the nonce of the
// challenge and the token. Door is the hub's side of that. Backbones do the same with their grant.
//
// Between worker and backbone: TLS 1.3 with a self-signed certificate on each side. What counts in
// a certificate is its key alone. The worker compares the backbone's with the grant that the hub
// sent and the root signed; the backbone compares the worker's with the proof that the hub passed
// on. Dates in certificates mean nothing, so a machine with a wrong clock can still speak. Times
// are checked in tokens, by the hub's clock, and in grants, with two days of tolerance.
//
// What this cannot do: a hub sees the tokens that are shown to it and could join as a worker
// itself. It cannot be a backbone, and cannot read a session between others.
package seal

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Tolerances for clocks that differ.
const (
	TokenSkew = 5 * time.Minute // after a token's expiry
	GrantSkew = 48 * time.Hour  // after a grant's expiry
)

// Errors of this package; test with errors.Is. Those with a code (see refusals) travel from a hub
// to who was refused, and are the same errors there.
var (
	// ErrBadKey: the text is not a key, or a character of it is missing or wrong.
	ErrBadKey = errors.New("seal: not a key")
	// ErrBadToken: the text is not a token, or a character of it is missing or wrong.
	ErrBadToken = errors.New("seal: not a token")
	// ErrBadGrant: the text is not a grant, or a character of it is missing or wrong.
	ErrBadGrant = errors.New("seal: not a grant")
	// ErrBadJoin: the text is not an address as kvasir://HOST/TOKEN#ROOT.
	ErrBadJoin = errors.New("seal: not an address to join")
	// ErrBadChallenge: a 401 has no challenge of a hub.
	ErrBadChallenge = errors.New("seal: no challenge of a hub")

	// ErrNoProof: the request carries no proof. The answer is a challenge.
	ErrNoProof = errors.New("seal: no proof of who you are")
	// ErrBadProof: the proof lacks a part, or its signature does not fit the key, hub, path and
	// nonce.
	ErrBadProof = errors.New("seal: proof does not hold")
	// ErrNonceOld: the nonce of a proof is not this hub's, or older than a minute. Another is to be
	// had.
	ErrNonceOld = errors.New("seal: nonce is too old")
	// ErrNonceUsed: a proof was shown twice.
	ErrNonceUsed = errors.New("seal: proof was used before")
	// ErrNotRoot: the root of this swarm has not signed the token or grant.
	ErrNotRoot = errors.New("seal: not signed by the root of this swarm")
	// ErrTokenExpired: the token's time is over.
	ErrTokenExpired = errors.New("seal: token expired")
	// ErrTokenUsed: as many other keys as the token allows have joined with it.
	ErrTokenUsed = errors.New("seal: token is used up")
	// ErrTokenRevoked: the token was revoked.
	ErrTokenRevoked = errors.New("seal: token was revoked")
	// ErrGrantExpired: the grant's time is over.
	ErrGrantExpired = errors.New("seal: grant expired")
	// ErrWrongHub: the token is for another hub.
	ErrWrongHub = errors.New("seal: token is for another hub")
	// ErrWrongRole: the token or grant is for another role.
	ErrWrongRole = errors.New("seal: token or grant is for another role")
	// ErrWrongKey: the far side's key is not the one that it should have.
	ErrWrongKey = errors.New("seal: wrong key")
	// ErrBusy: a store is full; later there will be room.
	ErrBusy = errors.New("seal: too busy, try again later")

	// ErrRefused: the far side of an inner TLS session did not accept this side's key.
	ErrRefused = errors.New("seal: the far side refused this machine's key")
	// ErrHandshake: an inner TLS session did not come about.
	ErrHandshake = errors.New("seal: no inner TLS session")
	// ErrKeyFile: a key file cannot be used as it is.
	ErrKeyFile = errors.New("seal: key file")
)

// refusals is what a hub tells those whom it refuses: an error, its code in the header
// Kvasir-Refused, and the HTTP status. Errors that are not here are nobody's business.
var refusals = []struct {
	err    error
	code   string
	status int
}{
	{ErrNoProof, "no_proof", http.StatusUnauthorized},
	{ErrNonceOld, "nonce_old", http.StatusUnauthorized},
	{ErrNonceUsed, "nonce_used", http.StatusForbidden},
	{ErrBadProof, "bad_proof", http.StatusForbidden},
	{ErrBadToken, "bad_token", http.StatusForbidden},
	{ErrBadGrant, "bad_grant", http.StatusForbidden},
	{ErrBadKey, "bad_key", http.StatusForbidden},
	{ErrNotRoot, "not_root", http.StatusForbidden},
	{ErrTokenExpired, "token_expired", http.StatusForbidden},
	{ErrTokenUsed, "token_used", http.StatusForbidden},
	{ErrTokenRevoked, "token_revoked", http.StatusForbidden},
	{ErrGrantExpired, "grant_expired", http.StatusForbidden},
	{ErrWrongHub, "wrong_hub", http.StatusForbidden},
	{ErrWrongRole, "wrong_role", http.StatusForbidden},
	{ErrWrongKey, "wrong_key", http.StatusForbidden},
	{ErrBusy, "busy", http.StatusServiceUnavailable},
}

// refusedHeader carries a code of refusals.
const refusedHeader = "Kvasir-Refused"

// Tell returns what a hub answers to who is refused because of err: a status, a header with the
// code, and a line. An error that is not for strangers is a 500 and says nothing.
func Tell(err error) (status int, h http.Header, reason string) {
	for _, r := range refusals {
		if !errors.Is(err, r.err) {
			continue
		}
		reason = strings.ReplaceAll(err.Error(), "seal: ", "")
		reason = strings.ReplaceAll(reason, "this machine's clock", "the hub's clock")
		return r.status, http.Header{refusedHeader: {r.code}}, reason
	}
	return http.StatusInternalServerError, nil, "internal error"
}

// Told returns the error that a hub's answer stands for, with the hub's own reason, or nil when the
// answer has no code that is known.
func Told(h http.Header, reason string) error {
	for _, r := range refusals {
		if h.Get(refusedHeader) == r.code {
			return &toldError{err: r.err, reason: reason}
		}
	}
	return nil
}

type toldError struct {
	err    error
	reason string
}

func (e *toldError) Error() string { return fmt.Sprintf("refused by the hub: %.200s", e.reason) }
func (e *toldError) Unwrap() error { return e.err }
