// Package access decides who may ask a serving node, and writes down who did.
//
// A key is kv_ID_SECRET. Its ID names it in lists and logs; of the secret, 32 random bytes, only the
// SHA-256 sum is kept: there is nothing to guess, so nothing slower is needed. The file of keys is read
// again when it has changed, so a key holds, and is revoked, while the node runs.
//
// A Guard stands before a handler:
//
//	request -> id -> CORS -> key, scope, limits -> handler -> access log
//
// What a request costs is counted in its Call, which the handler finds in the context. Limits are buckets
// that hold a minute's worth and fill all the time. Tokens are charged as they are made: a request is let
// in while any are left, and whoever overdraws waits for longer. Those of a batch job's lines are charged as
// well; a line begins while half of a minute's worth is there, so that a job leaves something to chats.
package access

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Errors of this package; test with errors.Is.
var (
	// ErrNoKey: no key has this ID.
	ErrNoKey = errors.New("access: no such key")
	// ErrScope: there is no such scope.
	ErrScope = errors.New("access: unknown scope")
	// ErrKeys: the text is no file of keys.
	ErrKeys = errors.New("access: not a file of keys")
	// ErrTooMany: there are as many keys as there may be.
	ErrTooMany = errors.New("access: too many keys")
	// ErrName: a key's name is too long, or not text.
	ErrName = errors.New("access: a name has at most 100 characters, all of them printable")
)

// Scope is what a key may be used for.
type Scope string

// Scopes.
const (
	Chat  Scope = "chat"  // completions, chats, responses
	Batch Scope = "batch" // files and batch jobs
	Admin Scope = "admin" // all of these, metrics, and everybody's files
)

// Scopes are all there are.
var Scopes = []Scope{Chat, Batch, Admin}

// Limits of a key; 0 is none.
type Limits struct {
	Requests  int `json:"requests_per_minute,omitempty"`
	Tokens    int `json:"tokens_per_minute,omitempty"` // of prompts and answers
	Sequences int `json:"sequences,omitempty"`         // at a time
}

// Key is what is kept of an API key.
type Key struct {
	ID      string    `json:"id"`
	Name    string    `json:"name,omitempty"`
	Hash    string    `json:"sha256"` // of the secret, in hexadecimal
	Scopes  []Scope   `json:"scopes"`
	Limits  Limits    `json:"limits"`
	Created time.Time `json:"created"`
	Revoked time.Time `json:"revoked,omitzero"`
}

// May reports whether the key has a scope; an empty one is any.
func (k *Key) May(s Scope) bool {
	return s == "" || slices.Contains(k.Scopes, s) || slices.Contains(k.Scopes, Admin)
}

// Bounds of a file of keys.
const (
	maxKeys  = 10_000
	MaxBytes = 8 << 20
	maxName  = 100
	maxLimit = 1 << 40
)

// Parts of a key's text.
const (
	prefix      = "kv_"
	idBytes     = 5
	secretBytes = 32
)

var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// List is a file of keys.
type List struct {
	Keys []Key `json:"keys"`
}

// Parse reads a file of keys.
func Parse(text []byte) (*List, error) {
	l := &List{}
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("%w: it has %d bytes, and may have %d", ErrKeys, len(text), MaxBytes)
	}
	if err := json.Unmarshal(text, l); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeys, err)
	}
	if len(l.Keys) > maxKeys {
		return nil, fmt.Errorf("%w: it has %d keys, and may have %d", ErrKeys, len(l.Keys), maxKeys)
	}
	seen := map[string]bool{}
	for i := range l.Keys {
		k := &l.Keys[i]
		if err := k.check(); err != nil {
			return nil, fmt.Errorf("%w: key %d: %w", ErrKeys, i+1, err)
		}
		if seen[k.ID] {
			return nil, fmt.Errorf("%w: key %s twice", ErrKeys, k.ID)
		}
		seen[k.ID] = true
	}
	return l, nil
}

func (k *Key) check() error {
	id, err := encoding.DecodeString(k.ID)
	if err != nil || len(id) != idBytes || encoding.EncodeToString(id) != k.ID {
		return fmt.Errorf("id %.20q is none", k.ID)
	}
	if sum, err := hex.DecodeString(k.Hash); err != nil || len(sum) != sha256.Size {
		return errors.New("sha256 is no such sum")
	}
	for _, n := range []int{k.Limits.Requests, k.Limits.Tokens, k.Limits.Sequences} {
		if n < 0 || n > maxLimit {
			return fmt.Errorf("limit %d; want 0 to %d", n, maxLimit)
		}
	}
	if err := checkName(k.Name); err != nil {
		return err
	}
	return checkScopes(k.Scopes)
}

func checkName(name string) error {
	if !utf8.ValidString(name) || utf8.RuneCountInString(name) > maxName ||
		strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return ErrName
	}
	return nil
}

func checkScopes(list []Scope) error {
	if len(list) == 0 {
		return fmt.Errorf("%w: want some of chat, batch, admin", ErrScope)
	}
	for _, s := range list {
		if !slices.Contains(Scopes, s) {
			return fmt.Errorf("%w %.20q: want some of chat, batch, admin", ErrScope, string(s))
		}
	}
	return nil
}

// Text is the file.
func (l *List) Text() []byte {
	b, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		panic("BUG: " + err.Error()) // strings and numbers
	}
	return append(b, '\n')
}

// Create adds a key and returns its text, which nothing can tell again.
func (l *List) Create(k Key) (text string, _ Key, err error) {
	if len(l.Keys) >= maxKeys {
		return "", k, fmt.Errorf("%w: there are %d; remove some from the file", ErrTooMany, len(l.Keys))
	}
	var random [idBytes + secretBytes]byte
	_, _ = rand.Read(random[:]) // never returns an error
	k.ID = encoding.EncodeToString(random[:idBytes])
	secret := encoding.EncodeToString(random[idBytes:])
	sum := sha256.Sum256([]byte(secret))
	k.Hash, k.Created = hex.EncodeToString(sum[:]), k.Created.UTC().Truncate(time.Second)
	if err := k.check(); err != nil {
		return "", k, err
	}
	if l.find(k.ID) != nil {
		return l.Create(k) // once in a while of a few million years
	}
	l.Keys = append(l.Keys, k)
	return prefix + k.ID + "_" + secret, k, nil
}

// Revoke makes a key useless. It stays in the list.
func (l *List) Revoke(id string, now time.Time) error {
	k := l.find(id)
	if k == nil {
		return fmt.Errorf("%w as %.20q; kvasir key list has those there are", ErrNoKey, id)
	}
	if k.Revoked.IsZero() {
		k.Revoked = now.UTC().Truncate(time.Second)
	}
	return nil
}

func (l *List) find(id string) *Key {
	for i := range l.Keys {
		if l.Keys[i].ID == id {
			return &l.Keys[i]
		}
	}
	return nil
}

// split takes the text of a key apart. What is no key has ok false.
func split(text string) (id, secret string, ok bool) {
	rest, ok := strings.CutPrefix(text, prefix)
	if !ok {
		return "", "", false
	}
	id, secret, ok = strings.Cut(rest, "_")
	return id, secret, ok && len(id) == encoding.EncodedLen(idBytes) && len(secret) == encoding.EncodedLen(secretBytes)
}

// opens reports whether a secret is the key's, in a time that does not depend on where it differs.
func (k *Key) opens(secret string) bool {
	sum := sha256.Sum256([]byte(secret))
	have, err := hex.DecodeString(k.Hash)
	return err == nil && subtle.ConstantTimeCompare(sum[:], have) == 1
}
