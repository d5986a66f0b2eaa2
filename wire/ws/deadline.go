package ws

import (
	"sync"
	"time"
)

// A deadline is one direction's deadline on a connection: the earlier of what the user of the Conn
// has set and of what the Conn allows without progress.
type deadline struct {
	apply func(time.Time) error // of the connection beneath
	idle  time.Duration         // allowed without progress

	mu    sync.Mutex // leaf: nothing is locked under it but the connection
	user  time.Time  // zero: none
	armed time.Time  // what apply was last told
}

// arm starts a wait: the connection's deadline becomes the earlier of the user's and now plus idle.
// It returns now. The deadline is moved only when that changes it by a sixteenth of idle or more,
// because this is done for every frame.
func (d *deadline) arm() (time.Time, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	t := d.earlier(now)
	if late := t.Sub(d.armed); late >= 0 && late < d.idle/16 {
		return now, nil
	}
	d.armed = t
	return now, d.apply(t)
}

// set changes the user's deadline; zero takes it away. It takes effect at once, also on a call that
// waits already.
func (d *deadline) set(t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.user = t
	d.armed = d.earlier(time.Now())
	return d.apply(d.armed)
}

func (d *deadline) earlier(now time.Time) time.Time {
	t := now.Add(d.idle)
	if !d.user.IsZero() && d.user.Before(t) {
		return d.user
	}
	return t
}

// silent reports whether a wait that began at start ended by the idle limit, not by the user's
// deadline. Time is asked, and not the deadline, since the user may have moved that meanwhile.
func (d *deadline) silent(start time.Time) bool {
	return time.Since(start) >= d.idle-d.idle/16
}
