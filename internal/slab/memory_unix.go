//go:build (linux || darwin || freebsd || netbsd || openbsd || dragonfly) && !race

package slab

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// system maps memory of its own pages and locks it.
type system struct{}

func (system) mapped(n int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
}

func (system) unmapped(mem []byte) error { return unix.Munmap(mem) }

func (system) lock(mem []byte) error {
	err := unix.Mlock(mem)
	if err == nil {
		return nil
	}
	var l unix.Rlimit
	limited := errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EPERM)
	if limited && unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil {
		if cur := uint64(l.Cur); cur < 1<<62 { //nolint:unconvert // FreeBSD has int64 here
			return fmt.Errorf("the limit of locked memory is %d KiB (%w)", cur>>10, err)
		}
	}
	return fmt.Errorf("the system locks no more memory (%w)", err)
}
