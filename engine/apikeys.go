package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"kvasir/engine/access"
)

// keysFile is where the API keys of a home are kept, as sums.
const keysFile = "keys.json"

// APIKeys returns the API keys that were made here, those included that are revoked.
func (h Home) APIKeys() ([]access.Key, error) {
	l, _, err := h.apiKeys()
	if err != nil {
		return nil, err
	}
	return l.Keys, nil
}

func (h Home) apiKeys() (l *access.List, path string, err error) {
	if path, err = h.path(keysFile); err != nil {
		return nil, "", err
	}
	text, err := readState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &access.List{}, path, nil
	}
	if err != nil {
		return nil, path, err
	}
	if l, err = access.Parse(text); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return l, path, err
}

// CreateAPIKey makes an API key and returns its text, which is not kept. Of k the name, the scopes, the
// limits and the time count.
func (h Home) CreateAPIKey(k access.Key) (text string, made access.Key, err error) {
	err = h.changeKeys(func(l *access.List) (err error) {
		text, made, err = l.Create(k)
		return err
	})
	return text, made, err
}

// RevokeAPIKey makes an API key useless, also on a node that runs.
func (h Home) RevokeAPIKey(id string) error {
	return h.changeKeys(func(l *access.List) error { return l.Revoke(id, time.Now()) })
}

func (h Home) changeKeys(change func(*access.List) error) error {
	unlock, err := h.lockTokens() // both lists change once in a while only
	if err != nil {
		return err
	}
	defer unlock()
	l, path, err := h.apiKeys()
	if err != nil {
		return err
	}
	if err := change(l); err != nil {
		return err
	}
	return writeState(path, l.Text())
}
