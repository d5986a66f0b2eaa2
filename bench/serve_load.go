package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
)

const (
	overload  = 3                // times as much is asked as was answered at best
	loadParts = 5                // that a load is cut into
	partLeast = 12 * time.Second // of them, where the load is long enough for one
	partsFew  = 3                // that short loads are cut into all the same
	bestMost  = 20 * time.Second // that is looked at what it can do, before and after each part
	loadKept  = 2                // parts that must be left to judge
	loadDrift = 0.1              // that the best may change by from one side of a part to the other
)

// loading is a load under way.
type loading struct {
	r    *serveRun
	x    ServeLoad
	part time.Duration
	held []int64 // resident bytes, over all parts

	best, under []served
	bestNews    []clientNews
	underNews   []clientNews
}

// load has the node do its best, asks three times of that for a while, and so on in turns: a machine that is
// faster at one hour than at another would otherwise be taken for a node that bears load well, or badly.
func (r *serveRun) load(ctx context.Context) (*ServeLoad, error) {
	parts := max(partsFew, min(loadParts, int(r.s.Load/partLeast)))
	l := &loading{r: r, part: r.s.Load / time.Duration(parts)}
	l.x = ServeLoad{Seconds: round(r.s.Load.Seconds()), Running: r.s.running, Waiting: r.s.waiting, Rounds: parts}
	for i := range parts {
		if err := l.atBest(ctx, float64(i)/float64(parts)); err != nil {
			return nil, err
		}
		if err := l.loaded(ctx, i); err != nil {
			return nil, err
		}
	}
	if err := l.atBest(ctx, 1); err != nil {
		return nil, err
	}
	l.finish()
	return &l.x, nil
}

// job is what a client is told to do for a while.
func (l *loading) job(kind string, d time.Duration) clientJob {
	return clientJob{Kind: kind, Prompts: prompts(97), Tokens: l.r.s.Tokens, Clients: 2 * l.r.s.running, Seconds: d.Seconds()}
}

// atBest has always as many ask as can run, and as many again wait: for as long as a part, and for longer where
// nothing was answered meanwhile.
func (l *loading) atBest(ctx context.Context, done float64) error {
	l.r.o.progress(done, "as many as it can do")
	for d := min(l.part, bestMost); ; d = min(2*d, bestMost) {
		got, n, err := l.r.watched(ctx, l.job(jobClosed, d), nil)
		switch {
		case err != nil:
			return err
		case n.Asked.Done > 0 && got.tokens > 0:
			l.best, l.bestNews = append(l.best, got), append(l.bestNews, n)
			return nil
		case d == bestMost:
			return fmt.Errorf("no answer came within %v; use a smaller model, or fewer --tokens", d)
		}
	}
}

// loaded asks three times of the last best.
func (l *loading) loaded(ctx context.Context, i int) error {
	last := &l.bestNews[len(l.bestNews)-1]
	j := l.job(jobOpen, l.part)
	j.Rate, j.Clients, j.Burst = overload*float64(last.Asked.Done)/last.Took.Seconds(), 2*l.r.places, l.r.places
	got, n, err := l.r.watched(ctx, j, func(done float64) {
		l.r.o.progress((float64(i)+done)/float64(l.x.Rounds), "three times as much")
		l.held = append(l.held, resident())
	})
	if err != nil {
		return err
	}
	l.under, l.underNews = append(l.under, got), append(l.underNews, n)
	return nil
}

// finish makes figures of the parts: medians of those that are kept, or of all where too few are.
func (l *loading) finish() {
	x := &l.x
	var kept []int
	for i := range l.under {
		a, b := l.best[i].rate(), l.best[i+1].rate()
		if max(a, b) <= min(a, b)*(1+loadDrift) {
			kept = append(kept, i)
		}
	}
	x.Dropped = len(l.under) - len(kept)
	if x.noisy() {
		kept = kept[:0]
		for i := range l.under {
			kept = append(kept, i)
		}
	}
	var rate, best, goodput, share []float64
	for _, i := range kept {
		mean := (l.best[i].rate() + l.best[i+1].rate()) / 2
		best, goodput, share = append(best, mean), append(goodput, l.under[i].rate()), append(share, l.under[i].rate()/mean)
		n := &l.underNews[i].Asked
		rate = append(rate, float64(n.Done+n.Refused+n.Failed+n.Unsent)/l.underNews[i].Took.Seconds())
	}
	x.Rate, x.Best, x.Goodput, x.Share = round(middle(rate)), round(middle(best)), round(middle(goodput)), round(middle(share))
	var times []int64
	for i := range l.underNews {
		a := &l.underNews[i].Asked
		x.add(a)
		times = append(times, a.Times...)
	}
	slices.Sort(times)
	x.RefusedP50, x.RefusedP99 = quantile(times, 0.5), quantile(times, 0.99)
	x.AtBest, x.Under = l.r.work(l.best, l.bestNews), l.r.work(l.under, l.underNews)
	if early, late := l.held[:len(l.held)/2], l.held[len(l.held)/2:]; len(early) > 0 && early[0] > 0 {
		x.Early, x.Late = round(float64(median64(early))/1e6), round(float64(median64(late))/1e6)
	}
}

// quantile in ms of a sorted list of us; 0 of none.
func quantile(list []int64, q float64) float64 {
	if len(list) == 0 {
		return 0
	}
	return round(float64(list[min(int(q*float64(len(list))), len(list)-1)]) / 1000)
}

// add adds what a client tells.
func (x *ServeLoad) add(a *clientCounts) {
	x.Done, x.Refused, x.Failed = x.Done+a.Done, x.Refused+a.Refused, x.Failed+a.Failed
	x.Unsent, x.Silent = x.Unsent+a.Unsent, x.Silent+a.Silent
	if x.Failure == "" {
		x.Failure = a.Failure
	}
}

// work tells what tokens were made of, and who had the processor.
func (r *serveRun) work(list []served, news []clientNews) ServeWork {
	var all served
	var client, asked time.Duration
	for i := range list {
		s := &list[i]
		all.took, all.cpu = all.took+s.took, all.cpu+s.cpu
		all.steps, all.rows, all.prompts = all.steps+s.steps, all.rows+s.rows, all.prompts+s.prompts
		client, asked = client+news[i].CPU, asked+news[i].Took
	}
	w := ServeWork{Steps: round(float64(all.steps) / all.took.Seconds())}
	if all.steps > 0 {
		w.Rows, w.Prompts = round(float64(all.rows)/float64(all.steps)), round(float64(all.prompts)/float64(all.steps))
	}
	if r.report.Settings.Apart && all.cpu > 0 {
		w.Server, w.Client = round(all.cpu.Seconds()/all.took.Seconds()), round(client.Seconds()/asked.Seconds())
	}
	return w
}

func median64(list []int64) int64 { return slices.Sorted(slices.Values(list))[len(list)/2] }

// samples of what is held under load, in each part.
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
	r.o.progress(0, fmt.Sprintf("%d clients", r.s.Vanish))
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
