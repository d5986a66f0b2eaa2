package ledger

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"kvasir/wire/seal"
)

// nKVR a pick of hidden 3072.
const perPick NKVR = 3072 * 4 * 7

// The example of the design document from end to end, over HTTP.
func TestExampleIsCreditedExactly(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		h, w := openHub(t, temp(t)), openWallet(t, temp(t), s)
		must(t, h.Begin(t.Context(), s.session(1, 0)))
		r := s.reporter(1, 0)
		for layer := range 13 {
			must(t, r.Count(layer, 8))
		}
		signed, err := r.Report(epoch, false, nothing)
		must(t, err)
		_, err = h.Append(t.Context(), signed)
		must(t, err)
		feed := serve(t, Handler(h))
		if got, want := poll(t, w, feed), (Polled{Entries: 1, Credited: 1, Reward: 8_945_664}); got != want {
			t.Fatalf("polled %+v, want %+v", got, want)
		}
		if got := poll(t, w, feed); got != (Polled{}) {
			t.Fatalf("second poll did %+v", got)
		}
		all, err := w.Balances(t.Context())
		must(t, err)
		want := Balance{Worker: s.workers[0], Reports: 1, Picks: 104, Output: 1_277_952, Pending: 8_945_664}
		if len(all) != 1 || all[0] != want || FormatUnits(all[0].Output) != "1.277952" || all[0].Pending.String() != "0.00895 KVR" {
			t.Fatalf("balances %+v, want %+v", all, want)
		}
		debts, err := w.Debts(t.Context())
		must(t, err)
		if len(debts) != 1 || debts[0] != (Debt{s.backbone.Public(), 8_945_664, -1, 0}) {
			t.Fatalf("debts %+v", debts)
		}
		wantPending(t, w, s.workers, 8_945_664)
	})
}

func TestWalletCreditsOnceWhoeverBringsIt(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		w := openWallet(t, temp(t), s)
		a, b := s.reporter(1, 0), s.reporter(2, 1)
		feed := s.entries(next(t, a, 1), next(t, b, 10), next(t, a, 2), next(t, b, 20))
		poll(t, w, feed)
		wantPending(t, w, s.workers, 3*perPick, 30*perPick)
		other, err := w.Poll(t.Context(), "another hub", feed)
		must(t, err)
		if other != (Polled{Entries: 4}) {
			t.Fatalf("another hub with the same reports: %+v", other)
		}
		// The hub is put back from an old copy, and then gets all reports again.
		_, err = w.Poll(t.Context(), "hub", feed[:1])
		wantError(t, err, ErrFeedBack)
		if got := poll(t, w, append(feed[:4:4], s.entries(next(t, a, 4))...).renumber()); got.Entries != 5 || got.Credited != 1 {
			t.Fatalf("read again: %+v", got)
		}
		wantPending(t, w, s.workers, 7*perPick, 30*perPick)
	})
}

func (m memory) renumber() memory {
	for i := range m {
		m[i].ID = int64(i + 1)
	}
	return m
}

func TestWalletRefusesAndGoesOn(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		stranger := seal.NewKey()
		r := s.reporter(1, 0)
		one, two, three := next(t, r, 1), next(t, r, 2), next(t, r, 4)
		forged := append([]byte{}, two...)
		forged[len(forged)-1] ^= 1
		other := s.reporter(1, 0)
		fork := [][]byte{next(t, other, 64), next(t, other, 2)}
		late, err := Report{Session: SessionID{3}, Sequence: 1, Worker: s.workers[0], Time: epoch.Add(30 * 24 * time.Hour), Hidden: 1,
			Audit: Audit{Mode: Unverified}}.
			Append(nil, s.backbone)
		must(t, err)
		strange := next(t, NewReporter(stranger, Subject{Session: SessionID{1}, Worker: s.workers[0], Hidden: 3072}), 1)
		good := s.grant.String()
		foreign, err := seal.SignGrant(stranger, seal.Grant{Role: seal.Backbone, Key: stranger.Public(), Issued: epoch})
		must(t, err)
		bad := []struct {
			grant  string
			signed []byte
			want   error
		}{
			{good, []byte("garbage"), ErrBadReport},
			{good, forged, ErrBadSignature},
			{good, three, ErrGap},
			{good, fork[0], ErrFork},
			{good, fork[1], ErrFork},
			{good, strange, ErrNotGranted},
			{good, late, ErrNotGranted},
			{foreign.String(), strange, ErrNotGranted},
			{"", two, ErrNotGranted},
			{strings.Repeat("A", 100_000), two, ErrNotGranted},
			{s.signGrant(t, seal.Hub, s.backbone.Public()).String(), two, ErrNotGranted},
		}
		feed := s.entries(one)
		for _, b := range bad {
			feed = append(feed, Entry{Grant: b.grant, Report: b.signed})
		}
		feed = append(feed, s.entries(two, three)...).renumber()

		var log bytes.Buffer
		w, err := OpenWallet(t.Context(), temp(t), s.root.Public(), slog.New(slog.NewTextHandler(&log, nil)))
		must(t, err)
		defer func() { must(t, w.Close()) }()
		if got, want := poll(t, w, feed), (Polled{Entries: 14, Credited: 3, Refused: len(bad), Reward: 7 * perPick}); got != want {
			t.Fatalf("polled %+v, want %+v", got, want)
		}
		wantPending(t, w, s.workers, 7*perPick)
		refusals, err := w.Refusals(t.Context(), 100)
		must(t, err)
		if len(refusals) != len(bad) || strings.Count(log.String(), "entry refused") != len(bad) {
			t.Fatalf("%d refusals, want %d; log:\n%s", len(refusals), len(bad), &log)
		}
		for i, b := range bad {
			if got := refusals[len(bad)-1-i]; got.Entry != int64(i+2) || !strings.Contains(got.Reason, b.want.Error()) {
				t.Errorf("entry %d: %q, want %v", got.Entry, got.Reason, b.want)
			}
		}
	})
}

func TestWalletRefusesWhatAnAccountCannotHold(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		w := openWallet(t, temp(t), s)
		r := s.reporter(1, 0)
		poll(t, w, s.entries(next(t, r, 1)))
		run(t, w, "UPDATE accounts SET balance = $1 WHERE kind = 'pending'", int64(MaxBalance))
		feed := s.entries(nil, next(t, r, 1))
		if got := poll(t, w, feed); got.Refused != 1 {
			t.Fatalf("polled %+v", got)
		}
		run(t, w, "UPDATE accounts SET balance = $1 WHERE kind = 'pending'", int64(perPick))
		wantPending(t, w, s.workers, perPick)
	})
}

func run(t *testing.T, w *Wallet, query string, args ...any) {
	t.Helper()
	_, err := w.file.db.ExecContext(t.Context(), query, args...)
	must(t, err)
}

// resum has balances say what the entries say.
const resum = "UPDATE accounts SET balance = (SELECT coalesce(sum(nkvr), 0) FROM entries WHERE account = accounts.id)"

func TestVerifyFindsWhatIsWrong(t *testing.T) {
	both(t, func(t *testing.T) {
		for _, c := range []struct {
			name, query string
			want        error
		}{
			{"nothing", "SELECT 1", nil},
			{"balance", "UPDATE accounts SET balance = balance + 1 WHERE id = 2", ErrUnbalanced},
			{"amount", "UPDATE transfers SET nkvr = nkvr + 1 WHERE report = 2", ErrUnbalanced},
			{"amount and balances", "UPDATE transfers SET nkvr = 2 * nkvr WHERE report = 2; " + resum, ErrUnbalanced},
			{"picks", "UPDATE reports SET picks = picks + 1 WHERE id = 2", ErrUnbalanced},
			{"worker", "UPDATE reports SET worker = backbone WHERE id = 2", ErrUnbalanced},
			{"time", "UPDATE reports SET at = at + 1 WHERE id = 2", ErrUnbalanced},
			{"reward", "UPDATE reports SET nkvr = nkvr + 7 WHERE id = 2", ErrUnbalanced},
			{"rate", "UPDATE rates SET nkvr = 8", ErrUnbalanced},
			{"funds", "UPDATE reports SET funded = 0 WHERE id = 2", ErrUnbalanced},
			{"settled by nobody", "UPDATE reports SET verdict = 'settled', said_by = 2 WHERE id = 2", ErrUnbalanced},
			{"settled by none that says so", "UPDATE reports SET verdict = 'voided', said_by = 3 WHERE id = 1", ErrUnbalanced},
			{"settled no more", "UPDATE reports SET verdict = 'pending', said_by = 0 WHERE id = 1; DELETE FROM transfers WHERE report = 1 AND kind = 'settle'; " + resum, ErrUnbalanced},
			{"transfer to another", "UPDATE transfers SET credited = 3 WHERE report = 2; " + resum, ErrUnbalanced},
			{"transfer from another", "UPDATE transfers SET debited = 3 WHERE report = 2; " + resum, ErrUnbalanced},
			{"transfer of another kind", "UPDATE transfers SET kind = 'void' WHERE report = 2", ErrUnbalanced},
			{"transfer gone", "DELETE FROM transfers WHERE report = 2; " + resum, ErrUnbalanced},
			{"report gone", "DELETE FROM transfers WHERE report = 1; DELETE FROM reports WHERE id = 1; " + resum, ErrUnbalanced},
			{"report changed", "UPDATE reports SET signed = $1 WHERE id = 2", ErrUnbalanced},
			{"hash", "UPDATE reports SET hash = substr(hash, 2) || '0' WHERE id = 2", ErrUnbalanced},
			{"sequence", "UPDATE reports SET sequence = 9 WHERE id = 2", ErrUnbalanced},
			{"key damaged", "UPDATE reports SET worker = '*' || substr(worker, 2) WHERE id = 2", ErrDamaged},
		} {
			t.Run(c.name, func(t *testing.T) {
				s := newSwarm(t, 1)
				w := openWallet(t, temp(t), s)
				r := s.reporter(1, 0)
				poll(t, w, s.entries(next(t, r, 1), nextAudited(t, r, 2, Audit{Mode: Sampled, Holds: 1})))
				var args []any
				if strings.Contains(c.query, "$1") {
					args = append(args, make([]byte, reportHead+reportLayer+ed25519.SignatureSize))
				}
				run(t, w, c.query, args...)
				err := w.Verify(t.Context())
				wantError(t, err, c.want)
				_, unproven := w.Proven(t.Context(), s.workers[0], time.Time{})
				wantError(t, unproven, c.want)
				for _, err := range []error{err, unproven} {
					if err != nil && strings.Contains(err.Error(), "\n") {
						t.Errorf("not one line: %v", err)
					}
				}
			})
		}
	})
}

func TestWalletDoesNotTrustPages(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		r := s.reporter(1, 0)
		feed := s.entries(next(t, r, 1), next(t, r, 2), next(t, r, 4))
		w := openWallet(t, temp(t), s)
		poll(t, w, feed[:1])
		many := make([]Entry, PageMax+1)
		for i := range many {
			many[i].ID = int64(i + 2)
		}
		for _, c := range []struct {
			name string
			page Page
		}{
			{"out of order", Page{Entries: []Entry{feed[2], feed[1]}, Last: 3}},
			{"twice the same", Page{Entries: []Entry{feed[1], feed[1]}, Last: 3}},
			{"what was read", Page{Entries: feed, Last: 3}},
			{"beyond the last", Page{Entries: feed[1:], Last: 2}},
			{"empty before the end", Page{Last: 3}},
			{"too many", Page{Entries: many, Last: 1000}},
		} {
			t.Run(c.name, func(t *testing.T) {
				_, err := w.Poll(t.Context(), "hub", feedFunc(func(context.Context, Mark, int) (Page, error) { return c.page, nil }))
				wantError(t, err, ErrBadPage)
				wantPending(t, w, s.workers, perPick)
			})
		}
		if _, err := w.Poll(t.Context(), "", feed); err == nil {
			t.Error("a hub without a name")
		}
		poll(t, w, feed)
		wantPending(t, w, s.workers, 7*perPick)
	})
}

func TestPollsAtTheSameTimeCreditOnce(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		r := s.reporter(1, 0)
		var reports [][]byte
		for range 20 {
			reports = append(reports, next(t, r, 1))
		}
		feed := s.entries(reports...)
		w := openWallet(t, temp(t), s)
		small := feedFunc(func(ctx context.Context, at Mark, _ int) (Page, error) { return feed.After(ctx, at, 3) })
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			wg.Go(func() { _, errs[i] = w.Poll(t.Context(), "hub", small) })
		}
		wg.Wait()
		must(t, errors.Join(errs...))
		wantPending(t, w, s.workers, 20*perPick)
	})
}

// A page that was asked for before another poll moved the watermark is dropped: to enter it would pass
// by what lies between.
func TestPageIsDroppedWhenTheWatermarkHasMoved(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		w := openWallet(t, temp(t), s)
		feed := s.entries(next(t, s.reporter(1, 0), 1), next(t, s.reporter(2, 1), 1))
		poll(t, w, feed[:1])
		wantError(t, w.rewind(t.Context(), "hub", 1, "has less"), ErrFeedBack)
		var sum Polled
		moved, err := w.take(t.Context(), "hub", 1, w.verifyAll(feed[1:]), &sum)
		must(t, err)
		if at, err := w.watermark(t.Context(), "hub"); moved || at != (Mark{}) || sum != (Polled{}) || err != nil {
			t.Fatalf("watermark %+v, %+v, %v", at, sum, err)
		}
		poll(t, w, feed)
		wantPending(t, w, s.workers, perPick, perPick)
	})
}

// A process that is killed leaves its files as they are at that moment. So the files are copied at
// every statement and around every commit of a poll, and from each copy another gateway goes on.
func TestWalletKilledAtAnyStatementLosesAndDoublesNothing(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		a, b := s.reporter(1, 0), s.reporter(2, 1)
		feed := s.entries(next(t, a, 1), next(t, b, 10), []byte("garbage"), next(t, a, 2))
		path := temp(t)
		w := openWallet(t, path, s)
		var copies []string
		moments, every := 0, 1
		if isURL(path) {
			every = 4 // a copy takes long there
		}
		w.file.step = func(statement string) {
			if moments++; moments%every == 0 || statement == "COMMIT" {
				copies = append(copies, copyOf(t, path, walletFile))
			}
		}
		small := feedFunc(func(ctx context.Context, at Mark, _ int) (Page, error) { return feed.After(ctx, at, 2) })
		poll(t, w, small)
		if moments < 15 {
			t.Fatalf("only %d moments", moments)
		}
		resumed := map[int]int{}
		for _, at := range copies {
			after := openWallet(t, at, s)
			pending(t, after, s.workers) // in balance before anything is repeated
			resumed[poll(t, after, small).Entries]++
			wantPending(t, after, s.workers, 3*perPick, 10*perPick)
			must(t, after.Close())
		}
		// Whole pages only: 4 entries were left, or 2, or none.
		if len(resumed) != 3 || resumed[4] == 0 || resumed[2] == 0 || resumed[0] == 0 {
			t.Fatalf("entries left: times %v", resumed)
		}
	})
}

func TestFollowPollsAndSaysAnErrorOnce(t *testing.T) {
	both(t, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSwarm(t, 1)
			var log bytes.Buffer
			w, err := OpenWallet(t.Context(), temp(t), s.root.Public(), slog.New(slog.NewTextHandler(&log, nil)))
			must(t, err)
			w.now = func() time.Time { return epoch } // a bubble begins in the year 2000
			r := s.reporter(1, 0)
			feed := s.entries(next(t, r, 1), next(t, r, 2))
			polls := 0
			ctx, cancel := context.WithCancel(t.Context())
			start := time.Now()
			w.Follow(ctx, "hub", feedFunc(func(ctx context.Context, at Mark, limit int) (Page, error) {
				polls++
				switch {
				case polls <= 3:
					return Page{}, errors.New("hub is away")
				case polls == 6: // 4: a page, 5: its end
					cancel()
				}
				return feed.After(ctx, at, limit)
			}), 5*time.Second)
			if got := time.Since(start); got != 20*time.Second {
				t.Errorf("ended after %v, want 20s", got)
			}
			if n := strings.Count(log.String(), "hub is away"); n != 1 {
				t.Errorf("said %d times:\n%s", n, &log)
			}
			wantPending(t, w, s.workers, 3*perPick)
			must(t, w.Close())
		})
	})
}

// A clock may be a day off, the gateway's or the backbone's. What is signed for later than that is refused.
func TestWhatIsSignedInTheFutureIsRefused(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		w := openWallet(t, temp(t), s)
		feed := s.entries(next(t, s.reporter(1, 0), 1), next(t, s.reporter(2, 1), 2))
		w.now = func() time.Time { return epoch.Add(-aheadMax) }
		poll(t, w, feed[:1])
		w.now = func() time.Time { return epoch.Add(-aheadMax - time.Millisecond) }
		if got := poll(t, w, feed); got.Refused != 1 || w.Counts()["refused_ledger_future"] != 1 {
			t.Fatalf("polled %+v, counted %v", got, w.Counts())
		}
		wantPending(t, w, s.workers, perPick, 0)
	})
}
