package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"kvasir/batcher"
	"kvasir/engine/ledger"
	"kvasir/wire"
)

// reportEvery is how often a backbone signs what a worker has done.
const reportEvery = 10 * time.Second

// reportLast is how long the last report of a session may take.
const reportLast = 5 * time.Second

// How it is found out that the rows of a worker that has left are decided, and of how many at a time.
const (
	decidedEvery = time.Second
	maxJudged    = 1024
)

// accounts signs the work of one worker and hands it to the worker's hub.
type accounts struct {
	s        *Swarm
	w        *attached
	hub      string
	reporter *ledger.Reporter
	picks    []batcher.LayerPicks
	told     ledger.Traffic // that reports have told
	refused  bool           // said once
}

// newAccounts returns nil for a session that no ledger knows by its id.
func (s *Swarm) newAccounts(w *attached, hub, session string) *accounts {
	id, err := ledger.ParseSessionID(session)
	if err != nil {
		return nil
	}
	return &accounts{s: s, w: w, hub: hub, reporter: ledger.NewReporter(s.c.Key, ledger.Subject{
		Session: id, Worker: w.key, Model: ledger.Hash(s.c.Model.Hash), Profile: ledger.Hash(s.c.Model.Profile),
		Hidden: s.c.Model.Hidden,
	})}
}

// keep reports until done is closed, and once more after it.
func (a *accounts) keep(done <-chan struct{}) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.report(reportEvery)
		case <-done:
			a.report(reportLast)
			return
		}
	}
}

// after reports what becomes of the rows of a worker that has left: until they are decided nothing settles that
// was signed since they were drawn, and then it holds, or is void. It begins a goroutine, which ends when that is
// told, or ctx ends; with too many of them it does not. Swarm.mu is held.
func (a *accounts) after(ctx context.Context) {
	if a == nil {
		return // nobody reports
	}
	s, w := a.s, a.w
	if !w.checked.open() && !w.checked.news() || len(s.judged) >= maxJudged {
		return
	}
	s.judged = append(s.judged, w)
	s.wg.Go(func() {
		tick := time.NewTicker(decidedEvery)
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
		a.report(reportLast)
	})
}

// report hands over what has been done since the last report, and what the hub has not confirmed.
func (a *accounts) report(limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := a.count()
	for err == nil {
		var signed []byte
		if signed, err = a.reporter.Report(time.Now(), a.w.checked.news(), a.news); err != nil || signed == nil {
			break
		}
		if err = a.s.keepReport(ctx, a.hub, signed); err != nil {
			break
		}
		var given ledger.Given
		if given, err = a.s.giveReport(ctx, a.hub, signed); err != nil {
			break
		}
		var r ledger.Report
		if r, err = ledger.Parse(signed); err == nil {
			a.reporter.Done(r.Sequence)
			if a.s.c.Outbox != nil {
				err = a.s.c.Outbox.Took(ctx, a.hub, &r, given)
			}
			// The worker learns what was signed for it; one that has left looks into its wallet.
			_ = a.w.session.SendReceipt(wire.Receipt{Sequence: uint64(r.Sequence), Signed: signed})
		}
	}
	if err != nil && !a.refused && a.s.c.Log != nil {
		a.refused = true
		a.s.c.Log.Warn("work is not on the hub's ledger yet; it is reported again", "worker", a.w.id, "error", err)
	}
}

// news is ledger.News.
func (a *accounts) news(int64) (t ledger.Traffic, c ledger.Audit) {
	stats := a.w.session.Stats()
	now := ledger.Traffic{ToWorker: int64(stats.BytesOut), ToBackbone: int64(stats.BytesIn)}
	t = ledger.Traffic{ToWorker: now.ToWorker - a.told.ToWorker, ToBackbone: now.ToBackbone - a.told.ToBackbone}
	a.told = now
	return t, a.w.checked.turn()
}

func (a *accounts) count() error {
	a.picks = a.w.member.Drain(a.picks[:0])
	for _, p := range a.picks {
		if err := a.reporter.Count(p.Layer, p.Picks); err != nil {
			return fmt.Errorf("count picks of layer %d: %w", p.Layer, err)
		}
	}
	return nil
}

// keepReport puts a report on the disk before the hub gets it: the hub may lose it again.
func (s *Swarm) keepReport(ctx context.Context, hub string, signed []byte) error {
	if s.c.Outbox == nil {
		return nil
	}
	return s.c.Outbox.Put(ctx, ledger.Item{Hub: hub, Grant: s.c.Grant, Report: signed})
}

// remind gives the hubs what no gateway has read, until ctx ends.
func (s *Swarm) remind(ctx context.Context) {
	tick := time.NewTicker(clerkEvery)
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
