package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadCPU returns the processor time that this thread has taken; 0: the system does not tell.
func threadCPU() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
