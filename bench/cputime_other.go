//go:build !unix

package bench

import "time"

// processCPU returns 0: it is not known here.
func processCPU() time.Duration { return 0 }

// filesMost returns 0: there is no such limit here, or it is not known.
func filesMost() int { return 0 }
