package link

import (
	"fmt"
	"time"

	"github.com/panjf2000/ants/v2"
)

// Importing ants starts a pool that nobody here uses: its goroutines end at once.
func init() { ants.Release() }

// dismissWait is the longest that goroutines of a pool, which have nothing to do, may take to end.
const dismissWait = 5 * time.Second

// crews is the goroutines that compute jobs: a pool for Dispatches, as many as are computed at once, and
// a goroutine when there is one of the other jobs. It keeps no queue: who starts one has counted that
// there is room, so that what waits, waits in mux.ready, where it is bounded.
type crews struct {
	size int
	run  func(crew int)
	pool *ants.Pool // made with the first Dispatch; guarded by mux.mu until the session's goroutines have ended
	work func()     // run(0)
}

func (c *crews) init(size int, run func(int)) {
	c.size, c.run = size, run
	c.work = func() { run(0) }
}

// start has a crew's goroutine run. mu is held, and fewer than size do of crew 0; if the others are only
// on their way back into the pool, it waits for one, which needs no lock of ours.
func (c *crews) start(crew int) {
	if crew != 0 {
		go c.run(crew)
		return
	}
	if c.pool == nil {
		pool, err := ants.NewPool(c.size, ants.WithDisablePurge(true))
		if err != nil {
			panic(fmt.Sprintf("BUG: a pool of %d: %v", c.size, err))
		}
		c.pool = pool
	}
	if err := c.pool.Submit(c.work); err != nil {
		panic(fmt.Sprintf("BUG: a pool of %d takes no work: %v", c.size, err))
	}
}

// dismiss ends the pool's goroutines. None computes any more.
func (c *crews) dismiss() {
	if c.pool == nil {
		return
	}
	_ = c.pool.ReleaseTimeout(dismissWait) // another Close may have been here before
}
