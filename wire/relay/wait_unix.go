//go:build unix

package relay

import "golang.org/x/sys/unix"

// canWait: readable works here.
const canWait = true

// readable reports whether reading from a socket would not wait. It is for syscall.RawConn.Read.
func readable(fd uintptr) bool {
	fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], 0)
	return err != nil && err != unix.EINTR || n > 0 // an error is for the read that follows
}
