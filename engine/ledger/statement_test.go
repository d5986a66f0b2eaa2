package ledger

import (
	"bytes"
	"context"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"kvasir/wire/seal"
)

// witnessed is a session with one worker, whose key the test has.
type witnessed struct {
	s  *swarm
	w  *Witness
	by []int64 // what the worker has answered
}

func newWitnessed(s *swarm, key seal.Key, n byte) *witnessed {
	return &witnessed{s: s, w: NewWitness(key, SessionID{n}, s.backbone.Public()), by: make([]int64, 8)}
}

// workerKey makes worker 0 of a swarm one whose key is known.
func (s *swarm) workerKey() seal.Key {
	key := seal.NewKey()
	s.workers[0] = key.Public()
	return key
}

func (w *witnessed) state(t testing.TB, report []byte, want Opinion) []byte {
	t.Helper()
	signed, opinion, err := w.w.State(report, w.by, epoch)
	must(t, err)
	if opinion != want {
		t.Fatalf("the worker says %q, want %q", opinion, want)
	}
	return signed
}

func TestAWorkerAgreesOrSaysWhatIsWrong(t *testing.T) {
	s := newSwarm(t, 1)
	key := s.workerKey()
	const many = 40_000
	for _, c := range []struct {
		name string
		do   func(w *witnessed, r *Reporter)
	}{
		{"agrees, also with what is under way", func(w *witnessed, r *Reporter) {
			for range 5 {
				w.by[3] += many + 500
				w.state(t, next(t, r, many), Agree)
			}
		}},
		{"seen twice", func(w *witnessed, r *Reporter) {
			w.by[3] = 1
			report := next(t, r, 1)
			w.state(t, report, Agree)
			if signed, _, err := w.w.State(report, w.by, epoch); signed != nil || err != nil {
				t.Fatalf("again: %x, %v", signed, err)
			}
		}},
		{"a few picks more than it has answered", func(w *witnessed, r *Reporter) {
			w.by[3] = 10
			w.state(t, next(t, r, 11), TooMany)
		}},
		{"picks of another layer", func(w *witnessed, r *Reporter) {
			w.by[2] = 10
			w.state(t, next(t, r, 10), TooMany)
		}},
		{"half is kept back", func(w *witnessed, r *Reporter) {
			for i := range 6 {
				w.by[3] += many
				signed, opinion, err := w.w.State(next(t, r, many/2), w.by, epoch)
				must(t, err)
				if i < 2 && opinion != Agree || i == 5 && opinion != TooFew {
					t.Fatalf("report %d: %v", i+1, opinion)
				}
				if opinion == TooFew {
					p, err := VerifyStatement(signed)
					must(t, err)
					if p.Answered != int64(i+1)*many || !reflect.DeepEqual(p.Picks, []LayerPicks{{3, many}}) {
						t.Fatalf("it says %+v", p)
					}
				}
			}
		}},
		{"a report is missing", func(w *witnessed, r *Reporter) {
			w.by[3] = 3 * many
			w.state(t, next(t, r, many), Agree)
			next(t, r, many)
			w.state(t, next(t, r, many), Missing)
			for range 4 { // what it does not know it does not blame
				w.state(t, next(t, r, 0), Agree)
			}
		}},
		{"another report before", func(w *witnessed, r *Reporter) {
			w.by[3] = 100
			fork := s.reporter(1, 0)
			w.state(t, next(t, r, 1), Agree)
			next(t, fork, 2)
			w.state(t, next(t, fork, 1), Forked)
		}},
		{"another report in its place", func(w *witnessed, r *Reporter) {
			w.by[3] = 100
			w.state(t, next(t, r, 1), Agree)
			_, opinion, err := w.w.State(next(t, s.reporter(1, 0), 2), w.by, epoch)
			wantError(t, err, ErrFork)
			if opinion != Forked {
				t.Fatalf("opinion %v", opinion)
			}
		}},
		{"another's", func(w *witnessed, _ *Reporter) {
			_, _, err := w.w.State(next(t, s.reporter(2, 0), 1), w.by, epoch)
			wantError(t, err, ErrWrongSession)
		}},
	} {
		t.Run(c.name, func(*testing.T) { c.do(newWitnessed(s, key, 1), s.reporter(1, 0)) })
	}
}

func TestStatementsHaveOneForm(t *testing.T) {
	key := seal.NewKey()
	s := Statement{Session: SessionID{1}, Sequence: 7, Report: Hash{2}, Worker: key.Public(), Backbone: seal.NewKey().Public(),
		Time: epoch, Opinion: TooFew, Answered: 99, Picks: []LayerPicks{{0, 4}, {61, 5}}}
	signed, err := s.Append(nil, key)
	must(t, err)
	got, err := VerifyStatement(signed)
	must(t, err)
	if !reflect.DeepEqual(got, s) {
		t.Fatalf("%+v\nwant %+v", got, s)
	}
	for i := range signed {
		bad := bytes.Clone(signed)
		bad[i] ^= 1
		if _, err := VerifyStatement(bad); err == nil {
			t.Fatalf("byte %d may be another", i)
		}
	}
	for name, spoil := range map[string]func(*Statement){
		"sequence": func(s *Statement) { s.Sequence = 0 }, "opinion": func(s *Statement) { s.Opinion = 9 },
		"answered": func(s *Statement) { s.Answered = -1 }, "time": func(s *Statement) { s.Time = time.Time{} },
		"agreement with picks": func(s *Statement) { s.Opinion = Agree }, "order": func(s *Statement) { s.Picks = []LayerPicks{{2, 1}, {2, 1}} },
		"no picks": func(s *Statement) { s.Picks = []LayerPicks{{2, 0}} }, "key": func(s *Statement) { s.Backbone = seal.PublicKey{} },
	} {
		bad := s
		spoil(&bad)
		_, err := bad.Append(nil, key)
		if err == nil {
			t.Errorf("%s: signed", name)
		}
	}
}

func FuzzVerifyStatement(f *testing.F) {
	key := seal.NewKey()
	signed, err := Statement{Session: SessionID{1}, Sequence: 7, Backbone: seal.NewKey().Public(), Time: epoch, Opinion: TooFew,
		Picks: []LayerPicks{{3, 4}}}.Append(nil, key)
	must(f, err)
	f.Add(signed)
	f.Add(signed[:100])
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseStatement(b)
		if err != nil {
			return
		}
		s.Worker = key.Public()
		again, err := s.Append(nil, key)
		must(t, err)
		if len(again) != len(b) {
			t.Fatalf("%d bytes became %d", len(b), len(again))
		}
	})
}

// A hub, a worker's and a backbone's outbox, and wallets.
type post struct {
	t                testing.TB
	s                *swarm
	hub              *Hub
	worker, backbone *Outbox
	w                *Wallet
	path             string
	wit              *witnessed
	r                *Reporter
}

func newPost(t testing.TB) *post {
	s := newSwarm(t, 1)
	p := &post{t: t, s: s, path: temp(t), w: openWallet(t, temp(t), s)}
	p.wit, p.r = newWitnessed(s, s.workerKey(), 1), s.reporter(1, 0)
	p.hub = openHub(t, p.path)
	must(t, p.hub.Begin(t.Context(), s.session(1, 0)))
	for _, o := range []**Outbox{&p.worker, &p.backbone} {
		box, err := OpenOutbox(t.Context(), filepath.Join(t.TempDir(), "outbox.db"), nil)
		must(t, err)
		t.Cleanup(func() { _ = box.Close() })
		*o = box
	}
	return p
}

// work makes a report, which both sides keep.
func (p *post) work(picks int64, a Audit) {
	p.t.Helper()
	p.wit.by[3] += picks
	signed := nextAudited(p.t, p.r, picks, a)
	must(p.t, p.backbone.Put(p.t.Context(), Item{Hub: "hub", Grant: p.s.grant, Report: signed}))
	must(p.t, p.worker.Put(p.t.Context(), Item{Hub: "hub", Grant: p.s.grant, Report: signed, Statement: p.wit.state(p.t, signed, Agree)}))
}

func (p *post) give(boxes ...*Outbox) {
	p.t.Helper()
	for _, o := range boxes {
		must(p.t, o.Flush(p.t.Context(), "hub", func(ctx context.Context, i Item) (Given, error) { return p.hub.Receive(ctx, i) }))
	}
}

func (p *post) waiting(want ...int) {
	p.t.Helper()
	for i, o := range []*Outbox{p.backbone, p.worker} {
		n, err := o.Waiting(p.t.Context())
		must(p.t, err)
		if n != want[i] {
			p.t.Fatalf("outbox %d keeps %d items, want %v", i, n, want)
		}
	}
}

func TestReceiptsAreKeptUntilAWalletHasReadThem(t *testing.T) {
	both(t, func(t *testing.T) {
		p := newPost(t)
		p.work(5, holds(0))
		p.work(6, holds(1))
		p.waiting(2, 2)
		p.give(p.backbone, p.worker)
		p.waiting(2, 2) // the hub has them, no wallet
		if got := poll(t, p.w, p.hub); got.Credited != 2 || got.Stated != 2 || got.Disputed != 0 {
			t.Fatalf("polled %+v", got)
		}
		p.give(p.backbone, p.worker)
		p.waiting(0, 0)
		wantMoney(t, p.w, p.s.workers[0], money{pending: 6, settled: 5})
		b, err := p.w.Balance(t.Context(), p.s.workers[0])
		must(t, err)
		if b.Agreed != 2 || b.Disputed != 0 {
			t.Fatalf("%d countersigned, %d disputed", b.Agreed, b.Disputed)
		}
	})
}

// The hub is put back from an old copy, the clock of whoever signs is set back a day, and meanwhile another
// session fills the places of what was lost.
func TestAHubFromAnOldCopyLosesAndGainsNothing(t *testing.T) {
	both(t, func(t *testing.T) {
		p := newPost(t)
		p.work(1, holds(0))
		p.give(p.backbone, p.worker)
		poll(t, p.w, p.hub)
		old := copyOf(t, p.path, hubFile)
		p.work(2, holds(0)) // read by the wallet
		p.give(p.backbone, p.worker)
		poll(t, p.w, p.hub)
		p.give(p.backbone, p.worker)
		p.work(4, holds(0)) // on the hub only
		p.give(p.backbone, p.worker)

		must(t, p.hub.Close())
		p.hub = openHub(t, old)
		other := p.s.reporter(9, 0)
		must(t, p.hub.Begin(t.Context(), p.s.session(9, 0)))
		must(t, other.Count(3, 32))
		for range 6 {
			must(t, other.Count(3, 1))
			signed, err := other.Report(epoch.Add(-24*time.Hour), false, nothing)
			must(t, err)
			other.Done(other.next.Sequence - 1)
			_, err = p.hub.Append(t.Context(), signed)
			must(t, err)
		}
		p.work(8, holds(0))
		_, err := p.w.Poll(t.Context(), "hub", p.hub)
		wantError(t, err, ErrFeedBack)
		for range 2 {
			p.give(p.worker, p.backbone)
			poll(t, p.w, p.hub)
		}
		p.give(p.worker, p.backbone)
		p.waiting(0, 0)
		wantMoney(t, p.w, p.s.workers[0], money{pending: 1 + 2 + 4 + 8 + 32 + 6})
		refused, err := p.w.Refusals(t.Context(), 10)
		must(t, err)
		if len(refused) != 0 {
			t.Fatalf("refused %+v", refused)
		}
		b, err := p.w.Balance(t.Context(), p.s.workers[0])
		must(t, err)
		if b.Agreed != 4 {
			t.Fatalf("%d countersigned, want 4", b.Agreed)
		}
	})
}

// A hub that has lost a whole session learns of it from either side alone.
func TestEitherSideAloneRestoresAHub(t *testing.T) {
	both(t, func(t *testing.T) {
		for _, side := range []int{0, 1} {
			p := newPost(t)
			for range 3 {
				p.work(2, holds(0))
			}
			p.give(p.backbone, p.worker)
			must(t, p.hub.Close())
			p.hub = openHub(t, temp(t))
			p.give([]*Outbox{p.backbone, p.worker}[side])
			poll(t, p.w, p.hub)
			wantMoney(t, p.w, p.s.workers[0], money{pending: 6})
		}
	})
}

func TestDisputesAreToldAndMoveNoMoney(t *testing.T) {
	both(t, func(t *testing.T) {
		p := newPost(t)
		report := next(t, p.r, 10)
		p.wit.by[3] = 4
		statement := p.wit.state(t, report, TooMany)
		item := Item{Hub: "hub", Grant: p.s.grant, Report: report, Statement: statement}
		g, err := p.hub.Receive(t.Context(), item)
		must(t, err)
		if !g.Fresh {
			t.Fatalf("%+v", g)
		}
		if g, err = p.hub.Receive(t.Context(), item); err != nil || g != (Given{}) {
			t.Fatalf("again: %+v, %v", g, err)
		}
		s, err := VerifyStatement(statement)
		must(t, err)
		s.Opinion, s.Picks = Agree, nil
		item.Statement, err = s.Append(nil, p.wit.w.key)
		must(t, err)
		if g, err = p.hub.Receive(t.Context(), item); err != nil || g.Refused == "" {
			t.Fatalf("a change of mind: %+v, %v", g, err)
		}
		poll(t, p.w, p.hub)
		poll(t, openWallet(t, temp(t), p.s), p.hub)
		wantMoney(t, p.w, p.s.workers[0], money{pending: 10})
		all, err := p.w.Disputes(t.Context(), 10)
		must(t, err)
		want := []Dispute{{p.s.workers[0], p.s.backbone.Public(), SessionID{1}, 1, TooMany, 10, 4}}
		if !reflect.DeepEqual(all, want) {
			t.Fatalf("disputes %+v\nwant %+v", all, want)
		}
		b, err := p.w.Balance(t.Context(), p.s.workers[0])
		must(t, err)
		if b.Agreed != 0 || b.Disputed != 1 {
			t.Fatalf("%d countersigned, %d disputed", b.Agreed, b.Disputed)
		}
		run(t, p.w, "UPDATE statements SET answered = 5")
		wantError(t, p.w.Verify(t.Context()), ErrUnbalanced)
	})
}

// What a worker has not done or seen is not entered for it.
func TestHubRefusesStatements(t *testing.T) {
	both(t, func(t *testing.T) {
		p := newPost(t)
		report := next(t, p.r, 1)
		p.wit.by[3] = 1
		statement := p.wit.state(t, report, Agree)
		_, _, err := p.hub.State(t.Context(), statement)
		wantError(t, err, ErrNoReport)
		_, err = p.hub.Append(t.Context(), report)
		must(t, err)
		s, err := VerifyStatement(statement)
		must(t, err)
		foreign, err := s.Append(nil, seal.NewKey())
		must(t, err)
		_, _, err = p.hub.State(t.Context(), foreign)
		wantError(t, err, ErrWrongSession)
		bad := bytes.Clone(statement)
		bad[30] ^= 1
		_, _, err = p.hub.State(t.Context(), bad)
		wantError(t, err, ErrBadSignature)
		_, _, err = p.hub.State(t.Context(), report)
		wantError(t, err, ErrBadStatement)
		_, fresh, err := p.hub.State(t.Context(), statement)
		if must(t, err); !fresh {
			t.Fatal("it was there")
		}
	})
}

func TestAnOutboxLosesTheOldest(t *testing.T) {
	p := newPost(t)
	p.worker.most = 3
	for range 5 {
		p.work(1, holds(0))
	}
	p.waiting(5, 3)
	items, err := p.worker.items(t.Context(), "hub", SessionID{1}.String())
	must(t, err)
	if items[0].sequence != 3 {
		t.Fatalf("the oldest is %d, want 3", items[0].sequence)
	}
}
