package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
)

// hold makes the writer of a file busy until the function that it returns is called.
func hold(t *testing.T, f *file) (let func()) {
	t.Helper()
	in, out := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.update(context.Background(), func(*tx) error { close(in); <-out; return ErrGap }); !errors.Is(err, ErrGap) {
			t.Error(err)
		}
	})
	<-in
	return func() { close(out); wg.Wait() }
}

// What waits is one transaction: those of it that are refused leave nothing, those that give up are not begun.
func TestAGroupIsOneTransaction(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		h := openHub(t, temp(t))
		must(t, h.Begin(t.Context(), s.session(1, 0)))
		before := h.file.w.groups.Load()
		let := hold(t, h.file)
		var wg sync.WaitGroup
		errs := make([]error, 32)
		gone, cancel := context.WithCancel(t.Context())
		for i := range errs {
			wg.Go(func() {
				ctx := t.Context()
				if i%4 == 3 {
					ctx = gone
				}
				errs[i] = h.file.update(ctx, func(t *tx) error {
					err := t.exec(ctx, `INSERT INTO sessions (id, worker, backbone, grant_text, started, ended, to_worker, to_backbone)
						VALUES ($1, '', '', '', 0, 0, 0, 0)`, fmt.Sprint(i))
					if err == nil && i%4 == 1 {
						err = ErrFork
					}
					return err
				})
			})
		}
		cancel()
		let()
		wg.Wait()
		stored := 0
		for i, err := range errs {
			switch i % 4 {
			case 1:
				wantError(t, err, ErrFork)
			case 3:
				wantError(t, err, context.Canceled)
			default:
				must(t, err)
				stored++
			}
		}
		var n int
		must(t, h.file.db.QueryRowContext(t.Context(), "SELECT count(*) FROM sessions WHERE worker = ''").Scan(&n))
		if n != stored {
			t.Fatalf("%d are stored, want %d", n, stored)
		}
		if got := h.file.w.groups.Load() - before; got > uint64(stored) {
			t.Errorf("%d transactions for %d jobs", got, stored)
		}
	})
}

// A job at which the database fails is alone with that.
func TestAFailureInAGroupIsOnesOwn(t *testing.T) {
	both(t, func(t *testing.T) {
		h := openHub(t, temp(t))
		f := h.file
		let := hold(t, f)
		insert := func(id string) error {
			return f.update(t.Context(), func(x *tx) error {
				return x.exec(t.Context(), `INSERT INTO sessions (id, worker, backbone, grant_text, started, ended, to_worker, to_backbone)
					VALUES ($1, '', '', '', 0, 0, 0, 0)`, id)
			})
		}
		var wg sync.WaitGroup
		errs := make([]error, 9)
		for i := range errs {
			wg.Go(func() { errs[i] = insert(fmt.Sprint(i / 2)) }) // most are there twice
		}
		let()
		wg.Wait()
		failed := 0
		for _, err := range errs {
			if err != nil {
				wantError(t, err, ErrUnwritten)
				failed++
			}
		}
		if failed != 4 || h.Counts()["ledger_unwritten"] != 4 {
			t.Fatalf("%d failed, %d counted, want 4", failed, h.Counts()["ledger_unwritten"])
		}
		must(t, insert("more"))
	})
}

func TestAClosedLedgerTakesNothing(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		h := openHub(t, temp(t))
		must(t, h.Close())
		wantError(t, h.Begin(t.Context(), s.session(1, 0)), ErrClosed)
	})
}
