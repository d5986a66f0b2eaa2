//go:build !linux

package relay

import "syscall"

// hungUp reports whether the far end of a socket has ended its side behind bytes that nobody reads. Only
// Linux tells; elsewhere Limits.Stall ends such a splice.
func hungUp(syscall.RawConn) bool { return false }
