package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"kvasir/wire/seal"
)

// ErrHomeInUse: two processes of one role share a home, and so a key: hubs would take each of them for
// the other that has come back.
var ErrHomeInUse = errors.New("another process of this home folder does that already")

var errLocked = errors.New("locked")

// Lock keeps a role of this home for this process until the release, or the end of the process.
func (h Home) Lock(role seal.Role) (release func(), err error) {
	path, err := h.path(role.String() + ".lock")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = lockFile(f)
	if err == nil {
		return func() { _ = f.Close() }, nil // nothing was written
	}
	_ = f.Close() // nor here
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("%w: a %v runs with %s; stop it, or give this one another --home", ErrHomeInUse, role, h)
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}
