//go:build !windows

package main

import (
	"errors"
	"os"
	"syscall"
)

// enableStyles prepares a terminal for colours; here there is nothing to do.
func enableStyles(*os.File) bool { return true }

// closedPipe reports whether a write failed because its reader went away.
func closedPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }
