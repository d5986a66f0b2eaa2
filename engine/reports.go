package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"kvasir/batcher"
	"kvasir/engine/ledger"
	"kvasir/wire"
)

// reportLast is how long the last report of a session may take.
const reportLast = 5 * time.Second

// maxJudged is how many sessions that have ended have rows that are not decided, or wait for their worker.
const maxJudged = 1024

// accounts signs the work of one worker and hands it to the worker's hub.
type accounts struct {
	s        *Swarm
	w        *attached
	hub      string
	subject  ledger.Subject
	reporter *ledger.Reporter
	course   course
	picks    []batcher.LayerPicks
	told     ledger.Traffic // that reports have told
	refused  bool           // said once
	never    bool           // the hub will never take a report
}

// newAccounts returns nil for a session that no ledger knows by its id.
func (s *Swarm) newAccounts(w *attached, hub, session string) *accounts {
	id, err := ledger.ParseSessionID(session)
	if err != nil {
		return nil
	}
	about := ledger.Subject{
		Session: id, Worker: w.key, Model: ledger.Hash(s.c.Model.Hash), Profile: ledger.Hash(s.c.Model.Profile),
		Hidden: s.c.Model.Hidden,
	}
	return &accounts{
		s: s, w: w, hub: hub, subject: about, reporter: ledger.NewReporter(s.c.Key, about), course: course{rows: map[int64]bool{}},
	}
}

// keep reports until done is closed, and once more after it.
func (a *accounts) keep(done <-chan struct{}) {
	every := a.s.c.Rhythm.report()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.report(reportEvery, false)
		case <-done:
			a.course.ended = true
			a.report(reportLast, true)
			return
		}
	}
}

// after reports what becomes of the rows of a worker that has left: until they are decided nothing settles that
// was signed since they were drawn, and then it holds, or is void. It begins a goroutine, which ends when that is
// told, or ctx ends; with too many of them it does not, and the next process does that. What is pending because the
// worker is in probation, or rows are to be right instead of others, waits for a later session of the same worker.
// Swarm.mu is held.
func (a *accounts) after(ctx context.Context) {
	if a == nil {
		return // nobody reports
	}
	s, w := a.s, a.w
	if len(s.judged) >= maxJudged {
		return
	}
	s.judged = append(s.judged, w)
	s.wg.Go(func() {
		tick := time.NewTicker(s.c.Rhythm.decided())
		defer tick.Stop()
		for w.checked.open() && ctx.Err() == nil {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		s.mu.Lock()
		s.judged = slices.DeleteFunc(s.judged, func(x *attached) bool { return x == w })
		s.mu.Unlock()
		if w.checked.news() {
			a.report(reportLast, true)
		}
		a.prove()
	})
}

// prove keeps the accounts of a session that has ended until all is decided that is pending in it, by later
// sessions of its worker.
func (a *accounts) prove() {
	s := a.s
	if a.w.checked.convicted() || !a.w.checked.proving() {
		a.close()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.proving) == maxJudged {
		s.proving = slices.Delete(s.proving, 0, 1) // the next process goes on with it
	}
	s.proving = append(s.proving, a)
}

// report hands over what has been done since the last report, and what the hub has not confirmed; and of the
// worker's sessions before, once all of their rows are decided and it has proved itself, that they hold.
func (a *accounts) report(limit time.Duration, last bool) {
	if a.tell(limit, last); a.w.checked.probation() {
		return
	}
	s := a.s
	s.mu.Lock()
	var mine []*accounts
	s.proving = slices.DeleteFunc(s.proving, func(x *accounts) bool {
		ready := x.w.key == a.w.key && x != a && x.w.checked.decided()
		if ready {
			mine = append(mine, x)
		}
		return ready
	})
	s.mu.Unlock()
	for _, x := range mine {
		if x.tell(limit, true) {
			x.close()
		} else { // tried again at the next report
			s.mu.Lock()
			s.proving = append(s.proving, x)
			s.mu.Unlock()
		}
	}
}

// tell is report for one session alone. While the session goes on, one report waits for the hub, and the next one
// becomes larger. The last one is signed in any case, if what waits is kept here: nobody counts any more what is not
// signed then. It returns false when not all is on the hub's ledger.
func (a *accounts) tell(limit time.Duration, last bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var wait []*signedReport
	err := a.begin(ctx)
	if last {
		err = unlessUnwritten(err) // the hub's word is better than none
	}
	if err == nil {
		err = a.count()
	}
	for err == nil {
		var r *signedReport
		if r, err = a.sign(ctx); err != nil || r == nil {
			break
		}
		if last && a.s.c.Outbox != nil && r.kept {
			a.reporter.Done(r.Sequence)
			wait = append(wait, r)
			continue
		}
		err = a.give(ctx, r)
	}
	for _, r := range wait {
		if err == nil {
			err = a.give(ctx, r)
		}
	}
	if unlessUnwritten(err) != nil && !a.refused && a.s.c.Log != nil {
		a.refused = true
		a.s.c.Log.Warn("work is not on the hub's ledger yet; it is reported again", "worker", a.w.id, "error", err)
	}
	return err == nil
}

// signedReport is a report with the bytes that were signed.
type signedReport struct {
	ledger.Report
	signed []byte
	kept   bool // here; it is not where the disk refuses that
}

// sign returns a report that is kept here, or nil where there is nothing to say.
func (a *accounts) sign(ctx context.Context) (*signedReport, error) {
	signed, err := a.reporter.Report(time.Now(), a.w.checked.news(), a.news)
	if err != nil || signed == nil {
		return nil, err
	}
	r := &signedReport{signed: signed}
	if r.Report, err = ledger.Parse(signed); err != nil {
		return nil, err
	}
	a.w.signed.add(&r.Report)
	a.course.newest, a.course.signed = &r.Report, signed
	err = a.keepReport(ctx, r)
	if r.kept = err == nil; unlessUnwritten(err) != nil {
		return nil, err
	}
	if a.s.c.Log != nil {
		a.s.c.Log.Debug("report signed", "session", r.Session, "sequence", r.Sequence, "hash", fmt.Sprintf("%x", ledger.HashOf(signed)))
	}
	return r, nil
}

// unlessUnwritten is an error of an outbox, without that it could not be written: it says that itself, the hub's
// acknowledgement is one all the same, and a hub that is given a report twice takes it once.
func unlessUnwritten(err error) error {
	if errors.Is(err, ledger.ErrUnwritten) {
		return nil
	}
	return err
}

// give gives a report to the hub, and then to the worker.
func (a *accounts) give(ctx context.Context, r *signedReport) error {
	given, err := a.s.giveReport(ctx, a.hub, r.signed)
	if err != nil {
		if a.behind(given.Newest) {
			return errBehind
		}
		a.never = given.Refused != ""
		return err
	}
	a.reporter.Done(r.Sequence)
	if a.s.c.Outbox != nil {
		err = unlessUnwritten(a.s.c.Outbox.Took(ctx, a.hub, &r.Report, given))
	}
	// The worker learns what was signed for it; one that has left looks into its wallet.
	if a.w.session == nil {
		return err // it has left long ago
	}
	_ = a.w.session.SendReceipt(wire.Receipt{Sequence: uint64(r.Sequence), Signed: r.signed})
	return err
}

// news is ledger.News.
func (a *accounts) news(int64) (t ledger.Traffic, c ledger.Audit) {
	if a.w.session == nil { // of a process before
		return t, a.w.checked.turn()
	}
	stats := a.w.session.Stats()
	now := ledger.Traffic{ToWorker: int64(stats.BytesOut), ToBackbone: int64(stats.BytesIn)}
	t = ledger.Traffic{ToWorker: now.ToWorker - a.told.ToWorker, ToBackbone: now.ToBackbone - a.told.ToBackbone}
	a.told = now
	return t, a.w.checked.turn()
}

func (a *accounts) count() error {
	if a.w.member == nil {
		return nil // of a process before
	}
	a.picks = a.w.member.Drain(a.picks[:0])
	for _, p := range a.picks {
		if err := a.reporter.Count(p.Layer, p.Picks); err != nil {
			return fmt.Errorf("count picks of layer %d: %w", p.Layer, err)
		}
	}
	return nil
}

// keepReport puts a report on the disk before the hub gets it: the hub may lose it again. With it goes how far the
// session has come.
func (a *accounts) keepReport(ctx context.Context, r *signedReport) error {
	s := a.s
	if s.c.Outbox == nil {
		return nil
	}
	i := ledger.Item{Hub: a.hub, Grant: s.c.Grant, Report: r.signed}
	if !s.courses() {
		return s.c.Outbox.Put(ctx, i)
	}
	if a.course.stored == r.Sequence {
		return nil // said again
	}
	step := a.step()
	err := s.c.Outbox.PutStep(ctx, s.auditor.drawn, &i, step)
	if err == nil {
		a.stepped(step)
	}
	return err
}

// remind gives the hubs what no gateway has read, until ctx ends.
func (s *Swarm) remind(ctx context.Context) {
	tick := time.NewTicker(s.c.Rhythm.remind())
	defer tick.Stop()
	for {
		for _, h := range s.c.Hubs {
			_ = s.c.Outbox.Flush(ctx, h.Hub, func(ctx context.Context, i ledger.Item) (ledger.Given, error) {
				g, err := s.giveReport(ctx, h.Hub, i.Report)
				if g.Refused != "" {
					err = nil
				}
				return g, err
			}) // a hub that is away is told of elsewhere; it is tried again
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// giveReport hands a report to a hub. An error beside Given.Refused says that it will never be taken.
func (s *Swarm) giveReport(ctx context.Context, hub string, signed []byte) (g ledger.Given, err error) {
	ctx, cancel := context.WithTimeout(ctx, reportEvery)
	defer cancel()
	answer, err := s.backbone.Report(ctx, hub, signed)
	if len(answer) > 0 { // else the hub is away, or of an older version
		if jerr := json.Unmarshal(answer, &g); jerr != nil {
			return ledger.Given{}, jerr
		}
	}
	return g, err
}
