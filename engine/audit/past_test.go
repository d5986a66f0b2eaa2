package audit

import (
	"math/rand/v2"
	"slices"
	"testing"

	"kvasir/internal/moe"
)

// TestASessionOfAProcessBeforeIsDecided keeps what a session has pending, and goes on with it in another process: its
// rows are judged there, and what of them is lost is made up for by rows of a session of then.
func TestASessionOfAProcessBeforeIsDecided(t *testing.T) {
	const seed = 31
	for _, c := range []struct {
		name        string
		lost        int  // of the rows that were drawn, at most
		cheats      bool // in what was drawn
		cheatsAfter bool
	}{
		{"all rows are there", 0, false, false}, {"and one is wrong", 0, true, false},
		{"some are lost", 3, false, false}, {"all are lost", 1000, false, false},
		{"all are lost, and later ones are wrong", 1000, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			found := 0
			options := Options{Judge: own(&executor{}), Every: 8, Found: func(Finding) { found++ }}
			before := New(options).Worker(key(1), NewRecord(512, 0))
			var out moe.Partials
			send := func(w *Worker, rows int, spoil bool) {
				b := batch(t, rng, 2, rows)
				if truth(b, &out); spoil {
					out.Reset(rows, hidden)
				}
				w.Answer(b, &out)
			}
			send(before, 64, c.cheats)
			before.Turn()
			send(before, 8, false)
			last := before.Turn()
			send(before, 64, true) // nobody has signed that
			rows, lost := before.Pending()
			if last.Through != 0 || len(rows) != 9 || lost != 0 {
				t.Fatalf("%d rows and %d lost ones are pending; %+v", len(rows), lost, last)
			}
			n := min(c.lost, len(rows))
			a, rec := New(options), NewRecord(512, 0)
			w := a.Resume(key(1), rec, Past{Turns: 2, Through: last.Through, Rows: rows[n:], Lost: n})
			drive(a)
			if n > 0 {
				if got := w.Turn(); got.Through != 0 || w.Open() != 0 || rec.Owed() != n || w.Decided() {
					t.Fatalf("seed %d: %+v, %d wait, %d are owed", seed, got, w.Open(), rec.Owed())
				}
			}
			after := a.Worker(key(1), rec)
			windows := 0
			for ; rec.Owed() > 0 && found == 0 && windows < 200; windows++ {
				send(after, 8, c.cheatsAfter)
				drive(a)
			}
			if c.cheats || c.cheatsAfter {
				if found == 0 || w.Decided() {
					t.Errorf("seed %d: %d were found; decided %v", seed, found, w.Decided())
				}
				return
			}
			want := int64(2)
			if n > 0 {
				want = 3
			}
			if got := w.Turn(); got.Through < want || found > 0 || w.Undecided() {
				t.Errorf("seed %d: %+v after %d windows, %d found", seed, got, windows, found)
			}
			if got := after.Counts().Checked; got != int64(windows) || w.Counts().Checked != 9 {
				t.Errorf("seed %d: of %d windows %d rows were looked at, and %d for the session before", seed, windows, got, w.Counts().Checked)
			}
		})
	}
}

// TestASessionGoesOnAfterTurnsThatWereNotKnown has more turns than what was kept told of, with rows of which nobody
// knows.
func TestASessionGoesOnAfterTurnsThatWereNotKnown(t *testing.T) {
	rng := rand.New(rand.NewPCG(32, 1))
	for _, known := range []int64{0, 3} { // turns
		a, rec := New(Options{Judge: own(&executor{}), Every: 4}), NewRecord(512, 0)
		w := a.Resume(key(1), rec, Past{Turns: known, Through: known})
		w.Turn() // of a report that contradicts those that were not known
		w.Skip(7, 5, 3)
		if got := w.Turn(); got.Through != 5 || rec.Owed() != 3 {
			t.Errorf("after %d: %+v, %d are owed", known, got, rec.Owed())
		}
		live := a.Worker(key(1), rec)
		var out moe.Partials
		for range 100 {
			b := batch(t, rng, 0, 4)
			truth(b, &out)
			live.Answer(b, &out)
			drive(a)
		}
		if got := w.Turn(); got.Through != 9 || !w.Decided() || rec.Owed() != 0 {
			t.Errorf("after %d: %+v, %d are owed", known, got, rec.Owed())
		}
	}
}

// TestADebtOutlivesItsSession has no room in one session, and room in the next one.
func TestADebtOutlivesItsSession(t *testing.T) {
	rng := rand.New(rand.NewPCG(33, 1))
	a, rec := New(Options{Judge: own(&executor{}), Every: 1, Bytes: 1}), NewRecord(512, 0)
	var out moe.Partials
	first, second := a.Worker(key(1), rec), a.Worker(key(1), rec)
	send := func(w *Worker) {
		b := batch(t, rng, 0, 5)
		truth(b, &out)
		w.Answer(b, &out)
	}
	send(first)
	if got := first.Turn(); got.Through != 0 || first.Open() != 0 || rec.Owed() != 5 {
		t.Fatalf("%+v, %d are owed", got, rec.Owed())
	}
	a.mu.Lock()
	a.o.Bytes = 1 << 20
	a.mu.Unlock()
	for range 10 {
		send(second)
		drive(a)
	}
	if got := first.Turn(); got.Through != 2 || got.Checked != 5 {
		t.Errorf("the first session: %+v", got)
	}
	if got := second.Turn(); got.Through != 1 || !slices.Equal([]int64{got.Checked, got.Skipped}, []int64{50, 0}) {
		t.Errorf("the second session: %+v", got)
	}
}
