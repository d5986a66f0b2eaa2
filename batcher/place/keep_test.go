package place

import (
	"testing"
	"time"
)

// Of two who work as much, a copy goes to who has it on its disk already.
func TestPlanCopiesToWhoNeedNotFetch(t *testing.T) {
	m := big()
	m.Layers = 1
	owner, other, cached := far("a", 400*gib, 2e5), far("b", 400*gib, 2e5), far("c", 400*gib, 2e5)
	owner.Held, cached.Cached = []Range{{0, 0, 256}}, []Range{{0, 0, 256}}
	p := Make(m, Backbone{}, []Worker{owner, other, cached})
	for i, want := range []int{1, 0, 1} {
		if w := p.Workers[i]; len(w.Ranges) != want || w.Fetch != 0 {
			t.Errorf("%s holds %v and fetches %d", w.Name, w.Ranges, w.Fetch)
		}
	}
}

// Of copies that are held, those beyond the number that is wanted make room.
func TestPlanKeepsNoMoreCopiesThanAreWanted(t *testing.T) {
	m := big()
	m.Layers = 1
	for copies := 1; copies <= 3; copies++ {
		var ws []Worker
		for _, name := range []string{"a", "b", "c"} {
			w := far(name, 400*gib, 1e5)
			w.Held = []Range{{0, 0, 256}}
			ws = append(ws, w)
		}
		n := 0
		for _, w := range Make(m, Backbone{Copies: copies}, ws).Workers {
			n += len(w.Ranges)
		}
		if n != copies {
			t.Errorf("%d workers hold a layer of which %d copies are wanted", n, copies)
		}
	}
}

// Of a layer that is divided, a row goes to each who has one of its experts: the link carries it more than once.
func TestForecastSendsRowsToEachWhoHoldsAPart(t *testing.T) {
	m := big() // 8 picks of 256: of half the experts, 255 rows of 256 have one
	m.Layers = 1
	layer := m.ExpertBytes[0] * int64(m.Experts)
	half := Worker{Memory: (layer/2 + m.ExpertBytes[0]) / fillFifths * allFifths, Rows: 1e9, Up: 1e6}
	a, b := half, half
	a.Name, b.Name = "a", "b"
	f := Make(m, Backbone{Copies: 1}, []Worker{a, b}).Forecast
	whole := time.Duration(512 * 5000 * 1e3) // 512 answers of 5,000 bytes at 1 MB a second
	if f.Bound != ByUpload || f.Busiest < whole*98/100 || f.Busiest > whole {
		t.Errorf("bound by %s for %v, want upload for nearly %v", f.Bound, f.Busiest, whole)
	}
}

// Whose speed nobody has measured is taken to be like the one in the middle of the others.
func TestPlanTakesTheUnmeasuredForTheMiddle(t *testing.T) {
	ws := []Worker{far("a", 400*gib, 1e4), far("b", 400*gib, 2e5), far("c", 400*gib, 3e5), far("new", 400*gib, 0)}
	p := Make(big(), Backbone{Copies: 1}, ws)
	if b, n := len(p.Workers[1].Ranges), len(p.Workers[3].Ranges); n < b-1 || n > b+1 {
		t.Errorf("the unmeasured has %d layers, the middle one %d", n, b)
	}
}
