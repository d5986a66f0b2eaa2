package engine

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"sync"

	"kvasir/wire/seal"
)

// maxUses is how many keys a hub remembers of tokens whose uses are counted.
const maxUses = 1 << 16

// TokenStore is a hub's seal.Store in its home: it outlives the process. A line of its file hub.uses is a
// token's id and a key that has joined by it. What is revoked is looked up in the home each time, so
// kvasir token revoke works on a hub that runs.
type TokenStore struct {
	home Home
	path string

	mu     sync.Mutex
	memory *seal.MemoryStore
	known  map[string]struct{} // lines of the file; under mu
}

// OpenTokenStore reads what the hub of this home remembers.
func OpenTokenStore(h Home) (*TokenStore, error) {
	path, err := h.path("hub.uses")
	if err != nil {
		return nil, err
	}
	s := &TokenStore{home: h, path: path, memory: seal.NewMemoryStore(maxUses), known: map[string]struct{}{}}
	text, err := readState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		if err := s.replay(lines.Text()); err != nil {
			return nil, fmt.Errorf("%s:%d: %w; mend the line, or remove it and its token may be used once more", path, n, err)
		}
	}
	return s, lines.Err()
}

func (s *TokenStore) replay(line string) error {
	id, key, _ := strings.Cut(line, " ")
	t := seal.Token{Uses: math.MaxUint32}
	var err error
	if t.ID, err = seal.ParseTokenID(id); err != nil {
		return err
	}
	k, err := seal.ParsePublicKey(key)
	if err != nil {
		return err
	}
	s.known[line] = struct{}{}
	return s.memory.Use(context.Background(), t, k)
}

// Use is seal.Store's.
func (s *TokenStore) Use(ctx context.Context, t seal.Token, key seal.PublicKey) error {
	gone, err := s.home.Revoked(t.ID)
	switch {
	case err != nil:
		return err
	case gone:
		return fmt.Errorf("%w: %v", seal.ErrTokenRevoked, t.ID)
	case t.Uses == 0:
		return nil // nothing to count
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	line := t.ID.String() + " " + key.String()
	if _, ok := s.known[line]; ok {
		return nil
	}
	if err := s.memory.Use(ctx, t, key); err != nil {
		return err
	}
	if err := appendLine(s.path, line); err != nil {
		return err
	}
	s.known[line] = struct{}{}
	return nil
}
