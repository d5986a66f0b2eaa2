package batcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"kvasir/internal/moe"
)

// spread is one Forward of a Dispatcher: the jobs that its batch has become, and the sums that they add
// into.
type spread struct {
	d    *Dispatcher
	root job
	wg   sync.WaitGroup // jobs with a goroutine of their own

	// Set by the root alone, before there is another goroutine.
	ctx    context.Context    // the caller's, until the batch is split
	cancel context.CancelFunc // nil until the batch is split
	hurry  bool               // it is a hedge: nothing waits, and nothing is hedged
	trace  *trace             // nil: nobody looks

	mu   sync.Mutex // guards the rest
	out  *moe.Partials
	err  error // the first that no other executor can mend
	last error // the last that one might
}

// job is some picks on their way to an answer: the whole batch, or a part of it.
//
// The whole batch, rows nil, is computed straight from the caller's batch into the caller's partials; so
// when one member holds it all, nothing is copied. Parts have a slab each, and are added.
type job struct {
	batch  *moe.Batch
	answer *moe.Partials
	rows   []int32 // row i of batch is row rows[i] of the call; nil: the call's own
	slab   *slab   // nil: the call's own

	to     *Member       // who is asked next; nil: to be chosen
	by     *Set          // what it held when it was chosen
	tried  []*Member     // who has had its turn
	err    error         // why the last of them did not answer
	full   error         // why one of them did not, if its queue was full
	wide   bool          // somebody answered, but with Wide
	waited time.Duration // for somebody to join
	o      outcome       // of the dispatch at hand
}

// serve sees a job to its end.
func (s *spread) serve(j *job) {
	for {
		if err := s.ctx.Err(); err != nil {
			s.fail(err)
			break
		}
		if j.to == nil {
			parts, again := s.choose(j)
			if parts != nil {
				s.release(j)
				for _, part := range parts[1:] {
					s.wg.Go(func() { s.serve(part) })
				}
				j = parts[0]
				continue
			}
			if !again {
				break
			}
			continue
		}
		if s.ask(j) {
			break
		}
	}
	s.release(j)
}

// choose finds who computes a job: one member for all of it (j.to), or several, for which it returns
// parts. When nobody holds any of it, choose waits. again is false when that has ended the job.
func (s *spread) choose(j *job) (parts []*job, again bool) {
	c := s.d.choosers.Get().(*chooser)
	v := s.d.look(c, j.batch.Layer, j.tried)
	c.assign(j.batch)
	if dest, ok := c.a.sole(); ok {
		j.to, j.by = c.member(dest)
	} else {
		parts = s.cut(c, j)
	}
	s.d.choosers.Put(c)
	if parts != nil || j.to != nil {
		return parts, true
	}
	return nil, s.await(j, v)
}

// cut makes a job of each destination's picks.
func (s *spread) cut(c *chooser, j *job) []*job {
	if j.rows == nil {
		j.answer.Reset(j.batch.Rows, j.batch.Hidden)
	}
	if s.cancel == nil {
		s.ctx, s.cancel = context.WithCancel(s.ctx)
	}
	var parts []*job
	for i, share := range c.a.shares {
		if share.picks == 0 {
			continue
		}
		part := s.part(j, c.a.to, i+Nobody, share)
		part.to, part.by = c.member(i + Nobody)
		parts = append(parts, part)
	}
	return parts
}

// part returns a job of those picks of j that go to dest.
func (s *spread) part(j *job, to []int32, dest int, size share) *job {
	k := s.d.slabs.Get().(*slab)
	b := k.batch(j.batch.Shape, size.rows, size.picks)
	k.rows = cut(b, k.rows[:0], j.batch, to, dest)
	if j.rows != nil {
		for i, r := range k.rows {
			k.rows[i] = j.rows[r]
		}
	}
	return &job{
		batch: b, answer: &k.answer, rows: k.rows, slab: k,
		tried: append([]*Member(nil), j.tried...), err: j.err, full: j.full, wide: j.wide, waited: j.waited,
	}
}

// release gives the memory of a job back.
func (s *spread) release(j *job) {
	if j.slab != nil {
		s.d.slabs.Put(j.slab)
		j.slab = nil
	}
}

// ask has j.to compute the job. It returns false when somebody else has to.
func (s *spread) ask(j *job) (settled bool) {
	m, b := j.to, j.batch
	j.to = nil
	g, ok := m.begin(b, j.by, s.hurry)
	if !ok {
		return false // it left, holds something else, or failed another, between the choice and now
	}
	j.o = outcome{begun: g, layer: b.Layer, sent: b.Rows, sentPicks: len(b.Expert)}
	o := &j.o
	err := s.dispatch(j, m, o)
	if err == nil {
		j.tried = append(j.tried, m)
		wide := s.settle(j, o)
		m.finish(o)
		s.trace.note(m, o)
		if wide != nil {
			s.serve(wide)
		}
		return true
	}
	err = fmt.Errorf("layer %d to %s: %w", b.Layer, m.name, err)
	mine := s.ctx.Err()
	if o.verdict = verdictOf(err); mine != nil {
		o.verdict = void
	}
	m.finish(o)
	s.trace.note(m, o)
	if mine != nil || errors.Is(err, moe.ErrInvalid) {
		s.fail(cmp.Or(mine, err))
		return true
	}
	j.err = err
	if o.verdict != lacking || m.local { // else judge has seen to it that it is not chosen before it holds more
		j.tried = append(j.tried, m)
	}
	s.mu.Lock()
	s.last = err
	s.mu.Unlock()
	if errors.Is(err, ErrFull) {
		j.full = err
	}
	return false
}

// dispatch has m compute the job, or others if m is late: then the answer is in place all the same, and
// the verdict is that m was beaten.
func (s *spread) dispatch(j *job, m *Member, o *outcome) error {
	c := s.chase(j, m, o.begun)
	ctx := s.ctx
	if c != nil {
		ctx = c.ctx
	}
	err := s.forward(ctx, j, m, o)
	if err == nil {
		err = checkAnswer(j.batch, j.answer)
	}
	o.took = time.Since(o.at)
	if c == nil {
		return err
	}
	defer c.release()
	hedged, late := c.end(err)
	if err == nil || s.ctx.Err() != nil {
		return err
	}
	if hedged {
		if o.verdict = verdictOf(err); errors.Is(err, context.Canceled) {
			o.verdict = beaten
		}
		size(j.answer, c.answer.Rows, c.answer.Hidden)
		copy(j.answer.Sum, c.answer.Sum)
		copy(j.answer.Status, c.answer.Status)
		return nil
	}
	if late {
		return fmt.Errorf("%w after %v", ErrLate, o.took)
	}
	return err
}

// forward asks the executor, and for its times if somebody looks.
func (s *spread) forward(ctx context.Context, j *job, m *Member, o *outcome) error {
	if x, ok := m.x.(Timed); ok && s.trace != nil {
		return x.ForwardTimed(ctx, j.batch, j.answer, &o.times)
	}
	return m.x.Forward(ctx, j.batch, j.answer)
}

// settle adds the answer of a job into the call's sums and notes in o what of it was used. Rows that
// came back Wide are not: they are returned as a job for somebody else.
func (s *spread) settle(j *job, o *outcome) (wide *job) {
	if o.verdict == answered { // else the picks are those of the hedge's members
		o.rows, o.picks = j.batch.Rows, len(j.batch.Expert)
	}
	var size share
	for r, status := range j.answer.Status {
		if status == moe.Wide {
			size.rows++
			size.picks += int(j.batch.First[r+1] - j.batch.First[r])
		}
	}
	if size.rows > 0 {
		o.rows, o.picks = max(0, o.rows-size.rows), max(0, o.picks-size.picks)
		wide = s.wide(j, size)
	}
	if j.rows == nil {
		return wide
	}
	start := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		o.rows, o.picks = 0, 0
		return wide
	}
	Combine(s.out, j.answer, j.rows)
	o.combine = time.Since(start)
	return wide
}

// wide takes the rows that came back Wide out of an answer and returns them as a job.
func (s *spread) wide(j *job, size share) *job {
	c := s.d.choosers.Get().(*chooser)
	defer s.d.choosers.Put(c)
	c.a.reset(len(j.batch.Expert), 0)
	for r, status := range j.answer.Status {
		to := c.a.to[j.batch.First[r]:j.batch.First[r+1]]
		for i := range to {
			to[i] = Nobody
			if status == moe.Wide {
				to[i] = 0
			}
		}
		if status == moe.Wide {
			j.answer.Status[r] = moe.OK
			clear(j.answer.Row(r))
		}
	}
	part := s.part(j, c.a.to, 0, size)
	part.wide, part.err = true, nil
	return part
}

// await waits until somebody may hold the picks of j, as far as the options allow. It returns false when
// it has ended the job.
func (s *spread) await(j *job, v view) (again bool) {
	if j.full != nil {
		s.fail(j.full) // backpressure: the caller knows better whether to wait
		return false
	}
	left := s.d.o.Wait - j.waited
	if left <= 0 || s.hurry {
		s.giveUp(j)
		return false
	}
	start := time.Now()
	if !v.retry.IsZero() {
		left = min(left, v.retry.Sub(start))
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-s.ctx.Done():
		s.fail(s.ctx.Err())
		return false
	case <-v.changed:
	case <-t.C:
	}
	j.waited += time.Since(start)
	return true
}

// giveUp ends a job that found nobody: with ErrNowhere, or with the status Wide that its rows came back
// with.
func (s *spread) giveUp(j *job) {
	if !j.wide {
		s.mu.Lock()
		last := s.last
		s.mu.Unlock()
		s.fail(s.d.nowhere(j, last))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range j.rows {
		s.out.Fault(int(r), moe.Wide)
	}
}

// fail ends the whole call.
func (s *spread) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	if s.cancel != nil {
		s.cancel()
	}
}
