package main

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// enableStyles asks the console to understand escape sequences, as consoles of Windows 10 and later
// can, and reports whether it does.
func enableStyles(f *os.File) bool {
	h := windows.Handle(f.Fd())
	var mode uint32
	if windows.GetConsoleMode(h, &mode) != nil {
		return false
	}
	return windows.SetConsoleMode(h, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}

// closedPipe reports whether a write failed because its reader went away.
func closedPipe(err error) bool {
	return errors.Is(err, windows.ERROR_BROKEN_PIPE) || errors.Is(err, windows.ERROR_NO_DATA)
}
