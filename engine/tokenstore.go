package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"kvasir/wire/seal"
)

// maxUses is how many keys a hub remembers of tokens whose uses are counted.
const maxUses = 1 << 16

// TokenStore is a seal.Store in a home: it outlives the process. A line of its file hub.uses is a token's id
// and a key that has joined by it. What is revoked is looked up in the home each time, so kvasir token
// revoke works on a hub that runs. Who has shown which token stands in hub.seen.
//
// A token of one use belongs to the key that shows it first, and one of more uses to as many keys: they
// come back as often as they like, and others are refused. A backbone counts as well, in backbone.uses: its
// hubs may be several, or lie.
type TokenStore struct {
	home Home
	path string
	seen *sightings

	mu     sync.Mutex
	memory *seal.MemoryStore
	known  map[string]struct{} // lines of the file; under mu

	gone     map[string]bool // what is revoked, as of goneFile; under mu
	goneFile os.FileInfo
}

// OpenTokenStore reads what the hub of this home remembers.
func OpenTokenStore(h Home) (*TokenStore, error) { return openTokenStore(h, seal.Hub) }

func openTokenStore(h Home, role seal.Role) (*TokenStore, error) {
	path, err := h.path(role.String() + ".uses")
	if err != nil {
		return nil, err
	}
	s := &TokenStore{home: h, path: path, memory: seal.NewMemoryStore(maxUses), known: map[string]struct{}{}}
	if s.seen, err = openSightings(h, role, time.Now); err != nil {
		return nil, err
	}
	text, err := readState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	for i, line := range wholeLines(text, isUse) {
		if line == "" {
			continue
		}
		if err := s.replay(line); err != nil {
			return nil, fmt.Errorf("%s:%d: %w; mend the line, or remove it and its token may be used once more", path, i+1, err)
		}
	}
	return s, nil
}

func parseUse(line string) (id seal.TokenID, key seal.PublicKey, err error) {
	first, second, _ := strings.Cut(line, " ")
	if id, err = seal.ParseTokenID(first); err != nil {
		return id, key, err
	}
	key, err = seal.ParsePublicKey(second)
	return id, key, err
}

func isUse(line string) bool {
	_, _, err := parseUse(line)
	return err == nil
}

func (s *TokenStore) replay(line string) error {
	id, key, err := parseUse(line)
	if err != nil {
		return err
	}
	s.known[line] = struct{}{}
	return s.memory.Use(context.Background(), seal.Token{ID: id, Uses: math.MaxUint32}, key)
}

// Use is seal.Store's.
func (s *TokenStore) Use(ctx context.Context, t seal.Token, key seal.PublicKey) error {
	gone, err := s.revoked(t.ID)
	if err != nil {
		return err
	}
	if gone {
		err = fmt.Errorf("%w: %v", seal.ErrTokenRevoked, t.ID)
	} else if t.Uses > 0 {
		err = s.count(ctx, t, key)
	}
	s.seen.note(t.ID, key, sightOf(err), seal.Origin(ctx))
	return err
}

// revoked is Home.Revoked, and reads the file again only when it has changed: lines are added to it, so its
// size tells.
func (s *TokenStore) revoked(id seal.TokenID) (bool, error) {
	path, err := s.home.path("revoked")
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		s.gone, s.goneFile = nil, nil
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if s.goneFile == nil || s.goneFile.Size() != info.Size() || !s.goneFile.ModTime().Equal(info.ModTime()) {
		all, err := s.home.revoked()
		if err != nil {
			return false, err
		}
		s.gone, s.goneFile = all, info
	}
	return s.gone[id.String()], nil
}

// count binds a token to a key, unless it is bound to as many as it may be.
func (s *TokenStore) count(ctx context.Context, t seal.Token, key seal.PublicKey) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := t.ID.String() + " " + key.String()
	if _, ok := s.known[line]; ok {
		return nil
	}
	if err := s.memory.Use(ctx, t, key); err != nil {
		return err
	}
	if err := appendLine(s.path, line, isUse); err != nil {
		return err
	}
	s.known[line] = struct{}{}
	return nil
}
