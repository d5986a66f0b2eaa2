//go:build !unix

package batcher

import (
	"testing"
	"time"
)

// spent is not known here.
func spent(*testing.B) time.Duration { return 0 }
