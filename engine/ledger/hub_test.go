package ledger

import (
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	"kvasir/wire/seal"
)

func TestHubTakesReportsOnce(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		h := openHub(t, temp(t))
		ctx := t.Context()
		must(t, h.Begin(ctx, s.session(1, 0)))
		must(t, h.Begin(ctx, s.session(1, 0)))
		r := s.reporter(1, 0)
		one, two, three := next(t, r, 8), next(t, r, 16), next(t, r, 24)
		for _, signed := range [][]byte{one, one, two, one, two, three, three, one} {
			_, err := h.Append(ctx, signed)
			must(t, err)
		}
		page, err := h.After(ctx, Mark{}, 10)
		must(t, err)
		for i := range page.Entries {
			if len(page.Entries[i].Mark) != len(Hash{}) {
				t.Fatalf("entry %d has a mark of %d bytes", i+1, len(page.Entries[i].Mark))
			}
			page.Entries[i].Mark = nil // random
		}
		if want := (Page{Entries: s.entries(one, two, three), Last: 3}); !reflect.DeepEqual(page, want) {
			t.Fatalf("feed is %+v\nwant    %+v", page, want)
		}
		work, err := h.Work(ctx)
		must(t, err)
		if want := []Work{{Worker: s.workers[0], Sessions: 1, Picks: 48, Output: 48 * 3072 * 4}}; !reflect.DeepEqual(work, want) {
			t.Fatalf("work is %+v, want %+v", work, want)
		}
	})
}

func TestHubRefusesReports(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		h := openHub(t, temp(t))
		ctx := t.Context()
		must(t, h.Begin(ctx, s.session(1, 0)))
		must(t, h.Begin(ctx, s.session(2, 0)))
		r := s.reporter(1, 0)
		one, two, three := next(t, r, 1), next(t, r, 2), next(t, r, 3)
		_, err := h.Append(ctx, one)
		must(t, err)
		_, err = h.Append(ctx, two)
		must(t, err)

		fork := s.reporter(1, 0)
		otherOne, otherTwo, otherThree := next(t, fork, 1), next(t, fork, 99), next(t, fork, 3)
		if string(otherOne) != string(one) {
			t.Fatal("same report, other bytes")
		}
		stranger := seal.NewKey()
		forged := append([]byte{}, three...)
		forged[len(forged)-1] ^= 1
		foreign := next(t, NewReporter(stranger, Subject{Session: SessionID{1}, Worker: s.workers[0], Hidden: 3072}), 1)
		for _, c := range []struct {
			name   string
			signed []byte
			want   error
		}{
			{"no report", []byte("hello"), ErrBadReport},
			{"cut", three[:len(three)-1], ErrBadReport},
			{"forged", forged, ErrBadSignature},
			{"of an unknown session", next(t, s.reporter(9, 0), 1), ErrNoSession},
			{"of another backbone", foreign, ErrWrongSession},
			{"of another worker", next(t, s.reporter(1, 1), 1), ErrWrongSession},
			{"fork in the past", otherTwo, ErrFork},
			{"fork to come", otherThree, ErrFork},
			{"gap", func() []byte { next(t, r, 4); return next(t, r, 5) }(), ErrGap},
			{"gap at the start", func() []byte { x := s.reporter(2, 0); next(t, x, 4); return next(t, x, 5) }(), ErrGap},
		} {
			t.Run(c.name, func(t *testing.T) {
				_, err := h.Append(t.Context(), c.signed)
				wantError(t, err, c.want)
			})
		}
		_, err = h.Append(ctx, three)
		must(t, err) // nothing of the above is left behind
		page, err := h.After(ctx, Mark{}, 100)
		must(t, err)
		if page.Last != 3 {
			t.Fatalf("%d entries, want 3", page.Last)
		}
	})
}

func TestHubKeepsSessionsAndBytes(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 2)
		path := temp(t)
		h := openHub(t, path)
		ctx := t.Context()
		for n, worker := range []int{0, 0, 1} {
			must(t, h.Begin(ctx, s.session(byte(n), worker)))
		}
		wantError(t, h.Begin(ctx, s.session(0, 1)), ErrWrongSession)
		wantError(t, h.Begin(ctx, Session{ID: SessionID{7}, Backbone: s.grant}), ErrWrongSession)

		must(t, h.Meter(ctx, Count{SessionID{0}, 100, 200}, Count{SessionID{1}, 1, 2}, Count{SessionID{2}, 10, 20}))
		err := h.Meter(ctx, Count{SessionID{0}, 99, 300}, Count{SessionID{5}, 1, 1}, Count{SessionID{1}, 3, 2}, Count{SessionID{2}, 10, -1})
		wantError(t, err, ErrMeterBack)
		wantError(t, err, ErrNoSession)
		must(t, h.End(ctx, SessionID{0}, epoch.Add(time.Minute)))
		must(t, h.End(ctx, SessionID{0}, epoch.Add(time.Hour)))
		wantError(t, h.End(ctx, SessionID{5}, epoch), ErrNoSession)
		must(t, h.Close())

		h = openHub(t, path)
		got, err := h.Session(ctx, SessionID{0})
		must(t, err)
		want := s.session(0, 0)
		want.End, want.ToWorker, want.ToBackbone = epoch.Add(time.Minute), 100, 200
		if got.Backbone.String() != want.Backbone.String() {
			t.Errorf("grant %s, want %s", got.Backbone, want.Backbone)
		}
		got.Backbone, want.Backbone = seal.Grant{}, seal.Grant{}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("session %+v\nwant    %+v", got, want)
		}
		_, err = h.Session(ctx, SessionID{5})
		wantError(t, err, ErrNoSession)
		work, err := h.Work(ctx)
		must(t, err)
		totals := map[seal.PublicKey][3]int64{}
		for _, w := range work {
			totals[w.Worker] = [3]int64{w.Sessions, w.ToWorker, w.ToBackbone}
		}
		if want := (map[seal.PublicKey][3]int64{s.workers[0]: {2, 103, 202}, s.workers[1]: {1, 10, 20}}); !reflect.DeepEqual(totals, want) {
			t.Errorf("totals %v, want %v", totals, want)
		}
	})
}

func TestHubIsSafeForConcurrentUse(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 4)
		h := openHub(t, temp(t))
		var wg sync.WaitGroup
		errs := make([]error, len(s.workers))
		for n := range s.workers {
			must(t, h.Begin(t.Context(), s.session(byte(n), n)))
			r := s.reporter(byte(n), n)
			reports := [][]byte{next(t, r, 1), next(t, r, 2), next(t, r, 3)}
			wg.Go(func() {
				for i, signed := range reports {
					_, err := h.Append(t.Context(), signed)
					errs[n] = errors.Join(errs[n], err, h.Meter(t.Context(), Count{SessionID{byte(n)}, int64(i), int64(i)}))
				}
			})
			wg.Go(func() {
				for range reports {
					page, err := h.After(t.Context(), Mark{}, PageMax)
					if err == nil {
						err = page.check(0, PageMax)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		must(t, errors.Join(errs...))
		page, err := h.After(t.Context(), Mark{ID: 10}, 1)
		must(t, err)
		if len(page.Entries) != 1 || page.Entries[0].ID != 11 || page.Last != 12 {
			t.Fatalf("page is %+v", page)
		}
	})
}
