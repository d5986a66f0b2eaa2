package batcher

import (
	"errors"
	"sync"

	"kvasir/internal/moe"
)

// claims says of a call which picks members are paid for, where some may have been asked for one twice. It is
// made when the first answer is given up that may still come.
type claims struct {
	mu   sync.Mutex // a leaf
	paid map[claim]struct{}
}

type claim struct {
	m      *Member
	row    int32 // of the call
	expert uint16
}

// take returns how many picks of a row a member has not been paid for yet. From now on it has.
func (c *claims) take(m *Member, row int32, experts []uint16) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range experts {
		if _, twice := c.paid[claim{m, row, e}]; !twice {
			n++
		}
	}
	for _, e := range experts {
		c.paid[claim{m, row, e}] = struct{}{}
	}
	return n
}

// claims returns those of the call that a spread belongs to, and makes them if they are wanted and not there.
func (s *spread) claims(wanted bool) *claims {
	if s.over != nil {
		return s.over.claims(wanted)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paid == nil && wanted {
		s.paid = &claims{paid: map[claim]struct{}{}}
	}
	return s.paid
}

// rowOf returns which row of the whole call row r of a job is: of that for which a hedge is, if it is one.
func (s *spread) rowOf(j *job, r int) int32 {
	row := j.row(r)
	if s.over != nil {
		row = s.over.rowOf(s.overJob, int(row))
	}
	return row
}

// twice returns how many picks of an answer are of a kind for which m was paid already.
func (s *spread) twice(j *job, m *Member) (n int) {
	c := s.claims(false)
	if c == nil {
		return 0
	}
	for r, status := range j.answer.Status {
		if expert, _ := j.batch.Picks(r); status != moe.Wide {
			n += len(expert) - c.take(m, s.rowOf(j, r), expert)
		}
	}
	return n
}

// Later is an executor that looks at answers which come when others have been used. It may look from many
// goroutines, and keeps nothing.
type Later interface {
	moe.Experts
	AnswerLate(b *moe.Batch, out *moe.Partials)
}

// lateDispatch is one whose answer is not waited for any more, since others were asked for it too. What it
// answers all the same is work, and paid.
type lateDispatch struct {
	m      *Member
	b      *moe.Batch // the dispatch's own rows and picks
	rows   []int32    // which row of the call each is
	claims *claims
}

// Late implements moe.Lates: an answer is of interest if it was given up because others answered first, or may
// answer sooner.
func (c *chase) Late() moe.Late {
	c.mu.Lock()
	lost := c.late || c.hedged && c.err == nil
	c.mu.Unlock()
	if !lost && !errors.Is(c.s.ctx.Err(), errBeaten) {
		return nil
	}
	l := &lateDispatch{m: c.m, b: copyBatch(c.j.batch), claims: c.s.claims(true)}
	for r := range l.b.Rows {
		l.rows = append(l.rows, c.s.rowOf(c.j, r))
	}
	return l
}

// Answer implements moe.Late.
func (l *lateDispatch) Answer(lo int, out *moe.Partials, at, n int) {
	if x, ok := l.m.x.(Later); ok {
		var b moe.Batch
		var sums moe.Partials
		b.Borrow(l.b.Shape)
		b.BorrowRows(l.b, lo, lo+n, nil)
		sums.Borrow(out.Hidden)
		sums.BorrowRows(out, at, at+n, nil)
		sums.Size(n, out.Hidden)
		copy(sums.Status, out.Status[at:at+n])
		x.AnswerLate(&b, &sums)
	}
	picks := 0
	for r := lo; r < lo+n; r++ {
		if expert, _ := l.b.Picks(r); out.Status[at+r-lo] != moe.Wide {
			picks += l.claims.take(l.m, l.rows[r], expert)
		}
	}
	l.m.answeredLate(l.b.Layer, picks)
}

// copyBatch returns a batch with memory of its own.
func copyBatch(b *moe.Batch) *moe.Batch {
	c, err := moe.NewBatch(b.Shape, b.Rows, len(b.Expert))
	if err != nil {
		panic("BUG: " + err.Error()) // it was valid
	}
	c.Reset(b.Layer)
	for r := range b.Rows {
		copyRow(c.Row(c.Grow(b.Picks(r))), b.Row(r))
	}
	return c
}
