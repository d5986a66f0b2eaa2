package machine

import "golang.org/x/sys/unix"

func cpuName() string {
	name, _ := unix.Sysctl("machdep.cpu.brand_string")
	return name
}

// memory returns how much memory there is. macOS has no one number for what is available.
func memory() (total, available uint64) {
	total, _ = unix.SysctlUint64("hw.memsize")
	return total, 0
}
