//go:build unix

package pgtest

import (
	"os/exec"
	"syscall"
)

// become has a command run as another user.
func become(c *exec.Cmd, uid, gid int) {
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}
