//go:build race || !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package slab

import "errors"

// system is memory of the Go heap: here nothing is mapped or locked. The race detector watches no other
// memory, so this is what it gets.
type system struct{}

var errHeap = errors.New("this build locks no memory")

func (system) mapped(n int) ([]byte, error) { return Aligned(n), nil }
func (system) unmapped([]byte) error        { return nil }
func (system) lock([]byte) error            { return errHeap }
