package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"kvasir/engine/ledger"
	"kvasir/engine/worker"
	"kvasir/internal/baddisk"
	"kvasir/wire/seal"
)

// villager is a worker of a town as kvasir worker makes it, with a clock that is passed.
type villager struct {
	*WorkerNode
	key    seal.Key
	ahead  atomic.Int64 // nanoseconds by which its clock is ahead
	unpaid atomic.Int64 // sessions that it has left because nothing was signed
}

func (v *town) villager() *villager {
	v.t.Helper()
	w := &villager{}
	n, err := NewWorkerNode(v.ctx, WorkerOptions{
		Home: v.home, Join: v.token(), Memory: 64 << 20, Cache: v.t.TempDir(), Rate: 1_000_000, Log: v.logger(), Rhythm: townRhythm,
		Now: func() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) },
		Lost: func(err error, _ time.Duration) {
			if errors.Is(err, worker.ErrUnsigned) {
				w.unpaid.Add(1)
			}
		},
	})
	v.must(err)
	w.WorkerNode = n
	w.key, err = v.home.Key(seal.Worker)
	v.must(err)
	ctx, cancel := context.WithCancel(v.ctx)
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		if err := n.Run(ctx); err != nil {
			v.t.Error(err)
		}
	}()
	v.t.Cleanup(func() {
		cancel()
		<-ended
		n.Close()
	})
	return w
}

// read is how far the gateway has read the hub, and the hub's last entry.
func (v *town) read() (read, last int64) {
	v.t.Helper()
	err := errors.New("no feed")
	for _, feed := range v.gateway.wallets.feeds {
		var p ledger.Page
		p, err = feed.After(v.ctx, ledger.Mark{}, 1)
		last = p.Last
	}
	v.must(err)
	b := v.balance(v.workerKey())
	return b.Picks, last
}

func (v *town) workerKey() seal.Key {
	v.t.Helper()
	k, err := v.home.Key(seal.Worker)
	v.must(err)
	return k
}

// TestAPartyWhoseDiskRefuses has the disk of one party at a time be full, or fail to sync, while a worker works: text
// is made all the same, the party says in one line what is the matter, nothing moves that would have to stand there,
// and once the disk writes again all comes right: each pick is credited, once, and read by all.
func TestAPartyWhoseDiskRefuses(t *testing.T) {
	for _, party := range []struct {
		name, file string
		stands     func(t *testing.T, v *town, w *villager) // while the disk refuses
	}{
		{"worker", "worker.receipts.db", func(t *testing.T, v *town, w *villager) {
			v.until("the worker stops", func() bool { // a minute of work with no receipt on the disk is enough
				v.generate(4, 1)
				w.ahead.Add(int64(5 * time.Second))
				return w.unpaid.Load() > 0
			})
		}},
		{"hub", "hub.db", func(t *testing.T, v *town, w *villager) {
			_, before := v.read()
			v.generate(16, 2)
			if _, after := v.read(); after != before {
				t.Errorf("the hub has %d entries, %d before", after, before)
			}
			if w.unpaid.Load() > 0 {
				t.Error("the worker has stopped within seconds")
			}
		}},
		{"gateway", "wallet.db", func(t *testing.T, v *town, w *villager) {
			before, entries := v.read()
			v.generate(16, 2)
			v.until("the hub has more", func() bool { _, n := v.read(); return n > entries })
			if after, _ := v.read(); after != before {
				t.Errorf("%d picks are credited, %d before", after, before)
			}
			if n := w.Status().Unread; n == 0 {
				t.Error("the worker has forgotten what no gateway has read")
			}
		}},
		{"backbone", "backbone.receipts.db", func(t *testing.T, v *town, _ *villager) {
			before, _ := v.read()
			v.generate(16, 2)
			v.until("the hub's word is enough", func() bool { after, _ := v.read(); return after > before })
		}},
	} {
		for name, fault := range map[string]baddisk.Fault{"full": baddisk.Full, "fsync": baddisk.Fsync} {
			t.Run(party.name+" "+name, func(t *testing.T) {
				folder := t.TempDir()
				d, err := baddisk.New(folder)
				if err != nil {
					t.Fatal(err)
				}
				v := newTownAt(t, folder)
				w := v.villager()
				v.arrives(w.key)
				v.until("work is credited", func() bool { v.generate(4, 1); return v.balance(w.key).Picks > 0 })

				d.Refuse(party.file, fault)
				v.until("the party says so", func() bool {
					v.generate(4, 1)
					return v.log.count("the ledger cannot be written") > 0
				})
				party.stands(t, v, w)
				d.Refuse("", baddisk.None)

				v.until("the party says that it is over", func() bool {
					v.generate(4, 1)
					return v.log.count("the ledger is written again") == v.log.count("the ledger cannot be written")
				})
				v.arrives(w.key)
				v.until("all is credited, and read", func() bool {
					return v.balance(w.key).Picks == v.picks(w.key) && w.Status().Unread == 0
				})
				v.verify()
				// The hub's file is also written by the gateway beside it, which marks how far it has read.
				failed, again := v.log.count("the ledger cannot be written"), v.log.count("the ledger is written again")
				if failed != again || failed > 1 && party.name != "hub" || failed > 2 {
					t.Errorf("said %d times, and %d times that it is over:\n%s", failed, again, v.log)
				}
			})
		}
	}
}

// TestABackboneWhoseDiskRefusesIsKilled has a backbone sign on the hub's word alone, and be killed then: the next one,
// whose disk is well, goes on from what the hub has, and all is settled when other rows of the worker were right.
func TestABackboneWhoseDiskRefusesIsKilled(t *testing.T) {
	folder := t.TempDir()
	d, err := baddisk.New(folder)
	if err != nil {
		t.Fatal(err)
	}
	v, key := newTownAt(t, folder), seal.NewKey()
	f := v.proven(key, nil)
	before := v.balance(key).Picks
	v.audit = AuditOptions{Share: 1, Hold: time.Hour, Every: 16}
	v.start()
	v.arrives(key)
	v.generate(4, 1)
	v.until("the session is on the disk", func() bool { return v.balance(key).Picks > before })
	before = v.balance(key).Picks
	d.Refuse("backbone.receipts.db", baddisk.Full)
	v.until("the hub's word is enough", func() bool {
		v.generate(8, 2)
		return v.log.count("the ledger cannot be written") > 0 && v.balance(key).Picks > before+200
	})
	v.kill()
	_ = f.stop()
	d.Refuse("", baddisk.None)

	v.audit.Hold = quickAudit.Hold
	v.start()
	v.until("the session is closed", func() bool { return v.waits() == 0 })
	if v.log.count("gone on from") == 0 || v.backbone.swarm.auditor.of(key.Public()).Owed() != unsureRows {
		t.Errorf("nobody has asked the hub; said:\n%s", v.log)
	}
	was := v.balance(key)
	v.worker(key, nil)
	v.arrives(key)
	v.until("other rows are right", func() bool {
		v.generate(8, 4)
		return v.backbone.swarm.auditor.of(key.Public()).Owed() == 0
	})
	if b := v.decided(key); b.Settled < was.Settled+was.Pending || was.Pending == 0 || b.Voided != 0 {
		t.Errorf("%+v, before %+v", b, was)
	}
}

// TestNothingIsSignedForASessionThatNoDiskKnows begins a session while the backbone's disk refuses.
func TestNothingIsSignedForASessionThatNoDiskKnows(t *testing.T) {
	folder := t.TempDir()
	d, err := baddisk.New(folder)
	if err != nil {
		t.Fatal(err)
	}
	v, key := newTownAt(t, folder), seal.NewKey()
	d.Refuse("backbone.receipts.db", baddisk.Full)
	v.worker(key, nil)
	v.arrives(key)
	v.until("the disk refuses", func() bool {
		v.generate(4, 1)
		return v.log.count("the ledger cannot be written") > 0
	})
	v.generate(8, 2)
	if b := v.balance(key); b.Picks != 0 {
		t.Errorf("signed for: %+v", b)
	}
	d.Refuse("", baddisk.None)
	v.until("all is credited", func() bool { return v.balance(key).Picks == v.picks(key) })
	v.verify()
}

// TestAWorkersScreenTellsWhatIsHeldBack has the gateway's owner allow the backbone nothing for a while.
func TestAWorkersScreenTellsWhatIsHeldBack(t *testing.T) {
	v := newTown(t)
	w := v.villager()
	v.arrives(w.key)
	wallet, backbone := v.gateway.wallets.wallet, v.backbone.swarm.c.Key.Public()
	_, err := wallet.Grant(v.ctx, backbone, 0)
	v.must(err)
	v.until("it is told", func() bool { v.generate(4, 1); return w.Status().Held > 0 })
	if b := v.balance(w.key); b.Pending+b.Settled != 0 || b.Waiting < w.Status().Held {
		t.Errorf("told %v, of %+v", w.Status().Held, b)
	}
	_, err = wallet.Grant(v.ctx, backbone, ledger.MaxBalance)
	v.must(err)
	v.until("it is told that it is credited", func() bool { v.generate(4, 1); return w.Status().Held == 0 })
	v.verify()
}
