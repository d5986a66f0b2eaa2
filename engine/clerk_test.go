package engine

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"kvasir/engine/ledger"
	"kvasir/wire"
	"kvasir/wire/relay"
	"kvasir/wire/seal"
)

// hall is a hub with a ledger, a wallet, and a clerk that goes to the hub.
type hall struct {
	t        *testing.T
	books    *ledger.Hub
	wallet   *ledger.Wallet
	clerk    *clerk
	backbone seal.Grant
	reporter *ledger.Reporter
	picks    int64                    // that the worker has answered in layer 3
	counts   func() map[string]uint64 // of the hub
}

const hallSession = "000102030405060708090a0b0c0d0e0f"

func newHall(t *testing.T) *hall {
	ctx, dir := t.Context(), t.TempDir()
	root, hubKey, key, own := seal.NewKey(), seal.NewKey(), seal.NewKey(), seal.NewKey()
	h := &hall{t: t}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	h.books, err = ledger.OpenHub(ctx, filepath.Join(dir, "hub.db"), nil)
	check(err)
	h.wallet, err = ledger.OpenWallet(ctx, filepath.Join(dir, "wallet.db"), root.Public(), nil)
	check(err)
	c := relay.HubConfig{Key: hubKey, Root: root.Public(), Plain: true}
	keepBooks(&c, h.books)
	hub, err := relay.NewHub(c)
	check(err)
	h.counts = hub.Counts
	l, err := relay.Listen("127.0.0.1:0")
	check(err)
	served := make(chan error, 1)
	go func() { served <- hub.Serve(l) }() // ends with Close
	h.backbone, err = seal.SignGrant(root, seal.Grant{Role: seal.Backbone, Key: key.Public(), Issued: time.Now()})
	check(err)
	token, err := seal.SignToken(root, seal.Token{Role: seal.Worker, Issued: time.Now(), Hub: hub.ID()})
	check(err)
	outbox, err := Home(dir).openOutbox(ctx, seal.Worker, nil)
	check(err)
	t.Cleanup(func() {
		hub.Close()
		if err := errors.Join(<-served, outbox.Close(), h.wallet.Close(), h.books.Close()); err != nil {
			t.Error(err)
		}
	})
	h.clerk = &clerk{
		key: own, hub: hub.ID(), outbox: outbox, picks: func() []int64 { return []int64{0, 0, 0, h.picks} }, now: time.Now,
		log: slog.New(slog.DiscardHandler), queue: make(chan ledger.Item, clerkQueue), every: clerkEvery,
		dial: dialStatements(relay.WorkerConfig{
			Address: "ws://" + l.Addr().String(), Key: own, Join: seal.Join{Host: "test", Token: token, Root: root.Public()},
		}),
	}
	id, err := ledger.ParseSessionID(hallSession)
	check(err)
	h.reporter = ledger.NewReporter(key, ledger.Subject{Session: id, Worker: own.Public(), Hidden: 3072})
	return h
}

// receipt is the next of the backbone.
func (h *hall) receipt(sequence int64, picks int64) wire.Receipt {
	h.t.Helper()
	if err := h.reporter.Count(3, picks); err != nil {
		h.t.Fatal(err)
	}
	signed, err := h.reporter.Report(time.Now(), true, func(int64) (ledger.Traffic, ledger.Audit) {
		return ledger.Traffic{}, ledger.Audit{Mode: ledger.Sampled}
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.reporter.Done(sequence)
	return wire.Receipt{Sequence: uint64(sequence), Signed: signed}
}

// keep does what clerk.run does with the receipts that have come.
func (h *hall) keep(want int) {
	h.t.Helper()
	if len(h.clerk.queue) != want {
		h.t.Fatalf("%d receipts are to be kept, want %d", len(h.clerk.queue), want)
	}
	for range want {
		h.clerk.keep(h.t.Context(), <-h.clerk.queue)
	}
}

func (h *hall) wantStanding(disputed int64, trouble string, unread int) {
	h.t.Helper()
	d, why, n := h.clerk.standing()
	if d != disputed || why != trouble || n != unread {
		h.t.Fatalf("%d disputed (%q), %d unread; want %d, %q, %d", d, why, n, disputed, trouble, unread)
	}
}

func (h *hall) wantBrought() {
	h.t.Helper()
	if said := h.clerk.bring(h.t.Context(), ""); said != "" {
		h.t.Fatalf("not brought: %s", said)
	}
}

// TestClerkBringsStatementsUntilTheyAreRead countersigns one receipt and disputes another. The hub knows
// nothing of the session, as one that was put back from an old copy.
func TestClerkBringsStatementsUntilTheyAreRead(t *testing.T) {
	h := newHall(t)
	h.picks = 1000 // of a session before
	h.clerk.begin(hallSession)
	h.picks += 8
	h.clerk.take(h.backbone, hallSession, h.receipt(1, 8))
	h.clerk.take(h.backbone, hallSession, h.receipt(2, 1))
	h.clerk.take(h.backbone, "another", h.receipt(3, 1))
	h.keep(2)
	h.wantStanding(1, ledger.TooMany.String(), 2)
	h.wantBrought()
	h.wantBrought()
	h.wantStanding(1, ledger.TooMany.String(), 2)
	got, err := h.wallet.Poll(t.Context(), "hub", h.books)
	if want := (ledger.Polled{Entries: 4, Credited: 2, Stated: 2, Disputed: 1, Reward: 9 * 3072 * 4 * 7}); err != nil || got != want {
		t.Fatalf("polled %+v, %v, want %+v", got, err, want)
	}
	h.wantBrought()
	h.wantStanding(1, ledger.TooMany.String(), 0)
	if err := h.wallet.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestClerkKeepsWhatTheHubDoesNotTake ends with the hub away, and the receipts on the disk.
func TestClerkKeepsWhatTheHubDoesNotTake(t *testing.T) {
	h := newHall(t)
	dial := h.clerk.dial
	h.clerk.dial = func(context.Context) (saying, error) { return nil, relay.ErrNotThere }
	h.clerk.begin(hallSession)
	h.picks = 8
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.clerk.run(ctx)
	}()
	h.clerk.take(h.backbone, hallSession, h.receipt(1, 8))
	cancel()
	<-done
	h.wantStanding(0, "", 1)
	h.clerk.dial = dial
	h.wantBrought()
	if got, err := h.wallet.Poll(t.Context(), "hub", h.books); err != nil || got.Stated != 1 || got.Credited != 1 {
		t.Fatalf("polled %+v, %v", got, err)
	}
}

// TestHubTakesFromAWorkerItsOwnOnly brings what another has done, and what no backbone of the root signed.
func TestHubTakesFromAWorkerItsOwnOnly(t *testing.T) {
	h := newHall(t)
	h.clerk.begin(hallSession)
	h.picks = 8
	h.clerk.take(h.backbone, hallSession, h.receipt(1, 8))
	h.keep(1)
	own := h.clerk.key
	stranger := seal.NewKey()
	fake, err := seal.SignGrant(stranger, seal.Grant{Role: seal.Backbone, Key: h.backbone.Key, Issued: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := h.clerk.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	items := map[string]ledger.Item{"no report": {Grant: h.backbone, Report: []byte("x"), Statement: []byte("y")}}
	err = h.clerk.outbox.Flush(t.Context(), h.clerk.hub, func(_ context.Context, i ledger.Item) (ledger.Given, error) {
		items["good"] = i
		i.Grant = fake
		items["grant of another root"] = i
		return ledger.Given{}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, i := range items {
		g, err := giveItem(t.Context(), s, i)
		if err != nil || (g.Refused == "") != (name == "good") {
			t.Errorf("%s: %+v, %v", name, g, err)
		}
	}
	if n := h.counts(); n["refused_statement"] != 2 || n["statements"] != 1 {
		t.Errorf("counted %v, want 2 refused", n)
	}
	for _, p := range []seal.Proof{{Key: stranger.Public()}, {Key: own.Public()}} {
		_, err := hear(t.Context(), h.books, seal.PublicKey{}, p, []byte("{"))
		if err == nil {
			t.Error("half of JSON was taken")
		}
	}
}

// TestAWorkerWorksAMinuteForNobody looks every 5 s, as a session does.
func TestAWorkerWorksAMinuteForNobody(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	for _, tt := range []struct {
		name   string
		work   func(second int) bool // does it work in the 5 s before
		signed func(second int) bool // does a receipt come then
		want   int                   // second in which it leaves; 0: it does not
	}{
		{"nobody signs", func(int) bool { return true }, func(int) bool { return false }, 65},
		{"signed", func(int) bool { return true }, func(s int) bool { return s%10 == 0 }, 0},
		{"signed for a while", func(int) bool { return true }, func(s int) bool { return s < 100 && s%10 == 0 }, 155},
		{"nothing to do", func(int) bool { return false }, func(int) bool { return false }, 0},
		{"one answer is dropped", func(s int) bool { return s == 20 || s == 200 }, func(int) bool { return false }, 0},
	} {
		var c credit
		c.begin("one", 100)
		output, left := int64(100), 0
		for s := 5; s <= 600 && left == 0; s += 5 {
			if tt.work(s) {
				output += 7
			}
			if c.unsigned(output, start.Add(time.Duration(s)*time.Second)) {
				left = s
			}
			if tt.signed(s) {
				c.fresh = true // as take does
				c.kept()
			}
		}
		if left != tt.want {
			t.Errorf("%s: it leaves at %d s, want %d", tt.name, left, tt.want)
		}
	}
}
