package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// overload is how much more is asked than was answered at best.
const overload = 3

// load finds out what the node does at best, asks three times of it for a while, and looks at what comes of it.
func (r *serveRun) load(ctx context.Context) (*ServeLoad, error) {
	whole := r.s.Load
	j := clientJob{
		Kind: jobClosed, Prompts: prompts(97), Tokens: r.s.Tokens, Clients: 2 * r.s.running, Seconds: min(whole/2, 20*time.Second).Seconds(),
	}
	r.progress(0, "as many as it can do")
	x := &ServeLoad{Seconds: round(whole.Seconds()), Running: r.s.running, Waiting: r.s.waiting}
	best, n, err := r.watched(ctx, j, nil)
	if err != nil {
		return nil, err
	}
	if n.Asked.Done == 0 {
		return nil, fmt.Errorf("no answer came within %v; use a smaller model, or a longer --load", whole/2)
	}
	x.Best, x.Rate = round(best.rate()), round(overload*float64(n.Asked.Done)/n.Took.Seconds())
	// The first third fills the queue.
	j.Kind, j.Rate, j.Clients, j.Seconds = jobOpen, x.Rate, 2*r.places, whole.Seconds()
	var held []int64
	got, n, err := r.watched(ctx, j, func(done float64) {
		r.progress(done, "three times as much")
		held = append(held, resident())
	})
	if err != nil {
		return nil, err
	}
	x.Goodput, x.Share = round(got.rate()), round(got.rate()/best.rate())
	a := &n.Asked
	x.Done, x.Refused, x.Failed, x.Unsent, x.Silent, x.Failure = a.Done, a.Refused, a.Failed, a.Unsent, a.Silent, a.Failure
	x.RefusedP50, x.RefusedP99 = round(a.RefusedP50), round(a.RefusedP99)
	if early, late := held[:len(held)/2], held[len(held)/2:]; len(early) > 0 && early[0] > 0 {
		x.Early, x.Late = round(float64(median64(early))/1e6), round(float64(median64(late))/1e6)
	}
	return x, nil
}

func median64(list []int64) int64 { return slices.Sorted(slices.Values(list))[len(list)/2] }

// samples of what is held under load.
const samples = 60

// watched has a client do a job, and counts from a third of its time on to its end.
func (r *serveRun) watched(ctx context.Context, j clientJob, sample func(done float64)) (served, clientNews, error) {
	c, err := r.client(ctx, j)
	if err != nil {
		return served{}, clientNews{}, err
	}
	whole := time.Duration(j.Seconds * float64(time.Second))
	wait := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	wait(whole / 3)
	count := r.watch()
	for i := range samples {
		if sample != nil {
			sample(1. / 3 * (1 + 2*float64(i)/samples))
		}
		wait(whole * 5 / 8 / samples) // so that it ends before the client gives up what is under way
	}
	x := count()
	n, err := c.next()
	return x, n, errors.Join(err, c.end())
}

// Bounds of what is waited for behind clients that are gone.
const (
	vanishBar  = 2 * time.Second
	vanishWait = 30 * time.Second
)

// vanish has clients go in the middle of their streams, and waits until nothing is left of them.
func (r *serveRun) vanish(ctx context.Context) (*ServeVanish, error) {
	r.progress(0, fmt.Sprintf("%d clients", r.s.Vanish))
	before, err := r.rest(ctx)
	if err != nil {
		return nil, err
	}
	// As many tokens as fit: none of the streams is to end by itself.
	c, err := r.client(ctx, clientJob{Kind: jobVanish, Prompts: prompts(r.s.Vanish), Tokens: r.node.Engine().Context()})
	if err != nil {
		return nil, err
	}
	x := &ServeVanish{Clients: r.s.Vanish, Before: r.left()} // they go at this moment
	_, err = c.next()
	start := time.Now()
	if err := errors.Join(err, c.end()); err != nil {
		return nil, err
	}
	for {
		x.After = r.left()
		x.Seconds = round(time.Since(start).Seconds())
		x.Clean = x.After.within(&before)
		if x.Clean || time.Since(start) > vanishWait || ctx.Err() != nil {
			return x, ctx.Err()
		}
		time.Sleep(time.Millisecond)
	}
}

// rest has one stream answered, so that all is there that stays, and returns what the node holds then.
func (r *serveRun) rest(ctx context.Context) (ServeLeft, error) {
	c, err := r.client(ctx, clientJob{Kind: jobStreams, Prompts: prompts(1), Tokens: 2})
	if err == nil {
		_, err = c.next()
		err = errors.Join(err, c.end())
	}
	for last := (ServeLeft{Goroutines: -1}); err == nil; time.Sleep(quiet) {
		now := r.left()
		if now == last {
			return now, ctx.Err()
		}
		last = now
	}
	return ServeLeft{}, err
}

// quiet is how long nothing changes in a node that rests.
const quiet = 50 * time.Millisecond

// left is what a node holds for requests.
func (r *serveRun) left() ServeLeft {
	s, m := r.node.Engine().Standing()
	return ServeLeft{
		Places: r.node.Busy(), Sequences: m.Sequences, Queued: s.Waiting + s.Running, Memory: m.Used - m.Cached,
		Goroutines: runtime.NumGoroutine(),
	}
}

// within reports whether nothing is held that b did not hold.
func (a *ServeLeft) within(b *ServeLeft) bool {
	return a.Places <= b.Places && a.Sequences <= b.Sequences && a.Queued <= b.Queued && a.Memory <= b.Memory && a.Goroutines <= b.Goroutines
}
