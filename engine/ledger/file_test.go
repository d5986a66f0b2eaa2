package ledger

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestFilesAreForTheOwnerOnly(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no modes; the folder's rights count there")
	}
	dir := filepath.Join(t.TempDir(), "state")
	s := newSwarm(t, 1)
	path := filepath.Join(dir, "a?b#c%20d é.db")
	h := openHub(t, path)
	must(t, h.Begin(t.Context(), s.session(1, 0)))
	names, err := os.ReadDir(dir)
	must(t, err)
	if len(names) != 3 {
		t.Fatalf("files are %v, want a database with -wal and -shm", names)
	}
	for _, n := range names {
		info, err := n.Info()
		must(t, err)
		if info.Mode().Perm() != 0o600 || !strings.HasPrefix(n.Name(), filepath.Base(path)) {
			t.Errorf("%s has mode %v", n.Name(), info.Mode())
		}
	}
	info, err := os.Stat(dir)
	must(t, err)
	if info.Mode().Perm() != 0o700 {
		t.Errorf("folder has mode %v", info.Mode())
	}
}

func TestFileIsDurable(t *testing.T) {
	h := openHub(t, temp(t))
	for pragma, want := range map[string]string{
		"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "5000",
	} {
		var got string
		must(t, h.file.db.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got))
		if got != want {
			t.Errorf("%s is %s, want %s", pragma, got, want)
		}
	}
}

func TestFileIsRefused(t *testing.T) {
	s := newSwarm(t, 1)
	// damage overwrites all of the file but its first bytes.
	damage := func(t *testing.T, path string, from int64) {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		must(t, err)
		info, err := f.Stat()
		must(t, err)
		_, err = f.WriteAt([]byte(strings.Repeat("damage! ", int(info.Size()-from)/8)), from)
		must(t, err)
		must(t, f.Close())
	}
	for _, c := range []struct {
		name string
		make func(t *testing.T, path string)
		want error
	}{
		{"text", func(t *testing.T, path string) {
			must(t, os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600))
		}, ErrDamaged},
		{"header damaged", func(t *testing.T, path string) {
			must(t, openWallet(t, path, s).Close())
			damage(t, path, 0)
		}, ErrDamaged},
		{"pages damaged", func(t *testing.T, path string) {
			must(t, openWallet(t, path, s).Close())
			damage(t, path, 100)
		}, ErrDamaged},
		{"a hub's", func(t *testing.T, path string) { must(t, openHub(t, path).Close()) }, ErrNotLedger},
		{"another program's", func(t *testing.T, path string) {
			w := openWallet(t, path, s)
			run(t, w, "PRAGMA application_id = 0")
			must(t, w.Close())
		}, ErrNotLedger},
		{"from the future", func(t *testing.T, path string) {
			w := openWallet(t, path, s)
			run(t, w, "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)")
			must(t, w.Close())
		}, ErrNewer},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := temp(t)
			c.make(t, path)
			_, err := OpenWallet(t.Context(), path, s.root.Public(), nil)
			wantError(t, err, c.want)
			if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), path) {
				t.Errorf("not one line with the path: %v", err)
			}
		})
	}
	if _, err := OpenHub(t.Context(), t.TempDir(), nil); err == nil {
		t.Error("a folder was taken for a file")
	}
}

// A damaged row stops what depends on it, by name, and nothing else; what it has stopped comes again with a copy.
func TestDamageIsRefusedAndAllElseGoesOn(t *testing.T) {
	both(t, func(t *testing.T) {
		for name, damage := range map[string]string{
			"the report before": "UPDATE reports SET signed = substr(signed, 1, 20) WHERE id = 1",
			"an amount":         "UPDATE reports SET nkvr = nkvr + 7 WHERE id = 1",
		} {
			t.Run(name, func(t *testing.T) {
				s := newSwarm(t, 2)
				var said bytes.Buffer
				path := temp(t)
				w, err := OpenWallet(t.Context(), path, s.root.Public(), slog.New(slog.NewTextHandler(&said, nil)))
				must(t, err)
				t.Cleanup(func() { _ = w.Close() })
				a, b := s.reporter(1, 0), s.reporter(2, 1)
				feed := s.entries(next(t, a, 1), next(t, b, 10))
				poll(t, w, feed)
				copied := copyOf(t, path, walletFile)
				run(t, w, damage)
				feed = append(feed, s.entries(nextAudited(t, a, 2, holds(2)), nextAudited(t, b, 20, holds(2)))...).renumber()
				got := poll(t, w, feed)
				if got.Refused != 1 || got.Credited != 1 || w.Counts()["refused_ledger_damaged"] != 1 ||
					strings.Count(said.String(), ErrDamaged.Error()) != 1 {
					t.Fatalf("polled %+v, counted %v, said:\n%s", got, w.Counts(), &said)
				}
				poll(t, w, feed)
				other, err := w.Balance(t.Context(), s.workers[1])
				must(t, err)
				if other.Settled != 30*perPick {
					t.Fatalf("who has to do with it has %+v", other)
				}
				if err := w.Verify(t.Context()); !errors.Is(err, ErrUnbalanced) || !strings.Contains(err.Error(), "report 1") {
					t.Fatalf("verified: %v", err)
				}
				again := openWallet(t, copied, s)
				poll(t, again, feed)
				wantMoney(t, again, s.workers[0], money{settled: 3})
				wantMoney(t, again, s.workers[1], money{settled: 30})
			})
		}
	})
}

func TestCancelledWorkLeavesNothing(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		w := openWallet(t, temp(t), s)
		feed := s.entries(next(t, s.reporter(1, 0), 1))
		ctx, cancel := context.WithCancel(t.Context())
		w.file.step = func(statement string) {
			if strings.HasPrefix(statement, "INSERT INTO feeds") {
				cancel()
			}
		}
		_, err := w.Poll(ctx, "hub", feed)
		wantError(t, err, context.Canceled)
		w.file.step = nil
		wantPending(t, w, s.workers, 0)
		poll(t, w, feed)
		wantPending(t, w, s.workers, perPick)
	})
}

// A command reads the wallets while the gateway writes them.
func TestFileIsSharedByProcesses(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		path := temp(t)
		gateway := openWallet(t, path, s)
		r := s.reporter(1, 0)
		feed := s.entries(next(t, r, 1), next(t, r, 2))
		poll(t, gateway, feed[:1])
		gateway.file.step = func(string) {
			reader, err := OpenWallet(t.Context(), path, s.root.Public(), nil)
			must(t, err)
			_, err = reader.Balances(t.Context())
			must(t, err)
			must(t, reader.Close())
		}
		poll(t, gateway, feed)
		gateway.file.step = nil
		wantPending(t, gateway, s.workers, 3*perPick)
	})
}
