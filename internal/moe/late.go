package moe

import "context"

// Late takes answers that come when nobody waits for them any more: the caller went on with another's, but the
// work was done. It needs nothing of the caller's.
type Late interface {
	// Answer is told of n rows of the batch from row lo on: their answers are rows of out from row at on. It
	// keeps nothing of out, and may be called from several goroutines. No row is answered twice.
	Answer(lo int, out *Partials, at, n int)
}

// Lates says, once a call has been given up, whether its answer is still of interest. It is asked before the
// call returns, and by its executor only.
type Lates interface {
	// Late returns nil when it is not.
	Late() Late
}

type lateKey struct{}

// LateContext is a context by which LateOf finds Lates.
type LateContext struct {
	context.Context
	Lates Lates
}

// Value implements context.Context.
func (c *LateContext) Value(key any) any {
	if key == (lateKey{}) {
		return c.Lates
	}
	return c.Context.Value(key)
}

// LateOf returns who takes the answer of a call with this context, which has ended; nil: nobody.
func LateOf(ctx context.Context) Late {
	if l, ok := ctx.Value(lateKey{}).(Lates); ok {
		return l.Late()
	}
	return nil
}
