package ledger

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"kvasir/wire/seal"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		os.Exit(child(path)) //nolint:forbidigo // TestMain ends the process
	}
	goleak.VerifyTestMain(tests{m})
}

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// swarm is a root, one backbone with its grant, and workers.
type swarm struct {
	root, backbone seal.Key
	grant          seal.Grant
	workers        []seal.PublicKey
}

func newSwarm(t testing.TB, workers int) *swarm {
	t.Helper()
	s := &swarm{root: seal.NewKey(), backbone: seal.NewKey()}
	s.grant = s.signGrant(t, seal.Backbone, s.backbone.Public())
	for range workers {
		s.workers = append(s.workers, seal.NewKey().Public())
	}
	return s
}

func (s *swarm) signGrant(t testing.TB, role seal.Role, key seal.PublicKey) seal.Grant {
	t.Helper()
	g, err := seal.SignGrant(s.root, seal.Grant{Role: role, Key: key, Issued: epoch, Expires: epoch.Add(24 * time.Hour)})
	must(t, err)
	return g
}

func (s *swarm) session(n byte, worker int) Session {
	return Session{ID: SessionID{n}, Worker: s.workers[worker], Backbone: s.grant, Start: epoch}
}

func (s *swarm) reporter(n byte, worker int) *Reporter {
	return NewReporter(s.backbone, Subject{Session: SessionID{n}, Worker: s.workers[worker], Model: Hash{1}, Profile: Hash{2},
		Hidden: 3072})
}

// next returns the next report of a reporter, of picks in layer 3.
func next(t testing.TB, r *Reporter, picks int64) []byte {
	t.Helper()
	return nextAudited(t, r, picks, Audit{Mode: Sampled})
}

// nextAudited is next, with what the report says of checking.
func nextAudited(t testing.TB, r *Reporter, picks int64, a Audit) []byte {
	t.Helper()
	must(t, r.Count(3, picks))
	signed, err := r.Report(epoch, true, func(int64) (Traffic, Audit) { return Traffic{1000, 2000}, a })
	must(t, err)
	r.Done(r.next.Sequence - 1)
	return signed
}

// entries makes a feed of reports.
func (s *swarm) entries(signed ...[]byte) memory {
	var m memory
	for _, b := range signed {
		m = append(m, Entry{ID: int64(len(m) + 1), Grant: s.grant.String(), Report: b})
	}
	return m
}

// memory is a Feed that is a slice, ids from 1.
type memory []Entry

func (m memory) After(_ context.Context, at Mark, limit int) (Page, error) {
	last := int64(len(m))
	from := min(at.ID, last)
	return Page{Entries: m[from:min(from+int64(limit), last)], Last: last}, nil
}

// feedFunc is a Feed that is a function.
type feedFunc func(ctx context.Context, at Mark, limit int) (Page, error)

func (f feedFunc) After(ctx context.Context, at Mark, limit int) (Page, error) {
	return f(ctx, at, limit)
}

func openHub(t testing.TB, path string) *Hub {
	t.Helper()
	h, err := OpenHub(t.Context(), path, nil)
	must(t, err)
	t.Cleanup(func() { _ = h.Close() })
	return h
}

func openWallet(t testing.TB, path string, s *swarm) *Wallet {
	t.Helper()
	w, err := OpenWallet(t.Context(), path, s.root.Public(), nil)
	must(t, err)
	t.Cleanup(func() { _ = w.Close() })
	return w
}

func poll(t testing.TB, w *Wallet, f Feed) Polled {
	t.Helper()
	sum, err := w.Poll(t.Context(), "hub", f)
	must(t, err)
	return sum
}

// pending returns the pending balances of workers, after checking all the books.
func pending(t testing.TB, w *Wallet, workers []seal.PublicKey) []NKVR {
	t.Helper()
	must(t, w.Verify(t.Context()))
	var sum int64
	must(t, w.file.db.QueryRowContext(t.Context(), "SELECT coalesce(sum(nkvr), 0) FROM entries").Scan(&sum))
	if sum != 0 {
		t.Fatalf("all entries add up to %d nKVR", sum)
	}
	var all []NKVR
	for _, k := range workers {
		b, err := w.Balance(t.Context(), k)
		must(t, err)
		all = append(all, b.Pending)
	}
	return all
}

func wantPending(t testing.TB, w *Wallet, workers []seal.PublicKey, want ...NKVR) {
	t.Helper()
	if got := pending(t, w, workers); !slices.Equal(got, want) {
		t.Fatalf("pending %v nKVR, want %v", nkvr(got), nkvr(want))
	}
}

func nkvr(all []NKVR) []int64 {
	var out []int64
	for _, n := range all {
		out = append(out, int64(n))
	}
	return out
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t testing.TB, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error is %v, want %v", err, want)
	}
}
