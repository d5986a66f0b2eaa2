package engine

import (
	"context"
	"time"

	"kvasir/engine/audit"
	"kvasir/engine/ledger"
	"kvasir/wire/seal"
)

// known is what is remembered of a worker. It outlives the session, and with an outbox the process.
type known struct {
	record *audit.Record
	token  seal.TokenID  // by which it came last, to this process
	kept   ledger.Record // what the outbox has of it
	at     time.Time     // when it came last, or its record changed
}

// maxKnown is how many workers are remembered. Beyond it those are forgotten that were not heard of for the longest
// time.
const maxKnown = ledger.MaxRecords

// recordTime bounds the writing of what is known.
const recordTime = 5 * time.Second

// load reads what the processes before knew of workers.
func (a *auditor) load(ctx context.Context) {
	if a.s.c.Outbox == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	list, refused, err := a.s.c.Outbox.Records(ctx, a.secret)
	if a.s.c.Log != nil {
		for i, why := range refused {
			if i == maxTold {
				a.s.c.Log.Warn("more records of workers are damaged; all of these workers begin anew", "records", len(refused)-i)
				break
			}
			a.s.c.Log.Warn("a record of a worker is damaged; it is on trial again as a new one is", "error", why)
		}
		if err != nil {
			a.s.c.Log.Error("what is known of workers cannot be read; all are on trial as new ones are", "error", err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range list {
		a.known[r.Worker] = &known{record: audit.NewRecord(int(r.Good), r.Right), kept: r, at: r.At}
	}
}

// maxTold is how many damaged records are told one by one.
const maxTold = 16

// about returns what is known of a worker, who has come. a.mu is held.
func (a *auditor) about(key seal.PublicKey) *known {
	k := a.known[key]
	if k == nil {
		if len(a.known) >= maxKnown {
			a.forget()
		}
		k = &known{record: audit.NewRecord(0, 0)}
		a.known[key] = k
	}
	k.at = time.Now()
	return k
}

// forget forgets who was not heard of for the longest time. a.mu is held.
func (a *auditor) forget() {
	var oldest seal.PublicKey
	var at time.Time
	for key, k := range a.known {
		if at.IsZero() || k.at.Before(at) {
			oldest, at = key, k.at
		}
	}
	delete(a.known, oldest)
}

// changed has what is known written soon.
func (a *auditor) changed() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// keep writes what is known, as often as reports are signed, and when a probation begins or ends, until ctx ends.
func (a *auditor) keep(ctx context.Context) {
	tick := time.NewTicker(a.s.c.Rhythm.report())
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-a.wake:
		case <-ctx.Done():
			return
		}
		a.save(ctx)
		a.retry()
	}
}

// retry writes what convictions the disk has refused. A nil auditor has none.
func (a *auditor) retry() {
	if a == nil || a.o.Retry == nil {
		return
	}
	if n, _ := a.o.Retry(); n > 0 && a.s.c.Log != nil { // the error was told with the conviction
		a.s.c.Log.Info("convictions that the disk had refused are written", "workers", n)
	}
}

// save writes what has changed of what is known. What the disk refuses, of which the outbox tells, is written the
// next time. A nil auditor knows nothing.
func (a *auditor) save(ctx context.Context) {
	if a == nil || a.s.c.Outbox == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	a.saving.Lock()
	defer a.saving.Unlock()
	var list []ledger.Record
	now := time.Now()
	a.mu.Lock()
	for key, k := range a.known {
		r := ledger.Record{Worker: key, Good: k.record.Good(), Right: k.record.Right(), At: now}
		if r.Good != k.kept.Good || r.Right != k.kept.Right {
			k.at = now
			list = append(list, r)
		}
	}
	a.mu.Unlock()
	if len(list) == 0 {
		return
	}
	if err := a.s.c.Outbox.KeepRecords(ctx, a.secret, list); err != nil {
		if unlessUnwritten(err) != nil && a.s.c.Log != nil {
			a.s.c.Log.Warn("what is known of workers is not written", "error", err)
		}
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range list {
		if k := a.known[list[i].Worker]; k != nil {
			k.kept = list[i]
		}
	}
}

// standing is what checking has found of a worker, of all its sessions.
func (c *checked) standing() (right int64, wanted int) {
	if c == nil {
		return 0, 0
	}
	return c.w.Right(), c.w.Wanted()
}
