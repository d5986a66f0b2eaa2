package engine

import (
	"context"
	"sync"
	"time"

	"kvasir/batcher"
	"kvasir/engine/schedule"
	"kvasir/internal/moe"
)

// maxFlights is the most micro-batches that are under way at once where experts may be far away: while some
// wait for them, the backbone computes others.
const maxFlights = 16

// pace finds out how many micro-batches are to be under way: as few as hide the time that experts are away,
// so that each is as large as can be. It is the executor before the swarm, which it shows to a pilot, and is
// told by the scheduler of each micro-batch.
type pace struct {
	next  moe.Experts
	pilot *batcher.Pilot
	tap   *tap // may be nil

	mu   sync.Mutex
	last map[context.Context]step // by micro-batch: each has a context of its own
}

// step is the end of a micro-batch's last call; its beginning is that of layer begun.
type step struct {
	layer int
	at    time.Time
}

// begun stands for what is before the first layer.
const begun = -1

// maxSteps bounds what is remembered of micro-batches that have ended.
const maxSteps = 4 * maxFlights

func newPace(next moe.Experts, pilot *batcher.Pilot) *pace {
	return &pace{next: next, pilot: pilot, last: map[context.Context]step{}}
}

// Begin implements schedule.Watcher.
func (p *pace) Begin(ctx context.Context) { p.reach(ctx, begun) }

// Forward implements moe.Experts. What passes between the answer of one layer and the call for the next is the
// backbone's own time, and so is what passes before the first, though it be not layer 0.
func (p *pace) Forward(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
	layer := b.Layer
	p.mu.Lock()
	before, ok := p.last[ctx]
	p.mu.Unlock()
	if ok && (before.layer == layer-1 || before.layer == begun) {
		own := time.Since(before.at)
		p.pilot.Own(layer, own)
		p.tap.own(layer, own)
	}
	err := p.next.Forward(ctx, b, out)
	p.reach(ctx, layer)
	return err
}

// reach notes how far a micro-batch is.
func (p *pace) reach(ctx context.Context, layer int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.last) >= maxSteps {
		clear(p.last)
	}
	p.last[ctx] = step{layer, time.Now()}
}

// End implements schedule.Watcher. The head, and the choice of tokens, are the backbone's own too: they count as
// what is before a layer after the last.
func (p *pace) End(ctx context.Context, err error) {
	p.mu.Lock()
	last, ok := p.last[ctx]
	delete(p.last, ctx)
	p.mu.Unlock()
	if ok && err == nil && last.layer != begun {
		p.pilot.Own(last.layer+1, time.Since(last.at))
	}
}

// marked is schedule.Config's Mark: the rows of a micro-batch of batch jobs alone wait in the lanes of workers for
// those that somebody looks on at. All micro-batches of a class are one caller's: each mixes the sequences of
// many, and they are about as large as each other, so whose came first is served first.
func marked(ctx context.Context, c schedule.Class) context.Context {
	if c == schedule.Interactive {
		return ctx
	}
	return batcher.WithCaller(ctx, batcher.Caller{Class: batcher.Bulk})
}

// wanted is schedule.Config's.
func (p *pace) wanted() int { return p.pilot.Flights(0, 0, maxFlights) }

// tracing returns what shows a swarm's calls to a pilot and a tap. What this machine has computed alone was not
// away.
func tracing(pilot *batcher.Pilot, taps *tap, local string) func(*batcher.Call) {
	return func(c *batcher.Call) {
		taps.call(c)
		for i := range c.Spans {
			if c.Spans[i].To != local {
				pilot.Call(c)
				return
			}
		}
		pilot.Call(&batcher.Call{Layer: c.Layer, Rows: c.Rows, Start: c.Start, Err: c.Err})
	}
}
