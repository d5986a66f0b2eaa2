//go:build !linux

package bench

import "time"

// threadCPU returns 0: it is not known here.
func threadCPU() time.Duration { return 0 }
