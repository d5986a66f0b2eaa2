package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"kvasir/wire/seal"
)

// TokenNote is a token that was made here, or was shown here.
type TokenNote struct {
	Token     seal.Token `json:"token"`
	Host      string     `json:"host"` // that it was made for
	Revoked   bool       `json:"-"`
	Elsewhere bool       `json:"-"` // made on another machine: of Token only ID is known
	Seen      []Sighting `json:"-"` // at the hub and the backbone of this home
}

// ID returns the token's id.
func (n TokenNote) ID() string { return n.Token.ID.String() }

// Tokens lists the tokens that were made here, oldest first, and then those that were shown here.
func (h Home) Tokens() ([]TokenNote, error) {
	list, err := h.made()
	if err != nil {
		return nil, err
	}
	revoked, err := h.revoked()
	if err != nil {
		return nil, err
	}
	seen, err := h.sightings()
	if err != nil {
		return nil, err
	}
	for _, s := range seen {
		i := indexOf(list, s.Token)
		if i < 0 {
			i = len(list)
			list = append(list, TokenNote{Token: seal.Token{ID: s.Token, Role: seal.Worker}, Elsewhere: true})
		}
		list[i].Seen = append(list[i].Seen, s)
	}
	for i := range list {
		list[i].Revoked = revoked[list[i].ID()]
	}
	return list, nil
}

func indexOf(list []TokenNote, id seal.TokenID) int {
	for i := range list {
		if list[i].Token.ID == id {
			return i
		}
	}
	return -1
}

// made reads the list of tokens that were made here. Who reads it can join, so it is to be private.
func (h Home) made() ([]TokenNote, error) {
	path, err := h.path("tokens.json")
	if err != nil {
		return nil, err
	}
	text, err := readState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := seal.CheckPrivate(path); err != nil {
		return nil, err
	}
	var list []TokenNote
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("list of tokens %s: %w", path, err)
	}
	return list, nil
}

// CreateToken signs a token and puts it into the list.
func (h Home) CreateToken(root seal.Key, host string, t seal.Token) (seal.Join, error) {
	unlock, err := h.lockTokens()
	if err != nil {
		return seal.Join{}, err
	}
	defer unlock()
	return h.createToken(root, host, t)
}

// createToken is CreateToken while the list is locked.
func (h Home) createToken(root seal.Key, host string, t seal.Token) (seal.Join, error) {
	list, err := h.made()
	if err != nil {
		return seal.Join{}, err
	}
	t.Issued = time.Now()
	if t, err = seal.SignToken(root, t); err != nil {
		return seal.Join{}, err
	}
	j := seal.Join{Host: host, Token: t, Root: root.Public()}
	if _, err := seal.ParseJoin(j.URL()); err != nil {
		return seal.Join{}, err // of the host
	}
	path, err := h.path("tokens.json")
	if err != nil {
		return seal.Join{}, err
	}
	text, err := json.MarshalIndent(append(list, TokenNote{Token: t, Host: host}), "", "  ")
	switch {
	case err != nil:
		return seal.Join{}, err
	case len(text) >= maxState:
		return seal.Join{}, fmt.Errorf("list of tokens %s: it would have more than %d bytes; move it away, and those "+
			"who have a token can still join", path, maxState)
	}
	return j, writeState(path, append(text, '\n'))
}

// StandingToken returns the line to hand to friends who come to a hub by way of host: that of before, if
// there is one without an end and without a limit of uses, or a new one.
func (h Home) StandingToken(root seal.Key, host, hub string) (seal.Join, error) {
	unlock, err := h.lockTokens()
	if err != nil {
		return seal.Join{}, err
	}
	defer unlock()
	list, err := h.made()
	if err != nil {
		return seal.Join{}, err
	}
	revoked, err := h.revoked()
	if err != nil {
		return seal.Join{}, err
	}
	for _, n := range list {
		t := n.Token
		if t.Role == seal.Worker && t.Hub == hub && t.Uses == 0 && t.Expires.IsZero() && !revoked[n.ID()] &&
			n.Host == host && t.Verify(root.Public()) == nil {
			return seal.Join{Host: host, Token: t, Root: root.Public()}, nil
		}
	}
	return h.createToken(root, host, seal.Token{Role: seal.Worker, Hub: hub})
}

// Revoke makes a token useless wherever this home is looked at. It reports whether the token was made or
// shown here.
func (h Home) Revoke(id seal.TokenID) (known bool, err error) {
	unlock, err := h.lockTokens()
	if err != nil {
		return false, err
	}
	defer unlock()
	list, err := h.Tokens()
	if err != nil {
		return false, err
	}
	i := indexOf(list, id)
	if i >= 0 && list[i].Revoked {
		return true, nil
	}
	path, err := h.path("revoked")
	if err != nil {
		return false, err
	}
	if done, err := h.Revoked(id); done || err != nil {
		return i >= 0, err
	}
	return i >= 0, appendLine(path, id.String(), isTokenID)
}

func isTokenID(line string) bool {
	_, err := seal.ParseTokenID(strings.TrimSpace(line))
	return err == nil
}

// Revoked reports whether a token was revoked here.
func (h Home) Revoked(id seal.TokenID) (bool, error) {
	all, err := h.revoked()
	return all[id.String()], err
}

// revoked returns the ids of the tokens that were revoked here. A line that is none is an error: it may
// have been one.
func (h Home) revoked() (map[string]bool, error) {
	path, err := h.path("revoked")
	if err != nil {
		return nil, err
	}
	text, err := readState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for i, line := range wholeLines(text, isTokenID) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		id, err := seal.ParseTokenID(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w; mend the line, or remove it and revoke its token again", path, i+1, err)
		}
		all[id.String()] = true
	}
	return all, nil
}

// Waiting for another process that makes or revokes a token.
const (
	tokensWait = 10 * time.Second
	tokensPoll = 5 * time.Millisecond
)

// lockTokens keeps others from changing the list of tokens.
func (h Home) lockTokens() (unlock func(), err error) {
	path, err := h.path("tokens.lock")
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
	for end := time.Now().Add(tokensWait); ; time.Sleep(tokensPoll) {
		if err = lockFile(f); err == nil {
			return func() { _ = f.Close() }, nil // nothing was written
		}
		if !errors.Is(err, errLocked) || time.Now().After(end) {
			break
		}
	}
	_ = f.Close() // nor here
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("another kvasir has been changing the tokens of %s for %v: end it and try again", h, tokensWait)
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}
