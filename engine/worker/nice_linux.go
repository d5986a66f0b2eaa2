package worker

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Nice lowers this process's claim on the processors, as nice(1) does: 0 to 19. On Linux it is a thing of
// each thread, and new threads have it from the one that makes them.
func Nice(n int) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("nice %d: %w", n, err)
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		err = unix.Setpriority(unix.PRIO_PROCESS, id, n)
		if err != nil && !errors.Is(err, unix.ESRCH) { // one that has ended since
			return fmt.Errorf("nice %d: %w", n, err)
		}
	}
	return nil
}
