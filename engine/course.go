package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"kvasir/engine/audit"
	"kvasir/engine/ledger"
	"kvasir/wire/seal"
)

// unsureRows is how many rows are to be right where nobody knows how many were drawn and not judged: of reports that
// a disk has refused or damaged, and a process that was killed.
const unsureRows = 64

// errBehind: the hub has newer reports of a session than this backbone knew.
var errBehind = errors.New("the hub has reports that this backbone's disk has not; they are gone on from")

// course is how far a session has come, as the disk has it.
type course struct {
	begun  bool           // it is on the disk
	stored int64          // sequence of the newest report that is there with it
	rows   map[int64]bool // that are there
	newest *ledger.Report // that was signed; nil: none
	signed []byte         // newest
	ended  bool           // no work comes any more
}

// courses reports whether sessions are to go on after the process: where rows are checked, and there is a disk.
func (s *Swarm) courses() bool { return s.auditor != nil && s.c.Outbox != nil }

// begin puts the session on the disk, if it is not there: else nobody knew of its reports after the process.
func (a *accounts) begin(ctx context.Context) error {
	if !a.s.courses() || a.course.begun {
		return nil
	}
	err := a.s.c.Outbox.PutStep(ctx, a.s.auditor.drawn, nil, a.step())
	a.course.begun = err == nil
	return err
}

// step is what the disk is to have of the session now.
func (a *accounts) step() *ledger.Step {
	c := &a.course
	s := &ledger.Step{
		Course: ledger.Course{Subject: a.subject, Hub: a.hub, Report: c.signed, At: time.Now()}, Over: a.over(),
	}
	rows, lost := a.w.checked.w.Pending()
	s.Undecided, s.Lost = len(rows), lost
	open := map[int64]bool{}
	for _, d := range rows {
		if open[d.ID] = true; !c.rows[d.ID] {
			s.Drawn = append(s.Drawn, ledger.DrawnRow{ID: d.ID, Sealed: a.s.auditor.sealRow(a.subject.Session, &d)})
		}
	}
	for id := range c.rows {
		if !open[id] {
			s.Gone = append(s.Gone, id)
		}
	}
	return s
}

// stepped notes that the disk has a step.
func (a *accounts) stepped(s *ledger.Step) {
	c := &a.course
	c.begun = !s.Over
	if c.newest != nil {
		c.stored = c.newest.Sequence
	}
	for _, d := range s.Drawn {
		c.rows[d.ID] = true
	}
	for _, id := range s.Gone {
		delete(c.rows, id)
	}
}

// over reports whether nothing of the session is pending, and nothing will be.
func (a *accounts) over() bool {
	r := a.course.newest
	return a.course.ended && (r == nil || r.Holds == r.Sequence || r.Wrong > 0)
}

// close forgets a session that is over. What the disk refuses is closed by the next process.
func (a *accounts) close() {
	if !a.s.courses() || !a.course.begun || !a.over() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), recordTime)
	defer cancel()
	_ = a.s.c.Outbox.PutStep(ctx, a.s.auditor.drawn, nil, a.step()) // see above
}

// resume goes on with the sessions of the processes before, in goroutines that end with ctx, or when a session's
// rows are judged and a report says so.
func (s *Swarm) resume(ctx context.Context) {
	if !s.courses() {
		return
	}
	limited, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	all, refused, err := s.c.Outbox.Courses(limited, s.auditor.drawn, s.c.Key.Public())
	if s.c.Log != nil {
		for _, why := range refused[:min(len(refused), maxTold)] {
			s.c.Log.Warn("what is known of a session before the start is damaged; as far as its report is there, others of its worker's rows are to be right instead of those that wait", "error", why)
		}
		if err != nil {
			s.c.Log.Error("the sessions before the start cannot be read; what is pending in them waits for the next start", "error", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range all[:min(len(all), maxJudged)] {
		a, err := s.resumed(limited, &all[i])
		if err != nil {
			if s.c.Log != nil {
				s.c.Log.Warn("a session before the start cannot be gone on with", "session", all[i].Session, "error", err)
			}
			continue
		}
		s.judged = append(s.judged, a.w)
		s.wg.Go(func() { a.goOn(ctx) })
	}
}

// resumed makes the accounts of a session of a process before.
func (s *Swarm) resumed(ctx context.Context, c *ledger.Course) (*accounts, error) {
	rows, lost, err := s.drawnRows(ctx, c)
	if err != nil {
		return nil, err
	}
	w := &attached{id: c.Worker.Short(), key: c.Worker, hub: c.Hub, drain: func(error) {}}
	a := &accounts{s: s, w: w, hub: c.Hub, subject: c.Subject, reporter: ledger.NewReporter(s.c.Key, c.Subject)}
	a.course = course{begun: true, ended: true, rows: map[int64]bool{}}
	past := audit.Past{Rows: rows, Lost: lost}
	if len(c.Report) > 0 {
		r, err := ledger.Verify(c.Report)
		if err == nil {
			err = a.reporter.Resume(c.Report)
		}
		if err != nil {
			return nil, err
		}
		a.course.newest, a.course.signed, a.course.stored = &r, c.Report, r.Sequence
		past.Turns, past.Through = r.Sequence, r.Holds
		if r.Wrong > 0 { // all before it is void
			past = audit.Past{Turns: r.Sequence, Through: r.Sequence}
		}
	}
	w.checked = s.auditor.resume(c.Worker, past)
	return a, nil
}

// drawnRows returns the rows of a session that can still be judged, and how many cannot.
func (s *Swarm) drawnRows(ctx context.Context, c *ledger.Course) (rows []audit.Drawn, lost int, err error) {
	list, err := s.c.Outbox.DrawnRows(ctx, c.Session)
	if err != nil {
		return nil, 0, err
	}
	if c.Unsure {
		return nil, unsureRows, nil
	}
	served := c.Model == ledger.Hash(s.c.Model.Hash) && c.Profile == ledger.Hash(s.c.Model.Profile)
	for _, r := range list {
		d, err := s.auditor.openRow(c.Session, &r)
		if err == nil && served {
			rows = append(rows, d)
		}
	}
	return rows, c.Lost + max(0, c.Undecided-len(rows)), nil
}

// goOn has what is left of a session before the start judged, and reports what came of it.
func (a *accounts) goOn(ctx context.Context) {
	s := a.s
	tick := time.NewTicker(s.c.Rhythm.decided())
	defer tick.Stop()
	for told := false; !told && !a.never; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return // the disk has it
		}
		if !a.w.checked.open() {
			told = a.tell(reportEvery, false)
		}
	}
	s.mu.Lock()
	s.judged = slices.DeleteFunc(s.judged, func(x *attached) bool { return x == a.w })
	s.mu.Unlock()
	a.prove()
}

// behind goes on from a report that this backbone has signed and its disk does not have. It returns false where that
// is none.
func (a *accounts) behind(newest string) bool {
	signed, err := hex.DecodeString(newest)
	if err != nil || len(signed) == 0 || !a.course.ended {
		return false
	}
	r, err := ledger.Verify(signed)
	if err != nil || r.Sequence < a.course.newest.Sequence || a.reporter.Resume(signed) != nil {
		return false
	}
	a.w.checked.skip(&r)
	a.course.newest, a.course.signed = &r, signed
	return true
}

// sealRow makes of a row what the disk is to have.
func (a *auditor) sealRow(session ledger.SessionID, d *audit.Drawn) []byte {
	var text bytes.Buffer
	if err := gob.NewEncoder(&text).Encode(d); err != nil {
		panic("BUG: " + err.Error()) // numbers
	}
	return sealText(&a.drawn, text.Bytes(), rowName(session, d.ID))
}

func (a *auditor) openRow(session ledger.SessionID, r *ledger.DrawnRow) (d audit.Drawn, err error) {
	text, err := openText(&a.drawn, r.Sealed, rowName(session, r.ID))
	if err != nil {
		return d, fmt.Errorf("row %d of session %s: %w", r.ID, session, err)
	}
	if err := gob.NewDecoder(bytes.NewReader(text)).Decode(&d); err != nil {
		return d, fmt.Errorf("row %d of session %s: %w", r.ID, session, err)
	}
	return d, nil
}

func rowName(session ledger.SessionID, id int64) []byte {
	return binary.BigEndian.AppendUint64(session[:], uint64(id))
}

// skip goes on from a report that was not known, of which nobody knows what was drawn.
func (c *checked) skip(r *ledger.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closing = true
	through, lost := r.Holds, unsureRows
	if r.Wrong > 0 || r.Holds == r.Sequence {
		through, lost = r.Sequence, 0
	}
	c.w.Skip(r.Sequence, through, lost)
}

// resume is begin for a session of a process before.
func (a *auditor) resume(key seal.PublicKey, past audit.Past) *checked {
	a.mu.Lock()
	k := a.known[key]
	if k == nil {
		k = a.about(key)
	}
	c := &checked{a: a, w: a.a.Resume(key, k.record, past)}
	a.mu.Unlock()
	c.closing = true
	if a.o.Guilty != nil {
		if evidence, guilty := a.o.Guilty(key); guilty {
			c.convict(named(evidence), 0)
		}
	}
	return c
}
