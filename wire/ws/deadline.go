package ws

import (
	"sync"
	"time"
)

// A deadline is one direction's deadline on a connection: the earlier of what the user of the Conn
// has set and of the time by which the present wait must have come to something.
type deadline struct {
	apply func(time.Time) error // of the connection beneath
	slack time.Duration         // by which it may be early

	mu    sync.Mutex // leaf: nothing is locked under it but the connection
	user  time.Time  // zero: none
	limit time.Time  // of the last wait; zero: there was none
	armed time.Time  // what apply was last told
}

// arm starts a wait of at most the given time. It returns now. The connection's deadline is moved
// only when that changes it by slack or more, because this is done for every frame.
func (d *deadline) arm(wait time.Duration) (time.Time, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	d.limit = now.Add(wait)
	t := d.earlier()
	if late := t.Sub(d.armed); late >= 0 && late < d.slack {
		return now, nil
	}
	d.armed = t
	return now, d.apply(t)
}

// set changes the user's deadline; zero takes it away. It takes effect at once, also on a call that
// waits already, which it can end early but not prolong.
func (d *deadline) set(t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.user = t
	d.armed = d.earlier()
	return d.apply(d.armed)
}

func (d *deadline) earlier() time.Time {
	if d.limit.IsZero() || !d.user.IsZero() && d.user.Before(d.limit) {
		return d.user
	}
	return d.limit
}

// over reports whether a wait of the given time that began at start ended by its own limit, not by
// the user's deadline. Time is asked, and not the deadline, since the user may have moved that
// meanwhile.
func (d *deadline) over(start time.Time, wait time.Duration) bool {
	return time.Since(start) >= wait-d.slack
}
