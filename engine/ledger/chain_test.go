package ledger

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"kvasir/wire/seal"
)

// twins are two hubs that are given the same. One does many things in a transaction, and looks at the database
// as little as it can; the other does each alone, and so looks each time.
type twins struct {
	t       *testing.T
	grouped *Hub
	alone   *Hub
	group   []func(*tx) string
	want    []string // what the other has said
}

// enter has both enter a report or a statement, or both, and notes what the second says.
func (w *twins) enter(grant *seal.Grant, report, statement []byte) {
	do := func(t *tx) string {
		said := ""
		if report != nil {
			c, err := claimed(report, grant)
			fresh := false
			if err == nil {
				fresh, err = c.enter(w.t.Context(), t)
			}
			said = say(fresh, err)
		}
		if statement != nil {
			s, err := VerifyStatement(statement)
			fresh := false
			if err == nil {
				fresh, err = s.enter(w.t.Context(), t, statement)
			}
			said += ", " + say(fresh, err)
		}
		return said
	}
	w.group = append(w.group, do)
	must(w.t, w.alone.file.update(w.t.Context(), func(t *tx) error { w.want = append(w.want, do(t)); return nil }))
}

func say(fresh bool, err error) string {
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return fmt.Sprint(fresh, err)
}

// together does the group, and compares.
func (w *twins) together(rt *rapid.T) {
	var got []string
	must(w.t, w.grouped.file.update(w.t.Context(), func(t *tx) error {
		got = nil
		for _, do := range w.group {
			got = append(got, do(t))
		}
		return nil
	}))
	if !slices.Equal(got, w.want) {
		rt.Fatalf("a group says\n%q, one after another\n%q", got, w.want)
	}
	w.group, w.want = nil, nil
	a, err := w.grouped.After(w.t.Context(), Mark{}, PageMax)
	must(w.t, err)
	b, err := w.alone.After(w.t.Context(), Mark{}, PageMax)
	must(w.t, err)
	same := func(a, b Entry) bool { return a.ID == b.ID && a.Grant == b.Grant && a.Hash() == b.Hash() }
	if a.Last != b.Last || !slices.EqualFunc(a.Entries, b.Entries, same) {
		rt.Fatalf("a group has stored %d entries, one after another %d, or others", a.Last, b.Last)
	}
}

// A transaction that does much, and knows by itself what it has gathered, comes to what single ones come to:
// reports and statements that are new, known, of another signature, forked, early, and of unknown sessions.
func TestAGroupIsAsOneAfterAnother(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 1)
		key := seal.NewKey()
		s.workers[0] = key.Public()
		empty := temp(t)
		must(t, openHub(t, empty).Close())
		run, runs := 0, 25
		if isURL(empty) {
			runs = 5
		}
		rapid.Check(t, func(rt *rapid.T) {
			if run++; run > runs && os.Getenv("KVASIR_SOAK") == "" {
				return // each entry of the second twin waits for the disk
			}
			places := [2]string{copyOf(t, empty, hubFile), copyOf(t, empty, hubFile)}
			w := &twins{t: t, grouped: openHub(t, places[0]), alone: openHub(t, places[1])}
			var chains, forks [3][][]byte
			for n := range chains {
				r, fork := s.reporter(byte(n), 0), s.reporter(byte(n), 0)
				for range 4 {
					chains[n] = append(chains[n], next(t, r, 1))
					forks[n] = append(forks[n], next(t, fork, 2))
				}
			}
			for range rapid.IntRange(1, 4).Draw(rt, "groups") {
				for range rapid.IntRange(1, 12).Draw(rt, "entries") {
					n := rapid.IntRange(0, len(chains)-1).Draw(rt, "session")
					signed := chains[n][rapid.IntRange(0, 3).Draw(rt, "report")]
					if rapid.IntRange(0, 5).Draw(rt, "fork") == 0 {
						signed = forks[n][rapid.IntRange(0, 3).Draw(rt, "report")]
					}
					var grant *seal.Grant
					if rapid.IntRange(0, 2).Draw(rt, "claim") > 0 {
						grant = &s.grant
					}
					var statement []byte
					if rapid.Bool().Draw(rt, "stated") {
						statement = stateOf(t, key, signed, rapid.SampledFrom([]Opinion{Agree, Agree, TooFew}).Draw(rt, "opinion"))
						if rapid.Bool().Draw(rt, "alone") {
							signed = nil
						}
					}
					w.enter(grant, signed, statement)
				}
				w.together(rt)
			}
			must(t, errors.Join(w.grouped.Close(), w.alone.Close()))
			for _, p := range places {
				if isURL(p) {
					spaces.give(t, p)
				}
			}
		})
	})
}

// stateOf is a worker's statement on a report.
func stateOf(t *testing.T, key seal.Key, report []byte, o Opinion) []byte {
	t.Helper()
	r, err := Parse(report)
	must(t, err)
	signed, err := Statement{Session: r.Session, Sequence: r.Sequence, Report: HashOf(report), Backbone: r.Backbone,
		Time: epoch, Opinion: o, Answered: 5}.Append(nil, key)
	must(t, err)
	return signed
}

// Sessions of a group are read at once; a damaged one is the trouble of its own report.
func TestADamagedSessionIsItsOwnTrouble(t *testing.T) {
	both(t, func(t *testing.T) {
		s := newSwarm(t, 3)
		h := openHub(t, temp(t))
		for n := range s.workers {
			must(t, h.Begin(t.Context(), s.session(byte(n), n)))
		}
		must(t, h.file.update(t.Context(), func(x *tx) error {
			return x.exec(t.Context(), "UPDATE sessions SET worker = 'x' WHERE id = $1", SessionID{1}.String())
		}))
		let := hold(t, h.file)
		var wg sync.WaitGroup
		errs := make([]error, len(s.workers))
		for n := range errs {
			signed := next(t, s.reporter(byte(n), n), 1)
			wg.Go(func() { _, errs[n] = h.Append(t.Context(), signed) })
		}
		let()
		wg.Wait()
		must(t, errs[0])
		wantError(t, errs[1], ErrDamaged)
		must(t, errs[2])
		page, err := h.After(t.Context(), Mark{}, PageMax)
		must(t, err)
		if page.Last != 2 {
			t.Fatalf("the hub has %d reports, want 2", page.Last)
		}
	})
}
