package batcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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

	ctx leash // of all that is done for the call

	// Set by the root alone, before there is another goroutine.
	hurry bool   // it is a hedge: nothing waits, and nothing is hedged
	trace *trace // nil: nobody looks

	over    *spread // of the call that this one hedges, which lasts as long; nil: it is no hedge
	overJob *job    // and its job

	mu      sync.Mutex // guards the rest
	out     *moe.Partials
	ready   []bool  // rows of out whose first answer is there, and one that is nobody's
	missing int     // rows whose first answer is not there
	now     []int32 // room for due
	slabs   []*slab // of all parts; they are given back when the call ends
	pending []*job  // answered, but not all added, since others are still to write there
	err     error   // the first that no other executor can mend
	last    error   // the last that one might
	paid    *claims // nil: no member could be paid twice
}

// job is some picks on their way to an answer: the whole batch, or a part of it.
//
// The whole batch, rows nil, is computed straight from the caller's batch into the caller's partials; so
// when one member holds it all, nothing is copied. The rows of a part are the caller's too. Of the parts that
// have a row one owns it: its answer is written into the caller's partials. The others write into their slabs,
// and are added once the owner has been answered. So nothing is copied, nothing need be zero before, and of
// n answers to a row n-1 are added.
type job struct {
	batch  *moe.Batch
	answer *moe.Partials
	rows   []int32 // row i of batch is row rows[i] of the call; nil: the call's own
	// places[i] is where the answer to row i goes: rows[i], if the row is the job's own: nobody else writes
	// there until it has been answered; or else ^k for row k of own.
	places []int32
	own    *moe.Partials
	sheet  *sheet  // the slab's own: its picks may lie there, or in that of another part of the call
	adds   []int32 // rows of batch whose answers are still to be added: those that are in own
	serve  func()  // sees a part to its end, in a goroutine of its own

	to     *Member       // who is asked next; nil: to be chosen
	by     *Set          // what it held when it was chosen
	tried  []*Member     // who has had its turn
	slow   []*Member     // of those, who was only late
	again  bool          // slow ones are asked once more, for as long as it takes
	err    error         // why the last of them did not answer
	full   error         // why one of them did not, if its queue was full
	wide   bool          // somebody answered, but with Wide
	waited time.Duration // for somebody to join
	o      outcome       // of the dispatch at hand
}

// row returns which row of the call row r of the job is.
func (j *job) row(r int) int32 {
	if j.rows == nil {
		return int32(r)
	}
	return j.rows[r]
}

// serve sees a job to its end.
func (s *spread) serve(j *job) {
	for {
		if err := s.ctx.Err(); err != nil {
			s.fail(err)
			break
		}
		if j.to == nil {
			if j = s.choose(j); j == nil {
				break
			}
			continue
		}
		if s.ask(j) {
			break
		}
	}
}

// choose finds who computes a job: one member for all of it (j.to), or several: then it has the others' parts
// served, and returns the first. When nobody holds any of it, choose waits, and returns nil when that has ended
// the job.
func (s *spread) choose(j *job) *job {
	c := s.d.choosers.Get().(*chooser)
	v := s.d.look(c, j.batch, j.tried, time.Now())
	c.assign(j.batch)
	s.d.giveBack(c)
	var part *job
	dest, sole := c.a.sole()
	if sole {
		j.to, j.by = c.member(dest)
	} else {
		part = s.cut(c, j)
	}
	s.d.choosers.Put(c)
	if part != nil {
		return part
	}
	if j.to != nil || s.askAgain(j) || s.await(j, v) {
		return j
	}
	return nil
}

// askAgain has those have another turn who were only late, when there is nobody else: a slow answer is better
// than none. A hedge leaves that to the call that it is for.
func (s *spread) askAgain(j *job) bool {
	if s.hurry || j.again || len(j.slow) == 0 {
		return false
	}
	j.again = true
	j.tried = slices.DeleteFunc(j.tried, func(m *Member) bool { return member(j.slow, m) })
	return true
}

// cut makes a job of each destination's picks. It returns the first, and has the others served.
func (s *spread) cut(c *chooser, j *job) (first *job) {
	if j.rows == nil {
		s.divide(j, false)
	}
	c.parts = c.parts[:0]
	for i, picks := range c.a.shares {
		if picks == 0 {
			c.parts = append(c.parts, nil)
			continue
		}
		part := s.part(j)
		part.to, part.by = c.member(i + Nobody)
		c.parts = append(c.parts, part)
	}
	c.cuts.distribute(j, &c.a, c.parts)
	for _, part := range c.parts {
		if part == nil {
			continue
		}
		if s.lend(part); first == nil {
			first = part
			continue
		}
		s.wg.Add(1)
		go part.serve()
	}
	clear(c.parts)
	return first
}

// divide is called before the call has its first part. answered says that all its rows have been.
func (s *spread) divide(root *job, answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !answered {
		s.out.Size(root.batch.Rows, root.batch.Hidden) // every row will be written
		clear(s.out.Status)
		s.missing = root.batch.Rows
	}
	s.ready = sized(s.ready, root.batch.Rows+1)
	for r := range s.ready {
		s.ready[r] = answered
	}
}

// part returns a job without rows, of those that j has.
func (s *spread) part(j *job) *job {
	k := s.d.slabs.take()
	s.mu.Lock()
	s.slabs = append(s.slabs, k)
	s.mu.Unlock()
	k.spread = s
	k.batch.Borrow(j.batch.Shape)
	k.batch.Expert, k.batch.Weight = k.sheet.expert[:0], k.sheet.weight[:0]
	k.job = job{
		batch: &k.batch, answer: &k.answer, own: &k.own, sheet: &k.sheet,
		rows: k.sheet.rows[:0], places: k.job.places[:0], adds: k.job.adds[:0], serve: k.job.serve,
		tried: append(k.job.tried[:0], j.tried...),
		err:   j.err, full: j.full, wide: j.wide, waited: j.waited, slow: j.slow, again: j.again,
	}
	return &k.job
}

// lend finds the rows of a part, and a place for the answers to them.
func (s *spread) lend(part *job) {
	hidden := part.batch.Hidden
	part.batch.BorrowSome(s.root.batch, part.rows)
	if len(part.adds) > 0 {
		part.own.Size(len(part.adds), hidden)
	}
	part.answer.Borrow(hidden)
	part.answer.BorrowSome(s.out, part.own, part.places)
}

// ask has j.to compute the job. It returns false when somebody else has to.
func (s *spread) ask(j *job) (settled bool) {
	m, b := j.to, j.batch
	j.to = nil
	g, ok := m.begin(time.Now(), b, j.by, s.why(j))
	if !ok {
		return false // it left, holds something else, or failed another, between the choice and now
	}
	j.o = outcome{begun: g, layer: b.Layer, sent: b.Rows, sentPicks: len(b.Expert)}
	o := &j.o
	if n := len(j.tried); n > 0 {
		o.instead = j.tried[n-1]
	}
	err := s.dispatch(j, m, o)
	if err == nil {
		j.tried = append(j.tried, m)
		wide := s.settle(j, m, o)
		m.finish(o)
		s.trace.note(m, o)
		if wide != nil {
			s.serve(wide)
		}
		return true
	}
	err = fmt.Errorf("layer %d to %s: %w", b.Layer, m.name, err)
	mine, invalid := s.ctx.Err(), errors.Is(err, moe.ErrInvalid)
	switch o.fails(err); {
	case mine != nil:
		o.verdict = void
	case invalid && !m.local && b.Validate(moe.MaxExperts) == nil:
		o.verdict, invalid = failed, false // a stranger's word ends no call
	}
	m.finish(o)
	s.trace.note(m, o)
	if mine != nil || invalid {
		s.fail(cmp.Or(mine, err))
		return true
	}
	j.err = err
	if o.verdict != lacking || m.local { // else judge has seen to it that it is not chosen before it holds more
		j.tried = append(j.tried, m)
		if o.verdict == late && !o.hopeless { // else it has been waited for long enough
			j.slow = append(j.slow[:len(j.slow):len(j.slow)], m) // parts may share what is there
		}
	}
	s.mu.Lock()
	s.last = err
	s.mu.Unlock()
	if errors.Is(err, ErrFull) {
		j.full = err
	}
	return false
}

// why says why a job is sent.
func (s *spread) why(j *job) cause {
	switch {
	case s.hurry:
		return hedge
	case j.err != nil || len(j.tried) > 0:
		return again
	}
	return first
}

// dispatch has m compute the job, or others if m is late: then the answer is in place all the same, and
// the verdict is that m was beaten.
func (s *spread) dispatch(j *job, m *Member, o *outcome) error {
	c := s.chase(j, m, o.begun)
	ctx := context.Context(&s.ctx)
	if c != nil {
		ctx = &c.race
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
		if o.fails(err); errors.Is(err, context.Canceled) {
			o.verdict = beaten
		}
		copyAnswer(j.answer, &c.slab.own)
		return nil
	}
	if late {
		o.hopeless = c.stage == untilHopeless // chase has ended: nobody else writes it
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
func (s *spread) settle(j *job, m *Member, o *outcome) (wide *job) {
	if o.verdict == answered { // else the picks are those of the hedge's members
		o.rows, o.picks = j.batch.Rows, len(j.batch.Expert)-s.twice(j, m)
	}
	rows, picks := 0, 0
	for r, status := range j.answer.Status {
		if status == moe.Wide {
			rows++
			picks += int(j.batch.First[r+1] - j.batch.First[r])
		}
	}
	if rows > 0 {
		o.rows, o.picks = max(0, o.rows-rows), max(0, o.picks-picks)
		wide = s.wide(j)
	}
	if j.rows == nil {
		return wide
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		o.rows, o.picks = 0, 0
		return wide
	}
	start := time.Now()
	s.keep(j)
	o.combine = time.Since(start)
	return wide
}

// keep takes the answer of a part into the call's, as far as it is not there, and what was waiting for it. mu
// is held.
func (s *spread) keep(j *job) {
	ready, nobodys := s.ready, int32(len(s.ready)-1)
	for _, place := range j.places {
		if place < 0 {
			place = nobodys // whose a row is a processor cannot guess: this is no branch
		}
		ready[place] = true
	}
	alone := s.missing == len(ready)-1 // nothing of what is to be added can be
	s.missing -= len(j.places) - len(j.adds)
	for i, status := range j.answer.Status {
		if status != moe.OK && j.places[i] >= 0 {
			s.out.Fault(int(j.rows[i]), status)
		}
	}
	s.pending = append(s.pending, j)
	if alone && len(j.adds) > 0 {
		return
	}
	left := s.pending[:0]
	for _, k := range s.pending {
		if s.add(k); len(k.adds) > 0 {
			left = append(left, k)
		}
	}
	clear(s.pending[len(left):])
	s.pending = left
}

// add adds those rows of an answer whose owners have been answered. mu is held.
func (s *spread) add(j *job) {
	now := j.adds
	if s.missing > 0 {
		now = s.due(j)
	} else {
		j.adds = j.adds[:0]
	}
	out, sums, hidden := s.out, j.own.Sum, s.out.Hidden
	rows, places, status := j.rows, j.places, j.answer.Status
	for _, i := range now {
		at := int(^places[i]) * hidden
		out.AddSums(int(rows[i]), status[i], sums[at:at+hidden])
	}
}

// due takes from the rows that are to be added those that can be, without a branch on it. mu is held.
func (s *spread) due(j *job) []int32 {
	now, n, adds := sized(s.now, len(j.adds)), 0, j.adds
	ready, rows := s.ready, j.rows
	for k, i := range adds {
		now[n], adds[k-n] = i, i
		if ready[rows[i]] {
			n++
		}
	}
	s.now, j.adds = now, adds[:len(adds)-n]
	return now[:n]
}

// wide takes the rows that came back Wide out of an answer and returns them as a job. It owns none of them.
func (s *spread) wide(j *job) *job {
	if j.rows == nil {
		s.divide(j, true)
	}
	part := s.part(j)
	part.wide, part.err = true, nil
	b, p := j.batch, part.batch
	for r, status := range j.answer.Status {
		if status != moe.Wide {
			continue
		}
		expert, weight := b.Picks(r)
		p.Expert, p.Weight = append(p.Expert, expert...), append(p.Weight, weight...)
		p.First = append(p.First, int32(len(p.Expert)))
		part.places = append(part.places, ^int32(len(part.adds)))
		part.adds = append(part.adds, int32(len(part.rows)))
		part.rows = append(part.rows, j.row(r))
		j.answer.Status[r] = moe.OK
		clear(j.answer.Row(r))
	}
	*part.sheet = sheet{p.Expert, p.Weight, part.rows}
	s.lend(part)
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
	if s.err != nil {
		return
	}
	j.answer.Reset(len(j.rows), j.batch.Hidden)
	for i := range j.rows {
		j.answer.Fault(i, moe.Wide)
	}
	s.keep(j)
}

// fail ends the whole call.
func (s *spread) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.ctx.end(context.Canceled)
}
