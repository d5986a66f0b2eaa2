package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"kvasir/wire/seal"
)

// Home is the folder where a node keeps its state:
//
//	root.key                          of a swarm, on the machine of who owns it
//	root                              elsewhere: its public half, as it was given
//	hub.key gateway.key …             this machine's own keys, one a role
//	gateway.grant backbone.grant …    what the root has signed for them
//	tokens.json                       the tokens that were made here
//	tokens.lock                       held while one of them is made or revoked
//	revoked                           ids of tokens that nobody here takes any more, one a line
//	hub.uses backbone.uses            which keys have joined by which token, see TokenStore
//	hub.seen backbone.seen            who has shown which token, for the owner to look at
//	hub.db wallet.db                  the hub's ledger and the gateway's wallets, unless --books says where
//	worker.receipts.db backbone.…     what they have signed and no gateway has read; what the backbone knows of workers,
//	                                  and of sessions in which something is pending
//	hub.lock worker.lock …            held while a process is that, see Lock
//
// An empty Home is none.
type Home string

// Errors of a home; each says what to do.
var (
	ErrNoHome = errors.New("this system has no folder for settings; give one with --home")
	ErrNoRoot = errors.New("the swarm's root key is not here; give its public half with --root, as " +
		"kvasir token root prints it on the machine that has it")
	ErrNotGranted = errors.New("this machine's key is not granted")
)

// maxState bounds a file of a home, in bytes.
const maxState = 16 << 20

func (h Home) path(name string) (string, error) {
	if h == "" {
		return "", ErrNoHome
	}
	return filepath.Join(string(h), name), nil
}

// Key returns this machine's key for a role, and draws it when it is asked for the first time.
func (h Home) Key(role seal.Role) (seal.Key, error) {
	path, err := h.path(role.String() + ".key")
	if err != nil {
		return seal.Key{}, err
	}
	k, _, err := seal.LoadOrCreateKey(path)
	return k, err
}

// keyIfThere is Key, and draws none.
func (h Home) keyIfThere(name string) (seal.Key, error) {
	path, err := h.path(name + ".key")
	if err != nil {
		return seal.Key{}, err
	}
	k, err := seal.LoadKey(path)
	if errors.Is(err, fs.ErrNotExist) {
		return seal.Key{}, nil
	}
	return k, err
}

// NewRoot returns the root key of the swarm that is owned here, and draws it when it is asked for the
// first time.
func (h Home) NewRoot() (seal.Key, error) {
	path, err := h.path("root.key")
	if err != nil {
		return seal.Key{}, err
	}
	k, _, err := seal.LoadOrCreateKey(path)
	return k, err
}

// Root returns the public half of a swarm's root: given, which is kept for the next time; or of the root
// key that is here; or the one that is kept.
func (h Home) Root(given seal.PublicKey) (seal.PublicKey, error) {
	path, err := h.path("root")
	if err != nil {
		return seal.PublicKey{}, err
	}
	if !given.IsZero() {
		return given, writeState(path, []byte(given.String()+"\n"))
	}
	if k, err := h.keyIfThere("root"); err != nil || !k.IsZero() {
		return k.Public(), err
	}
	text, err := readState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return seal.PublicKey{}, ErrNoRoot
	}
	var k seal.PublicKey
	if err == nil {
		k, err = seal.ParsePublicKey(strings.TrimSpace(string(text)))
	}
	if err != nil {
		return k, fmt.Errorf("%s: %w; give --root again", path, err)
	}
	return k, nil
}

// Grant returns what makes key of a role: given, which is kept for the next time; or the one that is
// kept; or, where the root key is here, one that it signs now. With none of them it returns
// ErrNotGranted.
func (h Home) Grant(role seal.Role, key seal.PublicKey, root seal.PublicKey, given seal.Grant) (seal.Grant, error) {
	path, err := h.path(role.String() + ".grant")
	if err != nil {
		return seal.Grant{}, err
	}
	fits := func(g seal.Grant) error {
		switch {
		case g.Key != key:
			return fmt.Errorf("%w: the grant is for key %v, this machine's is %v", seal.ErrWrongKey, g.Key, key)
		case g.Role != role:
			return fmt.Errorf("%w: the grant is for a %v, this is a %v", seal.ErrWrongRole, g.Role, role)
		}
		return g.Verify(root)
	}
	if !given.IsZero() {
		if err := fits(given); err != nil {
			return seal.Grant{}, err
		}
		return given, writeState(path, []byte(given.String()+"\n"))
	}
	if text, err := readState(path); err == nil {
		g, err := seal.ParseGrant(strings.TrimSpace(string(text)))
		if err == nil && fits(g) == nil {
			return g, nil
		} // else it is of another key or root, and of no use
	}
	rootKey, err := h.keyIfThere("root")
	switch {
	case err != nil:
		return seal.Grant{}, err
	case !rootKey.IsZero() && rootKey.Public() == root:
		return seal.SignGrant(rootKey, seal.Grant{Role: role, Key: key, Issued: time.Now()})
	}
	return seal.Grant{}, fmt.Errorf("%w: on the machine with the root key run kvasir token grant %v %v, and "+
		"start here with --grant and what it prints", ErrNotGranted, role, key)
}

// readState reads a file of a home.
func readState(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxState {
		return nil, fmt.Errorf("%s has %d bytes, at most %d were written", path, info.Size(), maxState)
	}
	return os.ReadFile(path)
}

// writeState replaces a file of a home, whole or not at all.
func writeState(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // it is gone already when all went well
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// appendLine adds a line to a file of a home that one process at a time adds to. What it returns nil for is
// on the disk. A power cut may have left the beginning of a line, for which nil was never returned: it
// makes room, unless it is valid.
func appendLine(path, line string, valid func(line string) bool) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	end, tail, err := lastLine(f)
	if err == nil && tail != "" {
		if valid(tail) {
			line = "\n" + line
			end += int64(len(tail))
		} else {
			err = f.Truncate(end)
		}
	}
	if err == nil {
		_, err = f.WriteAt([]byte(line+"\n"), end)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// maxLine bounds the lines of files that appendLine adds to, in bytes.
const maxLine = 256

// lastLine returns what stands behind the last end of a line, and where it begins.
func lastLine(f *os.File) (at int64, tail string, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, "", err
	}
	at = max(info.Size()-maxLine, 0)
	p := make([]byte, info.Size()-at)
	if _, err := f.ReadAt(p, at); err != nil {
		return 0, "", err
	}
	i := bytes.LastIndexByte(p, '\n') + 1
	if i == 0 && at > 0 {
		return 0, "", fmt.Errorf("%s: the last line has more than %d bytes; mend it", f.Name(), maxLine)
	}
	return at + int64(i), string(p[i:]), nil
}

// wholeLines returns the lines of a text, without one that was cut: the last, if nothing ends it and it is
// not valid.
func wholeLines(text []byte, valid func(line string) bool) []string {
	lines := strings.Split(string(text), "\n")
	if last := lines[len(lines)-1]; !valid(last) {
		lines = lines[:len(lines)-1]
	}
	return lines
}
