package ledger

import (
	"testing"
	"time"

	"kvasir/wire/seal"
)

// money is what a worker has, in picks.
type money struct{ pending, settled, voided, waiting NKVR }

func wantMoney(t *testing.T, w *Wallet, worker seal.PublicKey, want money) {
	t.Helper()
	must(t, w.Verify(t.Context()))
	b, err := w.Balance(t.Context(), worker)
	must(t, err)
	got := money{b.Pending / perPick, b.Settled / perPick, b.Voided / perPick, b.Waiting / perPick}
	if got != want {
		t.Fatalf("in picks: %+v, want %+v", got, want)
	}
}

func holds(n int64) Audit { return Audit{Mode: Sampled, Checked: 1, Holds: n} }

func wrongRow(holds int64) Audit {
	return Audit{Mode: Sampled, Checked: 1, Wrong: 1, Holds: holds, Evidence: Hash{9}}
}

func TestWorkSettlesWhenALaterReportSaysThatItHolds(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		w := openWallet(t, temp(t), s)
		a, b := s.reporter(1, 0), s.reporter(2, 1)
		feed := s.entries(next(t, a, 1), next(t, a, 2), next(t, b, 100))
		poll(t, w, feed)
		wantMoney(t, w, s.workers[0], money{pending: 3})
		feed = append(feed, s.entries(nextAudited(t, a, 4, holds(1)))...).renumber()
		poll(t, w, feed)
		wantMoney(t, w, s.workers[0], money{pending: 6, settled: 1})
		feed = append(feed, s.entries(nextAudited(t, a, 0, holds(4)))...).renumber()
		poll(t, w, feed)
		wantMoney(t, w, s.workers[0], money{settled: 7})
		wantMoney(t, w, s.workers[1], money{pending: 100})
		poll(t, openWallet(t, temp(t), s), feed) // from the beginning
	})
}

func TestAWrongRowVoidsWhatIsPending(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		w := openWallet(t, temp(t), s)
		a, again, b := s.reporter(1, 0), s.reporter(3, 0), s.reporter(2, 1)
		poll(t, w, s.entries(next(t, a, 1), nextAudited(t, a, 2, holds(1)), next(t, again, 10), next(t, b, 100),
			nextAudited(t, a, 4, wrongRow(1))))
		wantMoney(t, w, s.workers[0], money{settled: 1, voided: 16})
		wantMoney(t, w, s.workers[1], money{pending: 100})
		debts, err := w.Debts(t.Context())
		must(t, err)
		if len(debts) != 1 || debts[0].Owed != 101*perPick {
			t.Fatalf("the backbone owes %+v, want 101 picks", debts)
		}
	})
}

func TestAnotherBackbonesWordVoidsNothing(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		w := openWallet(t, temp(t), s)
		a := s.reporter(1, 0)
		poll(t, w, s.entries(next(t, a, 1)))
		other := seal.NewKey()
		liar := NewReporter(other, Subject{Session: SessionID{7}, Worker: s.workers[0], Hidden: 3072})
		_, err := w.Poll(t.Context(), "hub 2", memory{{ID: 1, Grant: s.signGrant(t, seal.Backbone, other.Public()).String(),
			Report: nextAudited(t, liar, 5, wrongRow(0))}})
		must(t, err)
		wantMoney(t, w, s.workers[0], money{pending: 1, voided: 5})
	})
}

func TestABackboneOwesNoMoreThanItsLimit(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		w := openWallet(t, temp(t), s)
		grant := func(picks, want NKVR) {
			t.Helper()
			credited, err := w.Grant(t.Context(), s.backbone.Public(), picks*perPick)
			must(t, err)
			if credited != want*perPick {
				t.Fatalf("credited %d picks, want %d", credited/perPick, want)
			}
		}
		grant(5, 0)
		a, b := s.reporter(1, 0), s.reporter(2, 1)
		feed := s.entries(next(t, a, 4), next(t, a, 3), next(t, b, 2), nextAudited(t, a, 1, holds(2)))
		poll(t, w, feed)
		wantMoney(t, w, s.workers[0], money{settled: 4, waiting: 3, pending: 1})
		wantMoney(t, w, s.workers[1], money{waiting: 2})
		grant(4, 0)
		grant(9, 3) // the oldest first: 3 that have been settled in the meantime; 2 more are too many
		wantMoney(t, w, s.workers[0], money{settled: 7, pending: 1})
		wantMoney(t, w, s.workers[1], money{waiting: 2})
		feed = append(feed, s.entries(nextAudited(t, a, 1, wrongRow(2)))...).renumber()
		poll(t, w, feed) // what is voided is owed no more, and makes room
		wantMoney(t, w, s.workers[0], money{settled: 7, voided: 2})
		wantMoney(t, w, s.workers[1], money{pending: 2})

		_, err := w.Grant(t.Context(), s.backbone.Public(), -1)
		wantError(t, err, ErrOverflow)
		_, err = w.Grant(t.Context(), seal.PublicKey{}, 1)
		wantError(t, err, ErrOverflow)
	})
}

func TestARateHoldsFromItsTimeOn(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		w := openWallet(t, temp(t), s)
		a := s.reporter(1, 0)
		poll(t, w, s.entries(next(t, a, 1)))
		wantError(t, w.SetRate(t.Context(), Price{Since: epoch, Rate: 14}), ErrRate)
		wantError(t, w.SetRate(t.Context(), Price{Since: epoch.Add(time.Hour), Rate: MaxRate + 1}), ErrRate)
		wantError(t, w.SetRate(t.Context(), Price{Since: epoch.Add(time.Hour), Rate: -1}), ErrRate)
		must(t, w.SetRate(t.Context(), Price{Since: epoch.Add(time.Hour), Rate: 14}))
		wantError(t, w.SetRate(t.Context(), Price{Since: epoch.Add(time.Hour), Rate: 1}), ErrRate)
		var feed memory
		for _, at := range []time.Duration{time.Hour - time.Millisecond, time.Hour} {
			must(t, a.Count(0, 1))
			signed, err := a.Report(epoch.Add(at), false, nothing)
			must(t, err)
			a.Done(a.next.Sequence - 1)
			feed = append(feed, s.entries(signed)...)
		}
		_, err := w.Poll(t.Context(), "hub 2", feed.renumber())
		must(t, err)
		wantMoney(t, w, s.workers[0], money{pending: 1 + 1 + 2})
		rates, err := w.Rates(t.Context())
		must(t, err)
		if len(rates) != 2 || rates[0] != (Price{epoch.Add(time.Hour), 14}) || rates[1].Rate != Rate {
			t.Errorf("rates %+v", rates)
		}
	})
}
