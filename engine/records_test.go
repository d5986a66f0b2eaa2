package engine

import (
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"kvasir/engine/audit"
	"kvasir/wire/seal"
)

// TestWhatIsKnownOfWorkersOutlivesTheBackbone stops a backbone, and starts it anew: of its workers one has proved
// itself, one is half-way, one was convicted, and of one the record is damaged meanwhile.
func TestWhatIsKnownOfWorkersOutlivesTheBackbone(t *testing.T) {
	v := newTown(t)
	proven, half, cheat, spoilt := seal.NewKey(), seal.NewKey(), seal.NewKey(), seal.NewKey()
	prove := func(key seal.Key, enough func(w *WorkerStats) bool) {
		t.Helper()
		w := v.worker(key, nil)
		v.arrives(key)
		v.until("rows are right", func() bool {
			v.generate(4, 1)
			here := v.find(key)
			return here != nil && enough(here)
		})
		v.until("no row waits", func() bool { n, _ := v.backbone.swarm.auditor.a.Waiting(); return n == 0 })
		_ = w.stop()
		v.until("it has left", func() bool { return v.find(key) == nil })
	}
	passed := func(w *WorkerStats) bool { return w.Wanted == 0 }
	prove(proven, passed)
	prove(spoilt, passed)
	prove(half, func(w *WorkerStats) bool { return w.Right > 20 })
	v.worker(cheat, wrong)
	v.arrives(cheat)
	v.until("it is convicted", func() bool {
		v.generate(4, 1)
		return v.log.count("it is sent away") > 0
	})
	was := v.backbone.swarm.auditor.of(half.Public())
	v.stop()

	path := filepath.Join(string(v.home), "backbone.receipts.db")
	db, err := sql.Open("sqlite", path)
	v.must(err)
	_, err = db.ExecContext(v.ctx, "UPDATE records SET good = 511 WHERE worker = $1", spoilt.Public().String())
	v.must(errors.Join(err, db.Close()))
	v.start()
	for _, key := range []seal.Key{proven, half, spoilt} {
		v.worker(key, nil)
		v.arrives(key)
	}
	if w := v.find(proven); w.Wanted != 0 || w.Right < 512 {
		t.Errorf("who has proved itself is on trial: %d rows right, %d more are wanted", w.Right, w.Wanted)
	}
	if w := v.find(half); was.Good() < 20 || was.Good() >= 512 || int64(w.Wanted) != 512-was.Good() || w.Right != was.Right() {
		t.Errorf("half-way: %d rows right, %d more are wanted, of which %d were", w.Right, w.Wanted, was.Good())
	}
	if w := v.find(spoilt); w.Wanted != 512 || w.Right != 0 {
		t.Errorf("a damaged record: %d rows right, %d more are wanted", w.Right, w.Wanted)
	}
	for _, w := range v.backbone.Metrics().Workers {
		if on := w.ID != proven.Public().Short(); w.Trial != on {
			t.Errorf("worker %s is on trial: %v", w.ID, w.Trial)
		}
	}
	if v.log.count("the record of worker "+spoilt.Public().Short()) != 1 || v.backbone.Counts()["refused_ledger_damaged"] != 1 {
		t.Errorf("the damaged record is to be told once, and counted; said:\n%s", v.log)
	}
	if err := v.backbone.swarm.c.Refuse(seal.Proof{Key: cheat.Public()}); !errors.Is(err, ErrConvicted) {
		t.Errorf("who was convicted is let in: %v", err)
	}
	v.worker(cheat, nil)
	v.until("the cheat is refused", func() bool { return v.log.count("found wrong on") > 0 })
	if v.find(cheat) != nil {
		t.Error("the cheat is back")
	}
	if b := v.balance(proven); b.Settled == 0 {
		t.Errorf("nothing is settled for who has proved itself: %+v", b)
	}
	v.verify()
}

// of returns the record of a worker, or nil.
func (a *auditor) of(key seal.PublicKey) *audit.Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	if k := a.known[key]; k != nil {
		return k.record
	}
	return nil
}
