package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestWalletAgreesWithModel does what comes to mind to a wallet, with crashes, repeated, reordered and
// forged entries and hubs that forget, and compares it with a model that is a few sums.
func TestWalletAgreesWithModel(t *testing.T) {
	s := newSwarm(t, 3)
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.db")
	must(t, openWallet(t, empty, s).Close())
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		m := &model{t: t, rt: rt, s: s, dir: filepath.Join(dir, fmt.Sprint(run))}
		must(t, os.Mkdir(m.dir, 0o700))
		copyFiles(t, empty, m.file())
		m.w = openWallet(t, m.file(), s)
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
		if got := pending(t, m.w, s.workers); !slices.Equal(got, m.earned[:]) {
			rt.Fatalf("pending %v nKVR, want %v", nkvr(got), nkvr(m.earned[:]))
		}
		must(t, m.w.Close())
		must(t, os.RemoveAll(m.dir))
	})
}

type model struct {
	t   *testing.T
	rt  *rapid.T
	s   *swarm
	dir string

	w         *Wallet
	crashes   int
	reporters []*Reporter
	feed      memory
	earned    [3]NKVR
}

func (m *model) file() string { return filepath.Join(m.dir, fmt.Sprintf("%d.db", m.crashes)) }

// inBalance checks the books, and that nobody has more than was earned.
func (m *model) inBalance() {
	for i, got := range pending(m.t, m.w, m.s.workers) {
		if got > m.earned[i] {
			m.rt.Fatalf("worker %d has %d nKVR, earned %d", i, got, m.earned[i])
		}
	}
}

func (m *model) add(signed []byte) {
	m.feed = append(m.feed, Entry{ID: int64(len(m.feed) + 1), Grant: m.s.grant.String(), Report: signed})
}

func (m *model) report() {
	n := rapid.IntRange(0, len(m.reporters)-1).Draw(m.rt, "session")
	picks := rapid.Int64Range(1, 1<<20).Draw(m.rt, "picks")
	m.add(next(m.t, m.reporters[n], picks))
	m.earned[n%3] += NKVR(picks) * perPick
}

func (m *model) poll() {
	small := feedFunc(func(ctx context.Context, id int64, _ int) (Page, error) { return m.feed.After(ctx, id, 2) })
	_, err := m.w.Poll(m.t.Context(), "hub", small)
	if errors.Is(err, ErrFeedBack) {
		m.rt.Fatalf("the feed did not go back: %v", err)
	}
	must(m.t, err)
}

// crash polls, and goes on with the files of some moment in it.
func (m *model) crash() {
	moment := rapid.IntRange(0, 30).Draw(m.rt, "moment")
	from := m.file()
	m.crashes++
	taken := false
	m.w.file.step = func(string) {
		if moment == 0 {
			copyFiles(m.t, from, m.file())
			taken = true
		}
		moment--
	}
	m.poll()
	m.w.file.step = nil
	if !taken {
		copyFiles(m.t, from, m.file())
	}
	must(m.t, m.w.Close())
	m.w = openWallet(m.t, m.file(), m.s)
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
