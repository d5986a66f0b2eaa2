package ledger

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// Four gateways share wallets and read two hubs, which share a ledger too, at once and page by page.
func TestSeveralGatewaysAndHubsCreditOnce(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 4)
		books, purse := temp(t), temp(t)
		hubs := []*Hub{openHub(t, books), openHub(t, books)}
		var appends sync.WaitGroup
		const each = 12
		for n := range s.workers {
			hub, r := hubs[n%2], s.reporter(byte(n), n)
			must(t, hub.Begin(t.Context(), s.session(byte(n), n)))
			var reports [][]byte
			for range each {
				reports = append(reports, next(t, r, int64(n+1)))
			}
			appends.Go(func() {
				for _, signed := range reports {
					if _, err := hub.Append(t.Context(), signed); err != nil {
						t.Error(err)
					}
				}
			})
		}
		var polls sync.WaitGroup
		done := make(chan struct{})
		var credited [4]int
		for n := range credited {
			w := openWallet(t, purse, s)
			polls.Go(func() {
				for last := false; !last; {
					select {
					case <-done:
						last = true
					default:
					}
					for i, hub := range hubs {
						small := feedFunc(func(ctx context.Context, at Mark, _ int) (Page, error) { return hub.After(ctx, at, 3) })
						sum, err := w.Poll(t.Context(), fmt.Sprint("hub ", i), small)
						if err != nil {
							t.Error(err)
							return
						}
						credited[n] += sum.Credited
					}
				}
			})
		}
		appends.Wait()
		close(done)
		polls.Wait()
		page, err := hubs[0].After(t.Context(), Mark{}, PageMax)
		must(t, err)
		for i, e := range page.Entries {
			if e.ID != int64(i+1) {
				t.Fatalf("entry %d has id %d", i+1, e.ID)
			}
		}
		sum := credited[0] + credited[1] + credited[2] + credited[3]
		if sum != each*len(s.workers) || len(page.Entries) != sum {
			t.Fatalf("%d reports were credited by %v, of %d", sum, credited, len(page.Entries))
		}
		wantPending(t, openWallet(t, purse, s), s.workers, each*perPick, 2*each*perPick, 3*each*perPick, 4*each*perPick)
	})
}

func TestPostgresIsRefused(t *testing.T) {
	needPostgres(t)
	s := newSwarm(t, 1)
	for _, c := range []struct {
		name string
		make func(t *testing.T) string
		want error
	}{
		{"no address", func(*testing.T) string { return "postgres://kvasir:secret@[/x" }, ErrNotLedger},
		{"a setting that there is not", func(*testing.T) string { return "postgres://kvasir:secret@127.0.0.1/x?sslmode=secret" }, ErrNotLedger},
		{"nobody there", func(*testing.T) string { return "postgres://kvasir:secret@127.0.0.1:1/x" }, nil},
		{"from the future", func(t *testing.T) string {
			place := spaces.take(t)
			spaces.keep(place)
			must(t, openWallet(t, place, s).Close())
			script(t, "INSERT INTO "+spaceOf(t, place, walletFile)+".goose_db_version (version_id, is_applied) VALUES (99, true)")
			return place
		}, ErrNewer},
		{"another program's", func(t *testing.T) string {
			place := spaces.take(t)
			spaces.keep(place)
			must(t, openWallet(t, place, s).Close())
			script(t, "DROP TABLE "+spaceOf(t, place, walletFile)+".goose_db_version")
			return place
		}, ErrNotLedger},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := OpenWallet(t.Context(), c.make(t), s.root.Public(), nil)
			if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n") {
				t.Fatalf("not one line without the password: %v", err)
			}
			if c.want != nil {
				wantError(t, err, c.want)
			}
		})
	}
}

func TestPostgresIsDurable(t *testing.T) {
	needPostgres(t)
	place := spaces.take(t)
	t.Cleanup(func() { spaces.give(t, place) })
	h := openHub(t, place+"&synchronous_commit=off")
	var got string
	must(t, h.file.db.QueryRowContext(t.Context(), "SHOW synchronous_commit").Scan(&got))
	if got != "on" {
		t.Fatalf("synchronous_commit is %s, want on", got)
	}
}
