package ledger

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestWalletAgreesWithModel does what comes to mind to a wallet, with crashes, repeated, reordered and
// forged entries and hubs that forget, and compares it with a model that is a few sums.
//
// Of PostgreSQL it does so a few times, unless KVASIR_SOAK is set.
func TestWalletAgreesWithModel(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 3)
		empty := temp(t)
		must(t, openWallet(t, empty, s).Close())
		run := 0
		rapid.Check(t, func(rt *rapid.T) {
			if run++; isURL(empty) && run > postgresRuns && os.Getenv("KVASIR_SOAK") == "" {
				return // a copy takes long there
			}
			m := &model{t: t, rt: rt, s: s, at: copyOf(t, empty, walletFile)}
			m.w = openWallet(t, m.at, s)
			for n := range 4 {
				m.reporters = append(m.reporters, s.reporter(byte(n), n%3))
			}
			ops := map[string]func(){
				"report": m.report, "poll": m.poll, "crash": m.crash, "repeat": m.repeat,
				"forge": m.forge, "forget": m.forget, "reorder": m.reorder,
			}
			names := []string{"report", "report", "poll", "crash", "repeat", "forge", "forget", "reorder"}
			for _, op := range rapid.SliceOfN(rapid.SampledFrom(names), 1, 12).Draw(rt, "ops") {
				ops[op]()
				m.inBalance()
			}
			m.poll()
			m.inTheEnd()
			m.close()
		})
	})
}

// postgresRuns is how many runs of the model there are on PostgreSQL.
const postgresRuns = 8

type model struct {
	t  *testing.T
	rt *rapid.T
	s  *swarm
	at string // the wallet's place

	w         *Wallet
	reporters []*Reporter
	feed      memory
	earned    [3]NKVR
	chains    [4][]NKVR // of each reporter: what its reports are worth
	holds     [4]int64  // how many of them hold
}

func (m *model) close() {
	must(m.t, m.w.Close())
	if isURL(m.at) {
		spaces.give(m.t, m.at)
	}
}

// inBalance checks the books, and that nobody has more than was earned, or settled than holds.
func (m *model) inBalance() {
	m.all(func(i int, b Balance, settled NKVR) {
		if got := b.Pending + b.Settled + b.Voided; got > m.earned[i] {
			m.rt.Fatalf("worker %d has %d nKVR, earned %d", i, got, m.earned[i])
		}
		if b.Settled > settled {
			m.rt.Fatalf("worker %d has %d nKVR settled, of which %d hold", i, b.Settled, settled)
		}
	})
}

// inTheEnd checks that all has come. Only rows of worker 2 are ever wrong, and how much that voids depends on
// what has come before it.
func (m *model) inTheEnd() {
	m.all(func(i int, b Balance, settled NKVR) {
		if got := b.Pending + b.Settled + b.Voided; got != m.earned[i] {
			m.rt.Fatalf("worker %d has %d nKVR in all, earned %d", i, got, m.earned[i])
		}
		if i != liar && (b.Settled != settled || b.Voided != 0) {
			m.rt.Fatalf("worker %d has %d nKVR settled and %d voided, want %d and 0", i, b.Settled, b.Voided, settled)
		}
	})
}

const liar = 2

// all verifies, and goes through workers with what of their work holds.
func (m *model) all(f func(worker int, b Balance, settled NKVR)) {
	pending(m.t, m.w, m.s.workers) // which verifies
	for i, k := range m.s.workers {
		b, err := m.w.Balance(m.t.Context(), k)
		must(m.t, err)
		var settled NKVR
		for n := i; n < len(m.chains); n += 3 {
			for _, worth := range m.chains[n][:m.holds[n]] {
				settled += worth
			}
		}
		f(i, b, settled)
	}
}

func (m *model) add(signed []byte) {
	m.feed = append(m.feed, Entry{ID: int64(len(m.feed) + 1), Grant: m.s.grant.String(), Report: signed})
}

func (m *model) report() {
	n := rapid.IntRange(0, len(m.reporters)-1).Draw(m.rt, "session")
	picks := rapid.Int64Range(0, 1<<20).Draw(m.rt, "picks")
	a := Audit{Mode: Sampled, Holds: rapid.Int64Range(m.holds[n], int64(len(m.chains[n]))+1).Draw(m.rt, "holds")}
	if n%3 == liar && rapid.IntRange(0, 3).Draw(m.rt, "wrong") == 0 {
		a.Checked, a.Wrong, a.Evidence = 1, 1, Hash{1}
	}
	m.add(nextAudited(m.t, m.reporters[n], picks, a))
	m.chains[n] = append(m.chains[n], NKVR(picks)*perPick)
	m.holds[n] = a.Holds
	m.earned[n%3] += NKVR(picks) * perPick
}

func (m *model) poll() {
	small := feedFunc(func(ctx context.Context, at Mark, _ int) (Page, error) { return m.feed.After(ctx, at, 2) })
	_, err := m.w.Poll(m.t.Context(), "hub", small)
	if errors.Is(err, ErrFeedBack) {
		m.rt.Fatalf("the feed did not go back: %v", err)
	}
	must(m.t, err)
}

// crash polls, and goes on with the files of some moment in it.
func (m *model) crash() {
	moment := rapid.IntRange(0, 30).Draw(m.rt, "moment")
	left := ""
	m.w.file.step = func(string) {
		if moment == 0 {
			left = copyOf(m.t, m.at, walletFile)
		}
		moment--
	}
	m.poll()
	m.w.file.step = nil
	if left == "" {
		left = copyOf(m.t, m.at, walletFile)
	}
	m.close()
	m.at = left
	m.w = openWallet(m.t, m.at, m.s)
}

// repeat puts entries into the feed again.
func (m *model) repeat() {
	if len(m.feed) > 0 {
		m.add(m.feed[rapid.IntRange(0, len(m.feed)-1).Draw(m.rt, "entry")].Report)
	}
}

func (m *model) forge() {
	if len(m.feed) == 0 {
		return
	}
	signed := slices.Clone(m.feed[rapid.IntRange(0, len(m.feed)-1).Draw(m.rt, "entry")].Report)
	signed[rapid.IntRange(0, len(signed)-1).Draw(m.rt, "byte")] ^= 0x10
	m.add(signed)
}

// forget polls a hub that has lost its newest entries; later it has them again.
func (m *model) forget() {
	have := rapid.IntRange(0, len(m.feed)).Draw(m.rt, "left")
	_, err := m.w.Poll(m.t.Context(), "hub", m.feed[:have])
	if err != nil {
		wantError(m.t, err, ErrFeedBack)
	}
}

// reorder polls a feed that is in another order, by an honest or a lying hub.
func (m *model) reorder() {
	mixed := rapid.Permutation(m.feed).Draw(m.rt, "order")
	if rapid.Bool().Draw(m.rt, "honest ids") {
		_, err := m.w.Poll(m.t.Context(), "hub", mixed)
		if err != nil {
			wantError(m.t, err, ErrBadPage)
		}
		return
	}
	_, err := m.w.Poll(m.t.Context(), "a hub that lies", slices.Clone(mixed).renumber())
	must(m.t, err)
}
