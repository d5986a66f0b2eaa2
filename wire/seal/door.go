package seal

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// NonceLife is how long a nonce may be used.
const NonceLife = 60 * time.Second

// Nonces gives out nonces and takes each back once. A nonce carries its time and a mark that only
// this Nonces can make, so giving one out costs no memory, however often a stranger asks.
// Remembered are only those that came back in a proof that holds, for as long as they could come
// again.
//
// The text of a nonce is URL-safe base64 of
//
//	 8 bytes  time, Unix milliseconds, big-endian
//	16 bytes  random
//	16 bytes  first half of HMAC-SHA256 over the above
type Nonces struct {
	now   func() time.Time
	limit int
	key   [32]byte

	mu   sync.Mutex
	used map[string]struct{}
	old  []usedNonce // in the order of their use, oldest first
}

type usedNonce struct {
	nonce  string
	forget time.Time
}

const nonceSize, nonceMark = 8 + 16, 16

// NewNonces returns a Nonces that remembers at most limit used ones. now is the clock.
func NewNonces(limit int, now func() time.Time) *Nonces {
	n := &Nonces{now: now, limit: limit, used: map[string]struct{}{}}
	_, _ = rand.Read(n.key[:]) // never returns an error
	return n
}

// New returns a nonce.
func (n *Nonces) New() string {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, nonceSize+nonceMark), uint64(n.now().UnixMilli()))
	b = b[:nonceSize]
	_, _ = rand.Read(b[8:]) // never returns an error
	return encode(append(b, n.mark(b)...))
}

func (n *Nonces) mark(b []byte) []byte {
	h := hmac.New(sha256.New, n.key[:])
	h.Write(b)
	return h.Sum(nil)[:nonceMark]
}

// Check returns ErrNonceOld unless nonce is one of ours and young enough.
func (n *Nonces) Check(nonce string) error {
	if len(nonce) > maxNonce {
		return fmt.Errorf("%w: it is not this hub's", ErrNonceOld)
	}
	b, err := decode(nonce)
	if err != nil || len(b) != nonceSize+nonceMark || !hmac.Equal(n.mark(b[:nonceSize]), b[nonceSize:]) {
		return fmt.Errorf("%w: it is not this hub's", ErrNonceOld)
	}
	age := n.now().Sub(time.UnixMilli(int64(binary.BigEndian.Uint64(b))))
	if age > NonceLife || age < -NonceLife { // the clock may have been set back
		return fmt.Errorf("%w: it was given %v ago, and holds for %v", ErrNonceOld, age.Round(time.Second), NonceLife)
	}
	return nil
}

// Use marks a nonce, for which Check is true, as used. It returns ErrNonceUsed when it was, and
// ErrBusy when no more can be remembered.
func (n *Nonces) Use(nonce string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.now()
	for len(n.old) > 0 && now.After(n.old[0].forget) {
		delete(n.used, n.old[0].nonce)
		n.old = n.old[1:]
	}
	if _, ok := n.used[nonce]; ok {
		return ErrNonceUsed
	}
	if len(n.used) >= n.limit {
		return fmt.Errorf("%w: %d joined within %v", ErrBusy, len(n.used), 2*NonceLife)
	}
	n.used[nonce] = struct{}{}
	n.old = append(n.old, usedNonce{nonce, now.Add(2 * NonceLife)})
	return nil
}

// Store knows which tokens are revoked and who has used them. Counting is a hub's business; its
// store outlives the process.
type Store interface {
	// Use records that key joins with t, which holds. It returns ErrTokenRevoked, or ErrTokenUsed
	// when t.Uses other keys have joined with it. A key that has joined before does not count
	// again, so a worker may come back, and a token that was copied is of no use to a second
	// machine once it is used up. It is safe for concurrent use.
	Use(ctx context.Context, t Token, key PublicKey) error
}

// Door is where a hub decides who comes in. All fields are set.
type Door struct {
	Hub    string // id of this hub
	Root   PublicKey
	Nonces *Nonces
	Store  Store
	Now    func() time.Time
}

// Challenge returns a new challenge.
func (d *Door) Challenge() Challenge {
	return Challenge{Hub: d.Hub, Nonce: d.Nonces.New(), Time: d.Now()}
}

// Answer returns what to tell who was refused because of err, as Tell does, with a challenge where
// another try may help; the connection is best left open then.
func (d *Door) Answer(err error) (status int, h http.Header, reason string) {
	status, h, reason = Tell(err)
	if status == http.StatusUnauthorized {
		for name, v := range d.Challenge().Header() {
			h[name] = v
		}
	}
	return status, h, reason
}

// Admit decides on a request to path by its headers, for one of the given roles. After an error,
// Answer says what to answer. What costs most is done last, and nothing is
// remembered for who has no good proof.
func (d *Door) Admit(ctx context.Context, h http.Header, path string, roles ...Role) (Proof, error) {
	p, err := ParseProof(h, d.Hub, path)
	if err != nil {
		return Proof{}, err
	}
	if err := d.Nonces.Check(p.Nonce); err != nil {
		return Proof{}, err
	}
	if err := p.Verify(d.Root); err != nil {
		return Proof{}, err
	}
	allowed := false
	for _, r := range roles {
		allowed = allowed || r == p.Role()
	}
	if !allowed {
		return Proof{}, fmt.Errorf("%w: it is for a %v", ErrWrongRole, p.Role())
	}
	if p.Token.IsZero() {
		err = p.Grant.CheckTime(d.Now())
	} else {
		err = p.Token.CheckTime(d.Now())
	}
	if err != nil {
		return Proof{}, err
	}
	if err := d.Nonces.Use(p.Nonce); err != nil {
		return Proof{}, err
	}
	if !p.Token.IsZero() {
		if err := d.Store.Use(ctx, p.Token, p.Key); err != nil {
			return Proof{}, err
		}
	}
	return p, nil
}

// MemoryStore is a Store that forgets when the process ends: for tests and for a demo.
type MemoryStore struct {
	limit int

	mu      sync.Mutex
	used    map[TokenID]map[PublicKey]struct{}
	keys    int // in used
	revoked map[TokenID]struct{}
}

// NewMemoryStore returns a store for at most limit uses and limit revocations.
func NewMemoryStore(limit int) *MemoryStore {
	return &MemoryStore{limit: limit, used: map[TokenID]map[PublicKey]struct{}{}, revoked: map[TokenID]struct{}{}}
}

// Use is Store's.
func (s *MemoryStore) Use(_ context.Context, t Token, key PublicKey) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.revoked[t.ID]; ok {
		return fmt.Errorf("%w: %v", ErrTokenRevoked, t.ID)
	}
	if t.Uses == 0 {
		return nil // nothing to count
	}
	keys := s.used[t.ID]
	if _, ok := keys[key]; ok {
		return nil
	}
	switch {
	case uint64(len(keys)) >= uint64(t.Uses):
		return fmt.Errorf("%w: %v, by %d of %d keys; ask for another", ErrTokenUsed, t.ID, len(keys), t.Uses)
	case s.keys >= s.limit:
		return fmt.Errorf("%w: %d keys have joined", ErrBusy, s.keys)
	case keys == nil:
		keys = map[PublicKey]struct{}{}
		s.used[t.ID] = keys
	}
	keys[key] = struct{}{}
	s.keys++
	return nil
}

// Revoke makes a token useless from now on.
func (s *MemoryStore) Revoke(id TokenID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.revoked) >= s.limit {
		return fmt.Errorf("%w: %d tokens are revoked", ErrBusy, len(s.revoked))
	}
	s.revoked[id] = struct{}{}
	return nil
}
