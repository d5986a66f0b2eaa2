package engine

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"kvasir/engine/audit"
	"kvasir/engine/ledger"
	"kvasir/internal/moe"
	"kvasir/wire/seal"
)

// proven starts a worker that has proved itself before.
func (v *town) proven(key seal.Key, wrap func(moe.Experts) moe.Experts) *friend {
	v.t.Helper()
	a := v.backbone.swarm.auditor
	a.mu.Lock()
	a.known[key.Public()] = &known{record: audit.NewRecord(512, 512), at: time.Now()}
	a.mu.Unlock()
	f := v.worker(key, wrap)
	v.arrives(key)
	v.generate(2, 1)
	v.until("all is credited", func() bool { return v.balance(key).Picks == v.picks(key) })
	v.stop() // what is known of it is on the disk
	return f
}

// late starts the backbone so that no row is judged for an hour, and has a worker, which comes again, work until
// some are drawn and reports of them are with the gateway. All that is pending then waits for these rows.
func (v *town) late(key seal.Key) (b ledger.Balance) {
	v.t.Helper()
	before := v.balance(key).Picks
	v.audit = AuditOptions{Share: 1, Hold: time.Hour, Every: 16}
	v.start()
	v.arrives(key)
	v.until("rows wait", func() bool {
		v.generate(4, 4)
		n, _ := v.backbone.swarm.auditor.a.Waiting()
		return n > 4
	})
	v.until("all is credited", func() bool {
		b = v.balance(key)
		return b.Picks == before+v.picks(key)
	})
	v.audit = quickAudit
	return b
}

// on runs a statement on the backbone's file, which nobody has open.
func (v *town) on(query string) (changed int64) {
	v.t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(string(v.home), "backbone.receipts.db"))
	v.must(err)
	r, err := db.ExecContext(v.ctx, query)
	if err == nil {
		changed, err = r.RowsAffected()
	}
	v.must(errors.Join(err, db.Close()))
	return changed
}

// waits is how many sessions have ended and have rows that wait for a judge.
func (v *town) waits() int {
	s := v.backbone.swarm
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.judged)
}

// decided waits until nothing is pending for a worker, and no session is open but those under way.
func (v *town) decided(key seal.Key) (b ledger.Balance) {
	v.t.Helper()
	v.until("all that is pending is decided", func() bool {
		b = v.balance(key)
		return b.Pending == 0
	})
	v.verify()
	return b
}

// spoils answers a row in each batch wrong while it is told to.
func spoils(on *atomic.Bool) func(moe.Experts) moe.Experts {
	return func(x moe.Experts) moe.Experts {
		w := wrong(x)
		return forward(func(ctx context.Context, b *moe.Batch, out *moe.Partials) error {
			if on.Load() {
				return w.Forward(ctx, b, out)
			}
			return x.Forward(ctx, b, out)
		})
	}
}

// TestWhatIsPendingIsDecidedAfterARestart ends a backbone, in order or at once, while rows of a worker wait for a
// judge. The worker does not come again. The next backbone judges them: who was right is paid, and of who was not all
// is void, and it is convicted.
func TestWhatIsPendingIsDecidedAfterARestart(t *testing.T) {
	for _, c := range []struct {
		name   string
		killed bool
		cheats bool
	}{{"stopped", false, false}, {"killed", true, false}, {"stopped, a cheat", false, true}, {"killed, a cheat", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v, key := newTown(t), seal.NewKey()
			var cheats atomic.Bool
			f := v.proven(key, spoils(&cheats))
			cheats.Store(c.cheats)
			was := v.late(key)
			if c.killed {
				v.kill()
				_ = f.stop()
			} else {
				_ = f.stop()
				v.stop()
			}
			b := v.balance(key)
			for range 2 { // nothing is said twice
				v.start()
				b = v.decided(key)
				v.until("no session is open", func() bool {
					open, _, err := v.backbone.outbox.Courses(v.ctx, v.backbone.swarm.auditor.drawn, v.backbone.swarm.c.Key.Public())
					v.must(err)
					return len(open) == 0
				})
				v.kill()
			}
			lost, paid := b.Voided, b.Settled-was.Settled
			if c.cheats && (lost < was.Pending || paid != 0) || !c.cheats && (lost != 0 || paid < was.Pending) || was.Pending == 0 {
				t.Errorf("%+v, before %+v", b, was)
			}
			v.start()
			if guilty := v.backbone.swarm.c.Refuse(seal.Proof{Key: key.Public()}) != nil; guilty != c.cheats {
				t.Errorf("convicted: %v", guilty)
			}
			v.kill()
			if n := v.on("DELETE FROM drawn"); n != 0 {
				t.Errorf("%d rows are still kept", n)
			}
		})
	}
}

// TestLostRowsAreMadeUpForByOthers kills a backbone, and its disk loses the rows that wait, or what is known of their
// session: what is pending settles when the worker has come again and so many others of its rows were right, and not
// before.
func TestLostRowsAreMadeUpForByOthers(t *testing.T) {
	for _, c := range []struct {
		name, loses string
		cheats      bool // when it has come again
	}{
		{"rows", "DELETE FROM drawn", false}, {"rows, and it cheats then", "DELETE FROM drawn", true},
		{"damaged rows", "UPDATE drawn SET sealed = x'00'", false}, {"session", "UPDATE courses SET code = x''", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v, key := newTown(t), seal.NewKey()
			var cheating atomic.Bool
			f := v.proven(key, spoils(&cheating))
			was := v.late(key)
			v.kill()
			_ = f.stop()
			if v.on(c.loses) == 0 {
				t.Fatal("nothing is lost")
			}
			v.audit.Every = 16
			v.start()
			v.until("the session is closed", func() bool { return v.waits() == 0 })
			if b := v.balance(key); b.Pending == 0 || b.Settled != was.Settled || b.Voided != 0 {
				t.Fatalf("%+v, before %+v", b, was)
			}
			cheating.Store(c.cheats)
			v.worker(key, spoils(&cheating))
			v.arrives(key)
			owed := v.backbone.swarm.auditor.of(key.Public()).Owed()
			if owed == 0 {
				t.Error("nothing is owed")
			}
			right := v.backbone.swarm.auditor.of(key.Public()).Right()
			v.until("it has worked for what is lost", func() bool {
				v.generate(4, 8)
				return v.backbone.swarm.auditor.of(key.Public()).Owed() == 0 || v.log.count("it is sent away") > 0
			})
			if more := v.backbone.swarm.auditor.of(key.Public()).Right() - right; !c.cheats && more < int64(owed) {
				t.Errorf("%d rows were right, %d were owed", more, owed)
			}
			b := v.decided(key)
			if c.cheats && b.Voided < was.Pending || !c.cheats && (b.Voided > 0 || b.Settled < was.Settled+was.Pending) {
				t.Errorf("%+v, before %+v", b, was)
			}
		})
	}
}

// TestProbationGoesOnAfterARestart has a backbone killed again and again while a worker is in probation: it proves
// itself in the end, and all is paid.
func TestProbationGoesOnAfterARestart(t *testing.T) {
	v, key := newTown(t), seal.NewKey()
	v.worker(key, nil)
	for n := range 4 {
		v.arrives(key)
		v.until("more rows are right", func() bool {
			v.generate(2, 1)
			w := v.find(key)
			return w != nil && w.Right > int64(40*n)
		})
		if b := v.balance(key); b.Settled != 0 {
			t.Errorf("paid in probation: %+v", b)
		}
		v.kill()
		v.start()
	}
	v.arrives(key)
	v.until("it has proved itself", func() bool {
		v.generate(4, 4)
		w := v.find(key)
		return w == nil || w.Wanted == 0
	})
	v.until("all is settled", func() bool {
		v.generate(1, 1)
		b := v.balance(key)
		return b.Settled > 0 && b.Pending*10 < b.Settled // of now
	})
	if b := v.decided(key); b.Voided != 0 {
		t.Errorf("%+v", b)
	}
}

// TestNothingStaysPendingWhateverRestarts has a backbone, whose rows wait for their judge for some time or other, be
// stopped or killed at any moment, its disk lose a row now and then, and its worker come and go, at random. At every
// moment what was signed is what was credited, and in the end, when both have met again, all of it is settled, once.
func TestNothingStaysPendingWhateverRestarts(t *testing.T) {
	seed, steps := rand.Uint64(), 10
	if os.Getenv("KVASIR_SOAK") == "1" {
		steps = 100
	}
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	v, key := newTown(t), seal.NewKey()
	f := v.worker(key, nil)
	worth := func() (b ledger.Balance) {
		t.Helper()
		v.verify()
		if b = v.balance(key); b.Pending+b.Settled != ledger.NKVR(b.Output)*ledger.Rate || b.Voided+b.Waiting != 0 {
			t.Fatalf("signed are %d bytes, %+v", b.Output, b)
		}
		return b
	}
	restart := func(end func()) {
		end()
		if rng.IntN(3) == 0 {
			v.on("DELETE FROM drawn WHERE id % 2 = 0")
		}
		v.audit = AuditOptions{Share: 1, Every: 1 << rng.IntN(4), Hold: time.Duration(1+rng.IntN(60)) * time.Millisecond}
		v.start()
	}
	for range steps {
		switch rng.IntN(6) {
		case 0:
			restart(v.stop)
		case 1, 2:
			restart(v.kill)
		case 3:
			_ = f.stop()
			f = v.worker(key, nil)
		default:
			v.arrives(key)
		}
		v.generate(1+rng.IntN(8), 1+rng.IntN(4))
		worth()
	}
	v.audit = AuditOptions{Share: 1, Every: 4, Hold: time.Millisecond}
	v.stop()
	v.start()
	v.arrives(key)
	a := v.backbone.swarm.auditor
	v.until("its probation is over, and others are right instead of what was lost", func() bool {
		v.generate(4, 4)
		w := v.find(key)
		return w != nil && w.Wanted == 0 && a.of(key.Public()).Owed() == 0 && v.waits() == 0
	})
	v.until("all is credited, and settled", func() bool {
		b := v.balance(key)
		return b.Pending == 0 && b.Settled > 0 && v.closed()
	})
	if b := worth(); b.Pending != 0 {
		t.Errorf("seed %d: %+v", seed, b)
	}
}

// closed reports whether no session waits that has ended.
func (v *town) closed() bool {
	s := v.backbone.swarm
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.judged)+len(s.proving) == 0
}
