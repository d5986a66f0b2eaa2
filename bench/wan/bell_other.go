//go:build !linux

package wan

import "time"

// bell is for systems whose runtime timers are coarse; elsewhere there is none.
type bell struct{}

func newBell(func() time.Duration) *bell { return nil }

func (*bell) run()   {}
func (*bell) close() {}

func (*bell) await(time.Duration, <-chan struct{}, <-chan struct{}, *waiter) error { return nil }
