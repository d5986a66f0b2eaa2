//go:build !linux

package worker

import "time"

func systemLoad() (all, others time.Duration, err error) { return 0, 0, ErrNoLoad }
