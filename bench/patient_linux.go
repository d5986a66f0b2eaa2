package bench

import (
	"net"

	"golang.org/x/sys/unix"
)

// patient has the reader of a connection woken for so many bytes, or the end, and not for each packet.
func patient(c net.Conn, bytes int) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return // it is closed, as its reader finds out
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes) // else it is woken more often
	})
}
