package seal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A key file is text: lines that begin with # are for people, and one line holds the key.
const (
	keyFilePrefix = "kvasir-key-1 "
	maxKeyFile    = 4 << 10
)

// LoadKey reads a key file. On Unix it refuses a file that others may read.
func LoadKey(path string) (Key, error) {
	f, err := os.Open(path)
	if err != nil {
		return Key{}, fmt.Errorf("%w: %w", ErrKeyFile, err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	if err != nil {
		return Key{}, fmt.Errorf("%w: %w", ErrKeyFile, err)
	}
	if !info.Mode().IsRegular() {
		return Key{}, fmt.Errorf("%w %s: it is not a plain file", ErrKeyFile, path)
	}
	if err := checkPrivate(path, info); err != nil {
		return Key{}, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return Key{}, fmt.Errorf("%w: %w", ErrKeyFile, err)
	}
	k, err := parseKeyFile(string(text))
	if err != nil {
		return Key{}, fmt.Errorf("%w %s: %w", ErrKeyFile, path, err)
	}
	return k, nil
}

// CheckPrivate returns an error, on Unix, when others than its owner may read or write a file.
func CheckPrivate(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrKeyFile, err)
	}
	return checkPrivate(path, info)
}

func parseKeyFile(text string) (k Key, err error) {
	if len(text) > maxKeyFile {
		return Key{}, fmt.Errorf("%w: longer than %d bytes", ErrBadKey, maxKeyFile)
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#':
			continue
		case !k.IsZero():
			return Key{}, fmt.Errorf("%w: more than one line", ErrBadKey)
		}
		secret, ok := strings.CutPrefix(line, keyFilePrefix)
		if !ok {
			return Key{}, fmt.Errorf("%w: no line begins with %q", ErrBadKey, keyFilePrefix)
		}
		if k, err = parseSecret(secret); err != nil {
			return Key{}, err
		}
	}
	if k.IsZero() {
		return Key{}, fmt.Errorf("%w: it is empty", ErrBadKey)
	}
	return k, nil
}

// CreateKey writes k to a new file, of mode 0600 in a folder of mode 0700, whole or not at all. A
// file that is there already is left alone, and the error is fs.ErrExist.
func CreateKey(path string, k Key) error {
	if err := createKey(path, k); err != nil {
		return fmt.Errorf("%w: %w", ErrKeyFile, err)
	}
	return nil
}

func createKey(path string, k Key) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if _, err := os.Lstat(path); err == nil {
		return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
	}
	// CreateTemp makes files of mode 0600.
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = fmt.Fprintf(f, "# A private key of Kvasir. Keep it to yourself. Its public half:\n# %v\n%s%s\n",
		k.Public(), keyFilePrefix, k.secret())
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return publish(f.Name(), path)
}

// publish gives the finished file its name. A link fails where the name is taken, so of two
// processes one wins. Android and some file systems know no links: there the name is looked for and
// the file renamed, and two processes in the same millisecond are told apart by nobody.
func publish(temp, path string) error {
	err := os.Link(temp, path)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		if _, found := os.Lstat(path); found == nil {
			return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
		}
		err = os.Rename(temp, path)
	}
	if err != nil {
		return err
	}
	// So that the name survives a power cut. Not every system can sync a folder.
	if d, err := os.Open(filepath.Dir(path)); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
	return nil
}

// LoadOrCreateKey reads a key file, or draws a key and writes the file where there is none.
func LoadOrCreateKey(path string) (k Key, created bool, err error) {
	k, err = LoadKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, false, err
	}
	err = CreateKey(path, NewKey())
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return Key{}, false, err
	}
	// What is on the disk is the key, whoever has put it there.
	created = err == nil
	k, err = LoadKey(path)
	return k, created && err == nil, err
}
