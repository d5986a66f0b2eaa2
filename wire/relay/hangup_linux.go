package relay

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// hungUp reports whether the far end of a socket has ended its side, with bytes before that unread or
// not.
func hungUp(raw syscall.RawConn) (gone bool) {
	_ = raw.Control(func(fd uintptr) { // fails when it is closed, which others notice
		fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds[:], 0)
		gone = err == nil && n > 0
	})
	return gone
}
