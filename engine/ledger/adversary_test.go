package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"sync"
	"testing"

	"kvasir/wire/seal"
)

// A backbone that puts the work of others into a worker's session neither gains by it, nor has the books say of
// themselves that they are wrong.
func TestASessionIsOfOneWorker(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		w := openWallet(t, temp(t), s)
		r := s.reporter(1, 0)
		one := next(t, r, 1)
		r.next.Worker = s.workers[1]
		others := nextAudited(t, r, 2, holds(1))
		if got := poll(t, w, s.entries(one, others)); got.Credited != 1 || got.Refused != 1 || w.Counts()["refused_ledger_report"] != 1 {
			t.Errorf("polled %+v, counted %v", got, w.Counts())
		}
		wantPending(t, w, s.workers, perPick, 0)
		h := openHub(t, temp(t))
		_, _, err := h.Claim(t.Context(), s.grant, one)
		must(t, err)
		_, _, err = h.Claim(t.Context(), s.grant, others)
		wantError(t, err, ErrWrongSession)
	})
}

// Sessions of two hubs may have the same ids by chance, or by a hub that wants it so: those of another backbone are
// others, and of one backbone that signs twice the first holds.
func TestOtherHubsMayHaveTheSameSessionIDs(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		other := &swarm{root: s.root, backbone: seal.NewKey(), workers: s.workers}
		other.grant = other.signGrant(t, seal.Backbone, other.backbone.Public())
		w := openWallet(t, temp(t), s)
		r := s.reporter(1, 0)
		mine := s.entries(next(t, r, 1), next(t, r, 2))
		theirs := other.entries(next(t, other.reporter(1, 1), 10))
		fork := s.reporter(1, 0)
		forked := s.entries(next(t, fork, 100), next(t, fork, 200))
		for name, feed := range map[string]memory{"a": mine, "b": theirs} {
			_, err := w.Poll(t.Context(), name, feed)
			must(t, err)
		}
		got, err := w.Poll(t.Context(), "c", forked)
		must(t, err)
		if got.Credited != 0 || got.Refused != 2 || w.Counts()["refused_ledger_fork"] != 2 {
			t.Errorf("of a fork %+v, counted %v", got, w.Counts())
		}
		wantPending(t, w, s.workers, 3*perPick, 10*perPick)
	})
}

// A hub that has a gateway pass by what is to come, by ids that are far ahead, is read again.
func TestAWatermarkAheadLosesNothing(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		w := openWallet(t, temp(t), s)
		r := s.reporter(1, 0)
		honest := s.entries(next(t, r, 1), next(t, r, 2), next(t, r, 4))
		far := honest[0]
		far.ID = math.MaxInt64
		ahead := feedFunc(func(_ context.Context, at Mark, _ int) (Page, error) {
			if at.ID < far.ID {
				return Page{Entries: []Entry{far}, Last: far.ID}, nil
			}
			return Page{Last: far.ID}, nil
		})
		if got := poll(t, w, ahead); got.Credited != 1 {
			t.Errorf("polled %+v", got)
		}
		_, err := w.Poll(t.Context(), "hub", honest)
		wantError(t, err, ErrFeedBack)
		poll(t, w, honest)
		wantPending(t, w, s.workers, 7*perPick)
		for _, p := range []Page{{Last: -1}, {Last: math.MinInt64}, {Entries: []Entry{{ID: -5}}, Last: 5}, {Entries: []Entry{{ID: math.MinInt64}}, Last: math.MaxInt64}} {
			_, err := w.Poll(t.Context(), "hub", feedFunc(func(context.Context, Mark, int) (Page, error) { return p, nil }))
			if !errors.Is(err, ErrBadPage) && !errors.Is(err, ErrFeedBack) {
				t.Errorf("%+v: %v", p, err)
			}
		}
		poll(t, w, honest)
		wantPending(t, w, s.workers, 7*perPick)
	})
}

// Two gateways with books of their own read one hub, which is put back from an old copy between: each has all, once.
func TestTwoGatewaysWithTheirOwnBooksReadOneHub(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		path := temp(t)
		h := openHub(t, path)
		one, two := openWallet(t, temp(t), s), openWallet(t, temp(t), s)
		must(t, h.Begin(t.Context(), s.session(1, 0)))
		r := s.reporter(1, 0)
		var signed [][]byte
		give := func(h *Hub, from int) {
			t.Helper()
			for _, b := range signed[from:] {
				_, err := h.Append(t.Context(), b)
				must(t, err)
			}
		}
		signed = append(signed, next(t, r, 1), next(t, r, 2))
		give(h, 0)
		poll(t, one, h)
		old := copyOf(t, path, hubFile)
		signed = append(signed, next(t, r, 4))
		give(h, 2)
		poll(t, one, h)
		poll(t, two, h)
		h = openHub(t, old)
		signed = append(signed, next(t, r, 8))
		give(h, 2)
		for _, w := range []*Wallet{one, two} {
			if _, err := w.Poll(t.Context(), "hub", h); err != nil {
				wantError(t, err, ErrFeedBack)
				poll(t, w, h)
			}
			wantPending(t, w, s.workers, 15*perPick)
		}
	})
}

// Several processes that open the same new place at once, or one of an older schema, all find it ready.
func TestSeveralProcessesMigrateAtOnce(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		path := temp(t)
		if isURL(path) {
			spaces.keep(path)
			must(t, openWallet(t, path, s).Close())
			script(t, "DROP SCHEMA "+spaceOf(t, path, walletFile)+" CASCADE")
		}
		open := func() {
			t.Helper()
			const processes = 6
			errs := make([]error, processes)
			var all sync.WaitGroup
			start := make(chan struct{})
			for n := range errs {
				all.Go(func() {
					<-start
					w, err := OpenWallet(t.Context(), path, s.root.Public(), nil)
					if err == nil {
						err = errors.Join(w.Verify(t.Context()), w.Close())
					}
					errs[n] = err
				})
			}
			close(start)
			all.Wait()
			must(t, errors.Join(errs...))
		}
		open()
		w := openWallet(t, path, s)
		poll(t, w, s.entries(next(t, s.reporter(1, 0), 1)))
		run(t, w, schema4)
		must(t, w.Close())
		open()
		wantPending(t, openWallet(t, path, s), s.workers, perPick)
	})
}

// What may not be written is read, says so in a line, and goes on when it may be.
func TestWhatMayNotBeWrittenIsReadAndLosesNothing(t *testing.T) {
	s := newSwarm(t, 1)
	w := openWallet(t, temp(t), s)
	r := s.reporter(1, 0)
	feed := s.entries(next(t, r, 1), next(t, r, 2))
	poll(t, w, feed[:1])
	only := func(on int) {
		_, err := w.file.w.conn.ExecContext(t.Context(), fmt.Sprintf("PRAGMA query_only = %d", on)) // the writer waits
		must(t, err)
	}
	only(1)
	_, err := w.Poll(t.Context(), "hub", feed)
	wantError(t, err, ErrUnwritten)
	if text := err.Error(); !strings.Contains(text, "may not be written") || strings.Contains(text, "\n") {
		t.Errorf("says %q", text)
	}
	wantPending(t, w, s.workers, perPick)
	only(0)
	poll(t, w, feed)
	wantPending(t, w, s.workers, 3*perPick)
}

func TestPostgresThatMayNotBeWrittenSaysSo(t *testing.T) {
	needPostgres(t)
	place := spaces.take(t)
	t.Cleanup(func() { spaces.give(t, place) })
	s := newSwarm(t, 1)
	must(t, openWallet(t, place, s).Close())
	w, err := OpenWallet(t.Context(), place+"&default_transaction_read_only=on", s.root.Public(), nil)
	if err == nil {
		_, err = w.Poll(t.Context(), "hub", s.entries(next(t, s.reporter(1, 0), 1)))
		must(t, w.Close())
	}
	if err == nil || !strings.Contains(err.Error(), "may not be written") || strings.Contains(err.Error(), "\n") {
		t.Errorf("says %v", err)
	}
}

// Files that were cut, or are of nothing, are named and no more; what is left of them stays as it is.
func TestFilesThatAreCutAreRefused(t *testing.T) {
	s := newSwarm(t, 1)
	for name, change := range map[string]func([]byte) []byte{
		"half":        func(b []byte) []byte { return b[:len(b)/2] },
		"a header":    func(b []byte) []byte { return b[:100] },
		"a few bytes": func(b []byte) []byte { return b[:7] },
		"zeros":       func(b []byte) []byte { return make([]byte, len(b)) },
		"a page less": func(b []byte) []byte { return b[:len(b)-4096] },
	} {
		t.Run(name, func(t *testing.T) {
			path := temp(t)
			w := openWallet(t, path, s)
			poll(t, w, s.entries(next(t, s.reporter(1, 0), 1)))
			must(t, w.Close())
			data, err := os.ReadFile(path)
			must(t, err)
			must(t, os.WriteFile(path, change(data), 0o600))
			w, err = OpenWallet(t.Context(), path, s.root.Public(), nil)
			if err == nil {
				err = errors.Join(w.Verify(t.Context()), w.Close())
			}
			wantError(t, err, ErrDamaged)
			if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), path) {
				t.Errorf("not one line with the path: %v", err)
			}
		})
	}
}

// A hub that shows nothing but garbage fills neither the disk nor the log, and all of it is counted.
func TestGarbageIsCountedAndFillsNothing(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		var said bytes.Buffer
		w, err := OpenWallet(t.Context(), temp(t), s.root.Public(), slog.New(slog.NewTextHandler(&said, nil)))
		must(t, err)
		t.Cleanup(func() { _ = w.Close() })
		w.keep = 20
		poll(t, w, s.entries([]byte("garbage")))
		_, err = w.Poll(t.Context(), "another", s.entries([]byte("other garbage")))
		must(t, err)
		const garbage = 100
		feed := s.entries(make([][]byte, garbage)...)
		feed = append(feed, s.entries(next(t, s.reporter(1, 0), 1))...).renumber()
		poll(t, w, feed)
		wantPending(t, w, s.workers, perPick)
		list, err := w.Refusals(t.Context(), 1000)
		must(t, err)
		if len(list) != w.keep+1 || list[0].Entry != garbage || list[len(list)-1].Hub != "another" {
			t.Errorf("%d refusals are kept, from %+v to %+v", len(list), list[0], list[len(list)-1])
		}
		if n := w.Counts()["refused_ledger_report"]; n != garbage+1 {
			t.Errorf("%d are counted", n)
		}
		if n := strings.Count(said.String(), "level=WARN"); n != 1+1+maxSaid+1 || !strings.Contains(said.String(), fmt.Sprintf("entries=%d", garbage-1-maxSaid)) {
			t.Errorf("said %d times:\n%s", n, &said)
		}
	})
}
