package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// A hub hands on the reports of two sessions in any order, each once: all are credited, and what later ones say
// of earlier ones holds.
func TestReportsInAnyOrderAreCredited(t *testing.T) { both(t, reportsInAnyOrderAreCredited) }

func reportsInAnyOrderAreCredited(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := newSwarm(t, 2)
	var signed [][]byte
	for worker := range 2 {
		r := s.reporter(byte(worker), worker)
		for n := range int64(9) {
			signed = append(signed, nextAudited(t, r, 1<<n, Audit{Mode: Sampled, Holds: n}))
		}
	}
	w := openWallet(t, temp(t), s)
	for i := range 5 {
		random.Shuffle(len(signed), func(i, j int) { signed[i], signed[j] = signed[j], signed[i] })
		hub := fmt.Sprint("hub ", i)
		if i == 0 { // what comes later is there already
			if _, err := w.Poll(t.Context(), hub, s.entries(signed[:len(signed)/2]...)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.Poll(t.Context(), hub, s.entries(signed...)); err != nil {
			t.Fatal(err)
		}
		for _, worker := range s.workers {
			wantMoney(t, w, worker, money{pending: 256, settled: 255})
		}
	}
	refused, err := w.Refusals(t.Context(), 100)
	must(t, err)
	for _, r := range refused {
		if !strings.Contains(r.Reason, "it has come, and this one is credited") {
			t.Errorf("refused: %+v", r)
		}
	}
	var kept int
	must(t, w.file.db.QueryRowContext(t.Context(), "SELECT count(*) FROM early").Scan(&kept))
	if kept != 0 {
		t.Errorf("%d reports are kept still", kept)
	}
}

// What is kept aside is looked at like all else when its turn comes.
func TestWhatIsKeptAsideIsChecked(t *testing.T) { both(t, whatIsKeptAsideIsChecked) }

func whatIsKeptAsideIsChecked(t *testing.T) {
	s := newSwarm(t, 1)
	r, liar := s.reporter(1, 0), s.reporter(1, 0)
	one, two, three := next(t, r, 1), next(t, r, 2), next(t, r, 4)
	next(t, liar, 8)
	next(t, liar, 8)
	forked, again := next(t, liar, 8), next(t, liar, 8)
	w := openWallet(t, temp(t), s)
	poll(t, w, s.entries(one, forked, forked, three))
	poll(t, w, s.entries(one, forked, forked, three, two, three, again))
	wantPending(t, w, s.workers, 7*perPick)
	refused, err := w.Refusals(t.Context(), 100)
	must(t, err)
	want := []Refusal{{"hub", 7, "does not name the one before"}, {"hub", 4, "another report 3"}, {"hub", 2, "it has come: " + ErrFork.Error()}}
	if len(refused) != len(want) {
		t.Fatalf("refused %+v, want %+v", refused, want)
	}
	for i, r := range refused {
		if r.Entry != want[i].Entry || !strings.Contains(r.Reason, want[i].Reason) {
			t.Errorf("refused %+v, want %+v", r, want[i])
		}
	}
}

// A backbone that leaves out a report does not fill the disk.
func TestWhatIsKeptAsideIsBounded(t *testing.T) { both(t, whatIsKeptAsideIsBounded) }

func whatIsKeptAsideIsBounded(t *testing.T) {
	s := newSwarm(t, 1)
	r := s.reporter(1, 0)
	first := next(t, r, 1)
	var signed [][]byte
	for range 11 {
		signed = append(signed, next(t, r, 1))
	}
	w := openWallet(t, temp(t), s)
	w.most = 10
	poll(t, w, s.entries(signed...))
	poll(t, w, s.entries(append(signed, first)...))
	wantPending(t, w, s.workers, 11*perPick)
	refused, err := w.Refusals(t.Context(), 1)
	must(t, err)
	if len(refused) != 1 || !strings.Contains(refused[0].Reason, "those before 10 others") {
		t.Errorf("refused last: %+v", refused)
	}
	if _, err := w.Poll(t.Context(), "another hub", s.entries(signed...)); err != nil {
		t.Fatal(err)
	}
	wantPending(t, w, s.workers, 12*perPick)
}

// A hub is put back from an old copy, and what it is given again stands in the old places by chance, but for one
// report that is new and in the place of another.
func TestAHubThatLostWhatIsBetweenLosesNothing(t *testing.T) {
	both(t, aHubThatLostWhatIsBetweenLosesNothing)
}

func aHubThatLostWhatIsBetweenLosesNothing(t *testing.T) {
	s := newSwarm(t, 3)
	one, two, three := next(t, s.reporter(1, 0), 1), next(t, s.reporter(2, 1), 2), next(t, s.reporter(3, 2), 4)
	fill := func(h *Hub, signed ...[]byte) {
		t.Helper()
		for _, b := range signed {
			_, _, err := h.Claim(t.Context(), s.grant, b)
			must(t, err)
		}
	}
	before, w := openHub(t, temp(t)), openWallet(t, temp(t), s)
	fill(before, one, three)
	poll(t, w, before)
	wantPending(t, w, s.workers, perPick, 0, 4*perPick)
	// In the place of the first is what nobody has read; the second is as it was.
	restored := openHub(t, temp(t))
	fill(restored, two, three)
	_, err := w.Poll(t.Context(), "hub", restored)
	wantError(t, err, ErrFeedBack)
	if !strings.Contains(err.Error(), "has another entry 2 than was read") {
		t.Errorf("said %v", err)
	}
	poll(t, w, restored)
	wantPending(t, w, s.workers, perPick, 2*perPick, 4*perPick)
}

// A hub is put back from an old copy, and the last report of a session, which is new, comes to it before those
// that it has lost: what is not in a wallet is not forgotten for that.
func TestANewReportAcknowledgesNoneBeforeIt(t *testing.T) {
	both(t, aNewReportAcknowledgesNoneBeforeIt)
}

func aNewReportAcknowledgesNoneBeforeIt(t *testing.T) {
	p := newPost(t)
	p.work(1, holds(0))
	p.give(p.backbone, p.worker)
	old := copyOf(t, p.path, hubFile)
	p.work(2, holds(0))
	p.work(4, holds(0))
	p.give(p.backbone, p.worker) // no wallet has read
	must(t, p.hub.Close())
	p.hub = openHub(t, old)

	p.wit.by[3] += 8
	signed := nextAudited(t, p.r, 8, holds(0))
	item := Item{Hub: "hub", Grant: p.s.grant, Report: signed}
	must(t, p.backbone.Put(t.Context(), item))
	r, err := Parse(signed)
	must(t, err)
	for range 2 {
		g, err := p.hub.Receive(t.Context(), item)
		must(t, err)
		must(t, p.backbone.Took(t.Context(), "hub", &r, g))
		poll(t, p.w, p.hub)
		poll(t, p.w, p.hub) // which tells the hub how far it is
	}
	p.waiting(3, 3)
	for range 4 {
		p.give(p.backbone)
		poll(t, p.w, p.hub)
	}
	p.waiting(0, 3)
	wantMoney(t, p.w, p.s.workers[0], money{pending: 15})
}

// Whatever a hub shows, and whatever the clocks of those who sign say: an honest poll afterwards finds each nKVR
// once, and what was wrong was said.
func TestPollsThatGoWrongGainAndLoseNothing(t *testing.T) {
	both(t, pollsThatGoWrongGainAndLoseNothing)
}

func pollsThatGoWrongGainAndLoseNothing(t *testing.T) {
	s := newSwarm(t, 1)
	r := s.reporter(1, 0)
	var signed [][]byte
	for n, day := range []time.Duration{0, -1, 1, 0, -1, 0} { // clocks jump by a day
		must(t, r.Count(3, 1<<n))
		b, err := r.Report(epoch.Add(day*24*time.Hour), true, func(int64) (Traffic, Audit) {
			return Traffic{}, Audit{Mode: Sampled, Holds: int64(n)}
		})
		must(t, err)
		r.Done(int64(n + 1))
		signed = append(signed, b)
	}
	honest := s.entries(signed...)
	w := openWallet(t, temp(t), s)
	paged := func(next func(m memory, at Mark) memory) Feed {
		return feedFunc(func(_ context.Context, at Mark, _ int) (Page, error) {
			return Page{Entries: next(honest, at), Last: int64(len(honest))}, nil
		})
	}
	for _, c := range []struct {
		name string
		hub  string
		feed Feed
		want error
	}{
		{"the same page again", "hub", paged(func(m memory, _ Mark) memory { return m[:2] }), ErrBadPage},
		{"the page before", "hub", paged(func(m memory, at Mark) memory { return m[max(0, at.ID-2):at.ID] }), ErrBadPage},
		{"backwards", "hub", paged(func(m memory, at Mark) memory { m = slices.Clone(m[at.ID:]); slices.Reverse(m); return m }), ErrBadPage},
		{"an entry twice", "hub", paged(func(m memory, at Mark) memory { return memory{m[at.ID], m[at.ID]} }), ErrBadPage},
		{"from an old copy", "hub", honest[:1], ErrFeedBack},
		{"all again", "hub", honest, nil},
		{"all twice", "another hub", append(slices.Clone(honest), honest...).renumber(), nil},
		{"from an old copy, and more", "hub", honest[:3], ErrFeedBack},
	} {
		if _, err := w.Poll(t.Context(), c.hub, c.feed); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	poll(t, w, honest)
	poll(t, w, honest)
	wantMoney(t, w, s.workers[0], money{pending: 32, settled: 31})
	refused, err := w.Refusals(t.Context(), 10)
	must(t, err)
	if len(refused) != 0 {
		t.Errorf("refused %+v", refused)
	}
}
