//go:build unix

package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// processCPU returns the processor time that this process has taken; 0: the system does not tell.
func processCPU() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// filesMost is how many files this process may have open; 0: the system does not tell.
func filesMost() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || r.Cur > 1<<30 {
		return 0
	}
	return int(r.Cur)
}
