//go:build unix

package seal

import (
	"fmt"
	"io/fs"
)

// checkPrivate returns an error when others than the owner may read or write the file.
func checkPrivate(path string, info fs.FileInfo) error {
	if p := info.Mode().Perm(); p&0o077 != 0 {
		return fmt.Errorf("%w %s: its mode is %04o, so others can read it; if nobody has: chmod 600 %s",
			ErrKeyFile, path, p, path)
	}
	return nil
}
