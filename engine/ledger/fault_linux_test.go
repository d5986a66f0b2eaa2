package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"kvasir/internal/baddisk"
)

// A disk refuses what a hub, its backbone's and worker's outboxes and a gateway write, each in turn, while work
// goes on. Nobody is told that anything is stored which is not; each says so once, and counts; and when the disk
// writes again, all comes right.
func TestADiskThatRefusesLosesAndAcknowledgesNothing(t *testing.T) {
	for name, fault := range map[string]baddisk.Fault{"full": baddisk.Full, "fsync": baddisk.Fsync} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			d, err := baddisk.New(folder)
			must(t, err)
			s := newSwarm(t, 1)
			ctx := t.Context()
			path := filepath.Join(folder, "hub.db")
			var said bytes.Buffer
			log := slog.New(slog.NewTextHandler(&said, nil))
			h, err := OpenHub(ctx, path, log)
			must(t, err)
			w, err := OpenWallet(ctx, filepath.Join(folder, "wallet.db"), s.root.Public(), log)
			must(t, err)
			box, err := OpenOutbox(ctx, filepath.Join(folder, "outbox.db"), log)
			must(t, err)
			must(t, h.Begin(ctx, s.session(1, 0)))
			r := s.reporter(1, 0)
			one, two := next(t, r, 1), next(t, r, 2)
			_, err = h.Append(ctx, one)
			must(t, err)
			poll(t, w, h)

			d.Refuse("", fault)
			for range 3 { // whoever waits for an acknowledgement tries again
				_, err = h.Append(ctx, two)
				wantError(t, err, ErrUnwritten)
				g, err := h.Receive(ctx, Item{Grant: s.grant, Report: two})
				wantError(t, err, ErrUnwritten)
				if g != (Given{}) {
					t.Fatalf("acknowledged: %+v", g)
				}
				wantError(t, box.Put(ctx, Item{Hub: "hub", Grant: s.grant, Report: two}), ErrUnwritten)
				_, err = w.Poll(ctx, "hub", s.entries(one, two))
				wantError(t, err, ErrUnwritten)
			}
			page, err := h.After(ctx, Mark{}, PageMax) // it is still read
			must(t, err)
			n, err := box.Waiting(ctx)
			must(t, err)
			b, err := w.Balance(ctx, s.workers[0])
			must(t, err)
			if page.Last != 1 || n != 0 || b.Pending != perPick {
				t.Fatalf("the hub has %d reports, the outbox %d, the worker %d nKVR", page.Last, n, b.Pending)
			}
			if got := h.Counts()["ledger_unwritten"]; got != 6 {
				t.Errorf("%d of the hub's entries are counted, want 6", got)
			}
			if got := strings.Count(said.String(), "cannot be written"); got != 3 {
				t.Errorf("said %d times, want once by each of three:\n%s", got, &said)
			}

			d.Refuse("", baddisk.None)
			must(t, box.Put(ctx, Item{Hub: "hub", Grant: s.grant, Report: two}))
			must(t, box.Flush(ctx, "hub", h.Receive))
			poll(t, w, h)
			wantPending(t, w, s.workers, 3*perPick)
			if got := strings.Count(said.String(), "is written again"); got != 3 {
				t.Errorf("said %d times that it is written again:\n%s", got, &said)
			}
			must(t, errors.Join(h.Close(), w.Close(), box.Close()))
			again := openHub(t, path) // and it is on the disk
			page, err = again.After(ctx, Mark{}, PageMax)
			must(t, err)
			if page.Last != 2 {
				t.Fatalf("the hub has %d reports", page.Last)
			}
		})
	}
}

// SQLite's own limit of a file, which refuses in the middle of a transaction: one of a group is too much.
func TestAFullFileRefusesOneAndStoresOthers(t *testing.T) {
	s := newSwarm(t, 1)
	h := openHub(t, filepath.Join(t.TempDir(), "hub.db"))
	var pages int
	must(t, h.file.update(t.Context(), func(t *tx) error { // of the writer's connection
		ctx := context.Background()
		if err := t.QueryRowContext(ctx, "PRAGMA page_count").Scan(&pages); err != nil {
			return err
		}
		return t.QueryRowContext(ctx, fmt.Sprintf("PRAGMA max_page_count = %d", pages+3)).Scan(&pages)
	}))
	stored := 0
	var refused error
	for n := range 200 {
		if err := h.Begin(t.Context(), Session{ID: SessionID{1, byte(n)}, Worker: s.workers[0], Backbone: s.grant, Start: epoch}); err != nil {
			refused = err
			break
		}
		stored++
	}
	wantError(t, refused, ErrUnwritten)
	if !strings.Contains(refused.Error(), "no room on the disk") || strings.Contains(refused.Error(), "\n") {
		t.Errorf("not one clear line: %v", refused)
	}
	must(t, h.Meter(t.Context(), Count{SessionID{1, 0}, 5, 6})) // needs no room
	work, err := h.Work(t.Context())
	must(t, err)
	if len(work) != 1 || work[0].Sessions != int64(stored) || work[0].ToWorker != 5 {
		t.Fatalf("%+v, want %d sessions", work, stored)
	}
}
