//go:build unix

package slices

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockFile locks a file for this process, or returns errLocked. The lock ends with the file.
func lockFile(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errLocked
	}
	return err
}
