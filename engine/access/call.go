package access

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// SequencesError is returned where a key has as many sequences under way as it may.
type SequencesError struct{ Asked, Limit int }

// Error says what to do.
func (e *SequencesError) Error() string {
	if e.Asked > e.Limit {
		return fmt.Sprintf("this key may have %d sequences at a time, and this request asks for %d", e.Limit, e.Asked)
	}
	return fmt.Sprintf("this key may have %d sequences at a time; wait for some of them", e.Limit)
}

// Call is what a request costs, and whose it is. Its methods may be called on nil, which is nobody's.
type Call struct {
	ID    string  // of the request
	key   *holder // nil: no key was asked for
	begun time.Time
	now   func() time.Time

	prompt, answer atomic.Int64 // tokens
	first          atomic.Int64 // nanoseconds to the first of the answer; 0: none yet
}

type callKey struct{}

// From returns the call of a request; nil: it has none.
func From(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

func (c *Call) in(ctx context.Context) context.Context { return context.WithValue(ctx, callKey{}, c) }

// Owner is the id of the key; empty where none was asked for. All reports that everybody's things are shown.
func (c *Call) Owner() (id string, all bool) {
	if c == nil || c.key == nil {
		return "", true
	}
	return c.key.ID, c.key.May(Admin)
}

// Take takes places for sequences, which Give gives back.
func (c *Call) Take(n int) error {
	if c == nil || c.key == nil || c.key.take(n) {
		return nil
	}
	return &SequencesError{n, c.key.Limits.Sequences}
}

// Give gives back what Take has taken.
func (c *Call) Give(n int) {
	if c != nil && c.key != nil {
		c.key.running.Add(-int64(n))
	}
}

// Prompt counts tokens of a prompt.
func (c *Call) Prompt(n int) {
	if c == nil {
		return
	}
	c.prompt.Add(int64(n))
	if c.key != nil {
		c.key.spent.Add(int64(n))
	}
}

// Token counts one of an answer. It allocates nothing.
func (c *Call) Token() {
	if c == nil {
		return
	}
	if c.answer.Add(1) == 1 {
		c.first.Store(int64(max(c.now().Sub(c.begun), 1)))
	}
	if c.key != nil {
		c.key.spent.Add(1)
	}
}
