//go:build !linux

package vector

import "testing"

// newRegion returns memory without guards: canaries are all there is here.
func newRegion(_ testing.TB, size int) *region { return &region{mem: make([]byte, size)} }
