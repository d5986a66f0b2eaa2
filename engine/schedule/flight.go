package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"kvasir/engine/model"
)

// flight takes micro-batches through the model, one after another.
type flight struct {
	s      *Scheduler
	pieces []piece
	steps  []*step
	pool   []*step // grown as needed; steps are the first of it

	// Under Scheduler.mu.
	live   int // pieces that somebody waits for
	ctx    context.Context
	cancel context.CancelFunc

	class  Class                    // of the micro-batch
	marked [classes]context.Context // ctx as micro-batches of a class have it
}

// pick is what a chooser chose.
type pick struct {
	made  bool
	token int32
	end   bool
	err   error
}

// fly runs until the scheduler is closed and nothing is left.
func (f *flight) fly() {
	for f.take() {
		err := f.forward()
		if err == nil {
			f.fork()
		}
		f.land(err)
	}
	if f.cancel != nil {
		f.cancel()
	}
}

// forward computes the micro-batch.
func (f *flight) forward() error {
	ctx, w := f.marked[f.class], f.s.watch
	if w == nil {
		return f.s.back.forward(ctx, f.steps)
	}
	w.Begin(ctx)
	err := f.s.back.forward(ctx, f.steps)
	w.End(ctx, err)
	return err
}

// take waits for the next micro-batch. It returns false when there will be none.
func (f *flight) take() bool {
	s := f.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		admitted := s.admit()
		f.pieces = f.pieces[:0]
		if s.flying < s.trim() {
			f.pieces = s.core.next(f.pieces)
		}
		if len(f.pieces) > 0 {
			break
		}
		if s.closed && len(s.requests) == 0 {
			return false
		}
		if !admitted {
			s.work.Wait()
		}
	}
	s.flying++
	f.live = len(f.pieces)
	if f.ctx == nil || f.ctx.Err() != nil {
		f.ctx, f.cancel = context.WithCancel(context.Background())
		for c := range f.marked {
			if f.marked[c] = f.ctx; s.mark != nil {
				f.marked[c] = s.mark(f.ctx, Class(c))
			}
		}
	}
	for len(f.pool) < len(f.pieces) {
		f.pool = append(f.pool, &step{})
	}
	f.steps = f.pool[:len(f.pieces)]
	f.class = Batch
	for i, p := range f.pieces {
		f.class = min(f.class, p.t.class)
		p.t.owner.flight = f
		p.t.owner.load(f.steps[i], p.n)
	}
	return true
}

// trim sets how many micro-batches share what there is, and returns it. mu is held.
func (s *Scheduler) trim() int {
	if s.wanted != nil {
		s.core.flights = max(1, min(s.wanted(), len(s.flights)))
	}
	return s.core.flights
}

// admit makes the sequences of those whose turn it is, and reports whether there were any. mu is
// held, but for the time in which sequences are made.
func (s *Scheduler) admit() bool {
	if !s.core.admits() {
		return false
	}
	list := s.core.admit(s.back.room())
	if len(list) == 0 {
		return false
	}
	s.mu.Unlock()
	errs := make([]error, len(list))
	for i, t := range list {
		c := t.owner
		c.seq, errs[i] = s.back.resume(c.tokens(nil, 0, t.have))
	}
	s.mu.Lock()
	for i, t := range list {
		s.admitted(t.owner, errs[i])
	}
	s.settled()
	return true
}

func (s *Scheduler) admitted(c *choice, err error) {
	t := &c.task
	switch {
	case err == nil:
		s.core.resumed(t, c.seq.Len())
		if t.dying {
			s.remove(c)
		}
	case t.dying:
		s.core.back(t)
		s.remove(c)
	case errors.Is(err, model.ErrMemory) && !s.core.refused(t):
	default: // it waits for nothing that could come
		s.core.back(t)
		s.end(c.req, fmt.Errorf("schedule: begin a sequence: %w", err))
	}
}

// tokens appends those of a choice from lo up to hi: of the prompt and, after it, of the answer.
func (c *choice) tokens(dst []int32, lo, hi int) []int32 {
	n := len(c.req.prompt)
	if lo < n {
		dst = append(dst, c.req.prompt[lo:min(hi, n)]...)
	}
	if hi > n {
		dst = append(dst, c.answer[max(lo-n, 0):hi-n]...)
	}
	return dst
}

// load makes a step of a piece.
func (c *choice) load(st *step, n int) {
	st.seq = c.seq
	st.Tokens = c.tokens(st.Tokens[:0], c.done, c.done+n)
	st.Want, st.Sink, st.Err = model.None, nil, nil
	if c.done+n == c.have {
		st.Want, st.Sink = model.Last, c.choose
	}
}

// choose has the next token chosen, and the first ones of the choices that part here. A goroutine
// of Forward calls it.
func (c *choice) choose(logits []float32) {
	if c.req.over.Load() {
		return
	}
	all := c.parting()
	for i, o := range all {
		mine := logits
		if i < len(all)-1 {
			mine = slices.Clone(logits) // a chooser may change them
		}
		p := pick{made: true}
		p.token, p.end, p.err = o.chooser.Next(mine, c.have)
		o.picked = p
	}
}

// parting returns the choices whose next token comes of the same logits: c, and those that part
// from it.
func (c *choice) parting() []*choice { return c.req.choices[c.index : c.index+1+c.forks] }

// ends reports whether the token that was picked is the last of its choice.
func (c *choice) ends() bool { return c.picked.end || c.left == 1 }

// fork makes sequences for the choices that part from others now. Without memory they get none.
func (f *flight) fork() {
	for i, p := range f.pieces {
		c := p.t.owner
		if c.forks == 0 || f.steps[i].Err != nil || !c.picked.made {
			continue
		}
		for _, o := range c.parting()[1:] {
			if o.picked.err != nil || o.ends() {
				continue
			}
			if seq, err := c.seq.fork(); err == nil {
				o.seq = seq
			}
		}
	}
}

// land takes in what came of the micro-batch, and wakes who reads of it.
func (f *flight) land(err error) {
	f.settle(err)
	for _, p := range f.pieces {
		p.t.owner.req.stream.ring()
	}
}

func (f *flight) settle(err error) {
	s := f.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying--
	for i, p := range f.pieces {
		st := f.steps[i]
		s.landed(p, st, err)
		st.Seq, st.seq, st.Sink = nil, nil, nil // the pool keeps nothing alive
	}
	s.settled()
}

func (s *Scheduler) landed(p piece, st *step, err error) {
	c, t := p.t.owner, p.t
	c.flight = nil
	switch {
	case t.dying:
		s.core.back(t)
		s.remove(c)
	case err != nil:
		s.spoiled(c, p.n, err)
	case errors.Is(st.Err, model.ErrMemory):
		s.core.lacked(t)
	case st.Err != nil:
		s.core.back(t)
		s.end(c.req, fmt.Errorf("schedule: choice %d: %w", c.index, st.Err))
	case st.Sink == nil:
		s.core.took(t, p.n, 0)
	default:
		s.chosen(c, p.n)
	}
}

// spoiled has a choice computed anew, whose micro-batch the experts could not run, or fails its
// request.
func (s *Scheduler) spoiled(c *choice, n int, err error) {
	if c.retries == 0 {
		s.core.back(&c.task)
		s.end(c.req, fmt.Errorf("%w: %w", ErrExperts, err))
		return
	}
	c.retries--
	s.counts.Retries++
	if c.picked.made { // its rows were through already; no chooser is asked twice
		s.chosen(c, n)
	} else {
		s.core.back(&c.task)
	}
	if c.state == idle {
		s.core.again(&c.task)
		c.free()
	}
}

// chosen takes in the token that was picked, after n rows, and those of the choices that part here.
func (s *Scheduler) chosen(c *choice, n int) {
	all := c.parting()
	for _, o := range all {
		switch {
		case !o.picked.made:
			panic("BUG: a step without an error left out its logits")
		case o.picked.err != nil:
			s.core.back(&c.task)
			s.end(c.req, fmt.Errorf("schedule: choice %d, position %d: %w", o.index, c.have, o.picked.err))
			return
		}
	}
	pos := c.have
	s.core.took(&c.task, n, 1)
	for _, o := range all {
		if o != c {
			s.core.part(&c.task, &o.task, o.seq != nil)
		}
		s.accept(o, pos)
	}
}

// accept adds the token that was picked to the answer, and ends the choice if it was the last.
func (s *Scheduler) accept(c *choice, pos int) {
	e := Event{Choice: c.index, Token: c.picked.token, Pos: pos}
	switch {
	case c.picked.end:
		e.Final = Ended
	case c.left == 0:
		e.Final = Full
	}
	c.answer = append(c.answer, e.Token)
	c.picked = pick{}
	s.counts.Decoded++
	c.req.stream.add(e)
	if e.Final == More {
		return
	}
	s.remove(c)
	if c.req.live--; c.req.live == 0 {
		s.end(c.req, nil)
	}
}

// remove takes a choice away for good: now, or when the micro-batch that it is in returns. A
// micro-batch for which nobody waits any more is cut short.
func (s *Scheduler) remove(c *choice) {
	was := c.dying
	if s.core.remove(&c.task) {
		for _, o := range c.parting() { // others have sequences here if they just parted
			o.free()
		}
		return
	}
	if f := c.flight; f != nil && c.dying && !was {
		if f.live--; f.live == 0 {
			f.cancel()
		}
	}
}

// free gives the memory of a sequence back.
func (c *choice) free() {
	if c.seq != nil {
		c.seq.Free()
		c.seq = nil
	}
}

// settled is called when something has changed: it makes room for those who lack it, and wakes the
// flights. mu is held.
func (s *Scheduler) settled() {
	var hopeless *task
	s.victims, hopeless = s.core.preempt(s.victims[:0])
	for _, t := range s.victims {
		t.owner.free()
	}
	clear(s.victims)
	if hopeless != nil {
		s.end(hopeless.owner.req, fmt.Errorf("%w: nothing else runs, and there is no memory for %d tokens", ErrTooLarge, hopeless.have))
	}
	s.work.Broadcast()
}
