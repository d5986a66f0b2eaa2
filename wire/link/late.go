package link

import (
	"context"
	"fmt"
	"time"

	"kvasir/internal/moe"
	"kvasir/wire"
)

// What is waited for of calls that were given up and whose answers are of interest: so many of a session, for so
// long. Others are cancelled at the worker.
const (
	maxLates = 16
	lateWait = 10 * time.Second
)

// lateCall takes the answer to a call that was given up.
type lateCall struct {
	to           moe.Late
	rows, hidden int
	timer        *time.Timer
}

// lateOf returns who is interested in the answer of a call for b that is given up; nil: nobody.
func lateOf(ctx context.Context, b *moe.Batch) *lateCall {
	to := moe.LateOf(ctx)
	if to == nil {
		return nil
	}
	return &lateCall{to: to, rows: b.Rows, hidden: b.Hidden}
}

// await keeps a call, all of which the worker has, for its answer. mu is held.
func (m *mux) await(c *call, late *lateCall) {
	m.lates++
	id := c.id
	c.late = late
	c.late.timer = time.AfterFunc(lateWait, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		// The answer may be coming in: then it has room, and stays of interest.
		if c := m.calls[id]; c != nil && m.err == nil && c.late != nil {
			m.control(wire.TypeCancel, id, frame{})
			m.kick()
		}
	})
}

// tell ends a call that was given up, with an answer that is of interest all the same. mu is held, but not while
// the answer is told.
func (m *mux) tell(c *call, payload frame) error {
	late := c.late
	m.endCall(c, result{})
	m.mu.Unlock()
	defer m.mu.Lock()
	var out moe.Partials
	err := wire.ParsePartials(&out, payload.data, late.rows, late.hidden)
	payload.release()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	late.to.Answer(0, &out, 0, late.rows)
	return nil
}
