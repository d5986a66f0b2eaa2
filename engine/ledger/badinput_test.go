package ledger

import (
	"bytes"
	"crypto/ed25519"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"kvasir/wire/seal"
)

// unchecked signs a report that Check may refuse, as a backbone of another program would.
func unchecked(key seal.Key, r Report, change func(*Report)) []byte {
	r.Backbone, r.Picks = key.Public(), slices.Clone(r.Picks)
	change(&r)
	signed := r.append(nil)
	return append(signed, key.Sign(domain(signed), signed)...)
}

// What is bad is refused by its name, said once and counted once, also when the feed is read again from its first
// entry, and all else of the same page and the same session is credited.
func TestBadInputIsSaidOnceAndAllElseGoesOn(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		stranger, key := seal.NewKey(), s.workerKey()
		r, other := s.reporter(1, 0), s.reporter(2, 1)
		one, two, first := next(t, r, 1), next(t, r, 2), next(t, other, 4)
		p := Report{
			Session: SessionID{9}, Sequence: 1, Worker: s.workers[0], Time: epoch, Hidden: 3072,
			Audit: Audit{Mode: Sampled}, Picks: []LayerPicks{{Layer: 3, Picks: 1}},
		}
		good := s.grant.String()
		grant, err := seal.SignGrant(s.root, seal.Grant{Role: seal.Backbone, Key: s.backbone.Public(), Issued: epoch})
		must(t, err)
		report := func(change func(*Report)) Entry {
			return Entry{Grant: grant.String(), Report: unchecked(s.backbone, p, change)}
		}
		flip := func(b []byte) []byte {
			b = bytes.Clone(b)
			b[len(b)-1] ^= 1
			return b
		}
		witness := newWitnessed(s, key, 1)
		witness.by[3] = 1
		stated := witness.state(t, one, Agree)
		for _, c := range []struct {
			name    string
			bad     Entry
			want    error
			counted string
		}{
			{"forged", Entry{Grant: good, Report: flip(two)}, ErrBadSignature, "signature"},
			{"truncated", Entry{Grant: good, Report: two[:len(two)-1]}, ErrBadReport, "report"},
			{"empty", Entry{Grant: good}, ErrBadReport, "report"},
			{"of a newer version", report(func(r *Report) { r.Picks = nil }).version(9), ErrBadReport, "report"},
			{"in the future", report(func(r *Report) { r.Time = epoch.Add(aheadMax + time.Second) }), ErrFuture, "future"},
			{"beyond all time", report(func(r *Report) { r.Time = time.UnixMilli(maxMillis) }), ErrBadReport, "report"},
			{"replayed with other work", report(func(r *Report) { r.Session = SessionID{1} }), ErrFork, "fork"},
			{"replayed in another place", report(func(r *Report) { r.Session, r.Sequence, r.Before = SessionID{1}, 2, Hash{7} }), ErrFork, "fork"},
			{"before its time", report(func(r *Report) { r.Session, r.Sequence = SessionID{8}, 2 }), ErrGap, "gap"},
			{"overflowing", report(func(r *Report) { r.Picks[0].Picks = 1 << 62 }), ErrOverflow, "overflow"},
			{"overflowing in sum", report(func(r *Report) {
				r.Picks = []LayerPicks{{0, MaxOutput / BytesPerValue}, {1, MaxOutput / BytesPerValue}}
			}), ErrOverflow, "overflow"},
			{"negative picks", report(func(r *Report) { r.Picks[0].Picks = -1 }), ErrBadReport, "report"},
			{"negative bytes", report(func(r *Report) { r.ToWorker = -1 }), ErrBadReport, "report"},
			{"negative rows", report(func(r *Report) { r.Checked = -1 }), ErrBadReport, "report"},
			{"huge rows", report(func(r *Report) { r.Hidden = MaxHidden + 1 }), ErrBadReport, "report"},
			{"no worker", report(func(r *Report) { r.Worker = seal.PublicKey{} }), ErrBadReport, "report"},
			{"unknown backbone", Entry{Grant: good, Report: unchecked(stranger, p, func(*Report) {})}, ErrNotGranted, "grant"},
			{"no grant", Entry{Report: unchecked(s.backbone, p, func(*Report) {})}, ErrNotGranted, "grant"},
			{"forged statement", Entry{Statement: flip(stated)}, ErrBadSignature, "signature"},
			{"truncated statement", Entry{Statement: stated[:len(stated)-1]}, ErrBadStatement, "statement"},
		} {
			t.Run(c.name, func(t *testing.T) {
				var said bytes.Buffer
				w, err := OpenWallet(t.Context(), temp(t), s.root.Public(), slog.New(slog.NewTextHandler(&said, nil)))
				must(t, err)
				t.Cleanup(func() { _ = w.Close() })
				w.now = func() time.Time { return epoch }
				feed := append(s.entries(one), c.bad)
				feed = append(feed, s.entries(two, first, one)...).renumber() // one is replayed as it was
				if got, want := poll(t, w, feed), (Polled{Entries: 5, Credited: 3, Refused: 1, Reward: 7 * perPick}); got != want {
					t.Fatalf("polled %+v, want %+v", got, want)
				}
				poll(t, w, feed)
				run(t, w, "UPDATE feeds SET watermark = 0, hash = ''") // as after a hub's old copy
				poll(t, w, feed)
				wantPending(t, w, s.workers, 3*perPick, 4*perPick)
				list, err := w.Refusals(t.Context(), 10)
				must(t, err)
				if len(list) != 1 || list[0].Entry != 2 || !strings.Contains(list[0].Reason, c.want.Error()) {
					t.Errorf("refused %+v, want entry 2: %v", list, c.want)
				}
				if n := strings.Count(said.String(), "entry refused"); n != 1 || !strings.Contains(said.String(), c.want.Error()) {
					t.Errorf("said %d times, want once: %v\n%s", n, c.want, &said)
				}
				if got := w.Counts()["refused_ledger_"+c.counted]; got != 1 {
					t.Errorf("counted %d as %s, want 1: %v", got, c.counted, w.Counts())
				}
			})
		}
	})
}

// version has the report of an entry say another version.
func (e Entry) version(v byte) Entry {
	e.Report = bytes.Clone(e.Report)
	e.Report[0] = v
	return e
}

// What was refused in a place says nothing of another entry in that place.
func TestAnotherRefusalInTheSamePlaceIsSaid(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		var said bytes.Buffer
		w, err := OpenWallet(t.Context(), temp(t), s.root.Public(), slog.New(slog.NewTextHandler(&said, nil)))
		must(t, err)
		t.Cleanup(func() { _ = w.Close() })
		forged := next(t, s.reporter(1, 0), 1)
		forged[len(forged)-1] ^= 1
		for _, b := range [][]byte{[]byte("no report"), forged, forged} {
			poll(t, w, s.entries(b))
			run(t, w, "UPDATE feeds SET watermark = 0, hash = ''")
		}
		list, err := w.Refusals(t.Context(), 10)
		must(t, err)
		if len(list) != 1 || !strings.Contains(list[0].Reason, ErrBadSignature.Error()) {
			t.Errorf("refused %+v", list)
		}
		if n := strings.Count(said.String(), "entry refused"); n != 2 {
			t.Errorf("said %d times, want 2:\n%s", n, &said)
		}
	})
}

// A hub refuses by name, counts once, and takes what is right.
func TestHubCountsWhatItRefuses(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		h := openHub(t, temp(t))
		must(t, h.Begin(t.Context(), s.session(1, 0)))
		r := s.reporter(1, 0)
		one, two := next(t, r, 1), next(t, r, 2)
		_, err := h.Append(t.Context(), one)
		must(t, err)
		forged := bytes.Clone(two)
		forged[len(forged)-1] ^= 1
		p, err := Parse(two)
		must(t, err)
		for _, c := range []struct {
			counted string
			signed  []byte
			want    error
		}{
			{"signature", forged, ErrBadSignature},
			{"report", two[:len(two)-ed25519.SignatureSize], ErrBadReport},
			{"overflow", unchecked(s.backbone, p, func(r *Report) { r.Picks = []LayerPicks{{3, 1 << 62}} }), ErrOverflow},
			{"no_session", next(t, s.reporter(9, 0), 1), ErrNoSession},
			{"other_session", next(t, s.reporter(1, 1), 1), ErrWrongSession},
			{"fork", next(t, s.reporter(1, 0), 64), ErrFork},
			{"gap", unchecked(s.backbone, p, func(r *Report) { r.Sequence = 9 }), ErrGap},
		} {
			t.Run(c.counted, func(t *testing.T) {
				_, err := h.Append(t.Context(), c.signed)
				wantError(t, err, c.want)
				if n := h.Counts()["refused_ledger_"+c.counted]; n != 1 {
					t.Errorf("counted %d times: %v", n, h.Counts())
				}
			})
		}
		_, err = h.Append(t.Context(), two)
		must(t, err)
	})
}

// A list names the rows of it that are damaged, once, and has all others.
func TestAListNamesWhatIsDamagedAndHasTheRest(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		var said bytes.Buffer
		w, err := OpenWallet(t.Context(), temp(t), s.root.Public(), slog.New(slog.NewTextHandler(&said, nil)))
		must(t, err)
		t.Cleanup(func() { _ = w.Close() })
		poll(t, w, s.entries(next(t, s.reporter(1, 0), 1), next(t, s.reporter(2, 1), 2)))
		bad := "*" + s.workers[0].String()[1:]
		run(t, w, "UPDATE reports SET worker = $1 WHERE id = 1", bad)
		run(t, w, "INSERT INTO limits (backbone, nkvr) VALUES ('nobody', 1)")
		for range 2 {
			all, err := w.Balances(t.Context())
			must(t, err)
			debts, err := w.Debts(t.Context())
			must(t, err)
			if len(all) != 1 || all[0].Worker != s.workers[1] || all[0].Pending != 2*perPick || len(debts) != 1 || debts[0].Owed != 3*perPick {
				t.Errorf("lists %+v and %+v", all, debts)
			}
		}
		got := w.Damaged()
		if len(got) != 2 || !strings.HasPrefix(got[0], "worker: ") || !strings.Contains(got[0], bad) || !strings.Contains(got[1], "nobody") ||
			strings.Contains(strings.Join(got, ""), "\n") || strings.Contains(strings.Join(got, ""), "sql:") {
			t.Errorf("left out %q", got)
		}
		if n := strings.Count(said.String(), "left out of lists"); n != 2 || w.Counts()["refused_ledger_damaged"] != 2 {
			t.Errorf("said %d times, counted %v:\n%s", n, w.Counts(), &said)
		}
		if isURL(w.file.path) || w.file.lock != nil {
			return // a column of numbers takes nothing else there
		}
		run(t, w, "UPDATE accounts SET balance = 'much' WHERE owner = $1", s.workers[1].String())
		all, err := w.Balances(t.Context())
		must(t, err)
		if got := w.Damaged(); len(all) != 0 || len(got) != 3 || !strings.HasPrefix(got[2], "worker "+s.workers[1].String()) {
			t.Errorf("lists %+v, left out %q", all, got)
		}
	})
}
