//go:build unix && !linux

package worker

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Nice lowers this process's claim on the processors, as nice(1) does: 0 to 19.
func Nice(n int) error {
	if err := unix.Setpriority(unix.PRIO_PROCESS, 0, n); err != nil {
		return fmt.Errorf("nice %d: %w", n, err)
	}
	return nil
}
