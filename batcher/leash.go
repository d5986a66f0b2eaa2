package batcher

import (
	"context"
	"slices"
	"sync"
	"time"

	"kvasir/internal/moe"
)

// leash is the context of a call, or of a dispatch, that is used again for the next: it ends with its parent
// or by itself. A context of package context takes three allocations each time.
//
//  1. It is tied before it is used, and nobody uses it once it is untied.
//  2. A leash that is tied to a leash is in its kids until it is untied. So to end one ends those tied to it.
//  3. A leash that was tied to another context stays with it after it is untied, for the next call mostly has
//     the same: it is watched until the leash is tied elsewhere, or leaves.
type leash struct {
	ctx context.Context // what it is tied to; never nil while it is used
	up  *leash          // likewise, if it is a leash

	mu    sync.Mutex // before those of kids
	done  chan struct{}
	err   error // why it has ended; nil: it has not
	kids  []*leash
	watch *watch // nil: it was tied to no other context, or to one that never ends
}

// watch is the wait for a context to end.
type watch struct {
	of   <-chan struct{} // its Done
	stop func() bool
}

// tie begins a use of l: it ends when ctx does.
func (l *leash) tie(ctx context.Context) {
	l.ctx = ctx
	if late, ok := ctx.(*moe.LateContext); ok {
		l.up, _ = late.Context.(*leash)
	} else {
		l.up, _ = ctx.(*leash)
	}
	if l.up != nil {
		l.up.mu.Lock()
		defer l.up.mu.Unlock()
		l.up.kids = append(l.up.kids, l)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil || l.err != nil {
		l.done, l.err = make(chan struct{}), nil
	}
	if l.up != nil {
		l.drop()
		l.finish(l.up.err)
		return
	}
	if of := ctx.Done(); !l.watches(of) {
		l.drop()
		if of != nil {
			w := &watch{of: of}
			l.watch = w
			w.stop = context.AfterFunc(ctx, func() { l.follow(w, ctx.Err()) })
		}
	}
	l.finish(ctx.Err())
}

// untie ends a use of l.
func (l *leash) untie() {
	if up := l.up; up != nil {
		up.mu.Lock()
		i := slices.Index(up.kids, l)
		last := len(up.kids) - 1
		up.kids[i], up.kids[last] = up.kids[last], nil
		up.kids = up.kids[:last]
		up.mu.Unlock()
	}
	l.ctx, l.up = context.Background(), nil
}

// watches reports whether l waits for a context with that Done. The owner asks.
func (l *leash) watches(of <-chan struct{}) bool {
	if l.watch == nil {
		return of == nil
	}
	return l.watch.of == of
}

// follow is called when a context that l watched has ended.
func (l *leash) follow(w *watch, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch == w { // else it is tied to another by now
		l.finish(err)
	}
}

// leave ends the watch for whatever l was tied to.
func (l *leash) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop()
}

// drop is leave with mu held.
func (l *leash) drop() {
	if l.watch != nil {
		l.watch.stop()
		l.watch = nil
	}
}

// end ends l, unless it has ended.
func (l *leash) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.finish(err)
}

// finish is end with mu held; nil is no reason.
func (l *leash) finish(err error) {
	if err == nil || l.err != nil {
		return
	}
	l.err = err
	close(l.done)
	for _, k := range l.kids {
		k.end(err)
	}
}

// Done is closed when the leash has ended.
func (l *leash) Done() <-chan struct{} { return l.done }

// Err tells why the leash has ended, nil if it has not.
func (l *leash) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Deadline is that of what the leash is tied to.
func (l *leash) Deadline() (time.Time, bool) { return l.ctx.Deadline() }

// Value is that of what the leash is tied to.
func (l *leash) Value(key any) any { return l.ctx.Value(key) }
