package place

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// big is about the size of the routed experts of a model of 122e9 weights.
func big() Model {
	return Model{
		Layers: 48, Experts: 256, TopK: 8, ExpertBytes: []int64{6 << 20},
		RowBytes: 3120, PartialBytes: 5000,
	}
}

const gib = 1 << 30

func far(name string, memory int64, rows float64) Worker {
	return Worker{Name: name, Memory: memory, Rows: rows, RTT: 13 * time.Millisecond, Up: 1e9, Down: 1e9}
}

func TestPlanGivesWholeLayersBySpeed(t *testing.T) {
	ws := []Worker{far("slow", 200*gib, 1e5), far("fast", 200*gib, 3e5), far("other", 200*gib, 2e5)}
	p := Make(big(), Backbone{Layer: time.Millisecond, Copies: 1}, ws)
	for i, want := range []int{8, 24, 16} {
		n := 0
		for _, r := range p.Workers[i].Ranges {
			if r.Lo != 0 || r.Hi != 256 {
				t.Errorf("%s gets a part of a layer: %v", ws[i].Name, r)
			}
			n++
		}
		if n < want-1 || n > want+1 {
			t.Errorf("%s gets %d layers, want about %d", ws[i].Name, n, want)
		}
	}
	if p.Forecast.Bound != ByCompute {
		t.Errorf("bound by %s of %s, want compute", p.Forecast.Bound, p.Forecast.Who)
	}
}

// Speed goes before room: layers that all have room for go to those who are done with them first.
func TestPlanGivesLayersToTheQuickNotToTheRoomy(t *testing.T) {
	p := Make(big(), Backbone{Copies: 1}, []Worker{far("slow", 400*gib, 1e5), far("fast", 120*gib, 5e5)})
	if slow, fast := len(p.Workers[0].Ranges), len(p.Workers[1].Ranges); slow+fast != 48 || fast < 38 || fast > 42 {
		t.Errorf("of 48 layers %d are with the slow one and %d with one that is five times as fast", slow, fast)
	}
}

// What fits whole somewhere has its place before what must be divided takes the room.
func TestPlanPlacesWholeLayersFirst(t *testing.T) {
	m := Model{Layers: 2, Experts: 4, TopK: 1, ExpertBytes: []int64{3 << 20, 2 << 20}}
	room := Worker{Memory: 11 << 20 / fillFifths * allFifths, Rows: 1e5}
	a, b := room, room
	a.Name, b.Name = "a", "b"
	p := Make(m, Backbone{}, []Worker{a, b})
	if len(p.Missing) > 0 {
		t.Fatalf("%v are missing", p.Missing)
	}
	for _, w := range p.Workers {
		for _, r := range w.Ranges {
			if r.Layer == 1 && r != (Range{1, 0, 4}) {
				t.Errorf("%s has %v of a layer that fits whole", w.Name, r)
			}
		}
	}
}

// The layers at either end stay with the backbone, which has room for them, and count as its work.
func TestPlanLeavesTheEndsAtHome(t *testing.T) {
	w := Worker{Name: "w", Memory: 400 * gib, Rows: 1e7}
	p := Make(big(), Backbone{Layer: time.Millisecond, Memory: 7 * gib, Rows: 4096e3, Home: 2}, []Worker{w})
	if got, want := fmt.Sprint(p.Backbone), "[{0 0 256} {1 0 256} {46 0 256} {47 0 256}]"; got != want {
		t.Errorf("the backbone has %s, want %s", got, want)
	}
	// 512 rows of 8 picks at 4,096,000 a second are a millisecond for each of the four.
	if got := p.Forecast.Busiest; got != 52*time.Millisecond {
		t.Errorf("the backbone works %v of a step, want 48 layers of 1 ms and 4 ms of experts", got)
	}
}

func TestPlanKeepsWhatIsCached(t *testing.T) {
	a, b := far("a", 64*gib, 1e5), far("b", 64*gib, 1e5)
	for l := range 24 {
		a.Cached = append(a.Cached, Range{2*l + 1, 0, 256})
		b.Cached = append(b.Cached, Range{2 * l, 0, 256})
	}
	p := Make(big(), Backbone{Copies: 1}, []Worker{a, b})
	if got := p.Workers[0].Fetch + p.Workers[1].Fetch; got != 0 {
		t.Errorf("%d bytes are fetched though all is on the disks", got)
	}
}

func TestPlanLeavesOutWhoSlowsTheOthers(t *testing.T) {
	crawl := far("crawl", 30*gib, 1e3)
	p := Make(big(), Backbone{Layer: time.Millisecond}, []Worker{far("a", 200*gib, 2e5), far("b", 200*gib, 2e5), crawl})
	if w := p.Workers[2]; w.Used && w.Busy > 1 {
		t.Errorf("the slow one is used: %+v", w)
	}
	moon := far("moon", 200*gib, 2e5)
	moon.RTT = 2500 * time.Millisecond
	ws := []Worker{far("a", 200*gib, 1e4), moon, far("b", 200*gib, 1e4)}
	p = Make(big(), Backbone{Layer: time.Millisecond, Flights: 1, Copies: 1}, ws)
	if w := p.Workers[1]; w.Used || !strings.Contains(w.Why, "tokens/s without it") {
		t.Errorf("one at a time, and a worker on the moon is used: %+v", w)
	}
	tiny := far("tiny", 4<<20, 2e5)
	p = Make(big(), Backbone{}, []Worker{far("a", 200*gib, 2e5), tiny})
	if w := p.Workers[1]; w.Used || !strings.Contains(w.Why, "one expert takes") {
		t.Errorf("a worker without room for an expert: %+v", w)
	}
}

func TestPlanCopiesHotExpertsWhereALayerDoesNotFitTwice(t *testing.T) {
	m := Model{Layers: 1, Experts: 64, TopK: 2, ExpertBytes: []int64{mib}}
	m.Load = [][]float64{make([]float64, 64)}
	for e := range m.Load[0] {
		m.Load[0][e] = 1
	}
	m.Load[0][7], m.Load[0][40] = 30, 20
	ws := []Worker{far("a", 60*mib, 1e5), far("b", 60*mib, 1e5)}
	p := Make(m, Backbone{}, ws)
	for _, e := range []int{7, 40} {
		for i := range ws {
			if !gridOf(m, p.Workers[i].Ranges).has(0, e) {
				t.Errorf("%s lacks the hot expert %d: %v", ws[i].Name, e, p.Workers[i].Ranges)
			}
		}
	}
}

func TestForecastNamesWhatBinds(t *testing.T) {
	m := big()
	for _, tt := range []struct {
		name  string
		b     Backbone
		w     Worker
		bound Bound
		who   string
	}{
		{"attention", Backbone{Layer: 50 * time.Millisecond}, far("w", 200*gib, 1e6), ByAttention, "backbone"},
		{"compute", Backbone{Layer: time.Millisecond}, far("w", 200*gib, 1e4), ByCompute, "w"},
		{"the worker's upload", Backbone{Layer: time.Millisecond},
			Worker{Name: "w", Memory: 200 * gib, Rows: 1e7, Up: 1e6}, ByUpload, "w"},
		{"the worker's download", Backbone{Layer: time.Millisecond},
			Worker{Name: "w", Memory: 200 * gib, Rows: 1e7, Down: 1e6}, ByDownload, "w"},
		{"the backbone's upload", Backbone{Layer: time.Millisecond, Up: 1e6}, far("w", 200*gib, 1e7), ByUpload, "backbone"},
		{"the backbone's download", Backbone{Layer: time.Millisecond, Down: 1e6}, far("w", 200*gib, 1e7), ByDownload, "backbone"},
		{"experts at home", Backbone{Layer: time.Millisecond, Memory: 4 * gib, Rows: 1e4, Home: 1}, far("w", 200*gib, 1e7),
			ByAttention, "backbone"},
		{"round trips", Backbone{Layer: time.Millisecond, Flights: 1}, far("w", 200*gib, 1e7), ByRoundTrips, "backbone"},
		{"memory", Backbone{Layer: time.Millisecond, Sequences: 512}, far("w", 200*gib, 1e7), ByMemory, "backbone"},
		{"experts nowhere", Backbone{Layer: time.Millisecond}, far("w", 20*gib, 1e7), ByMemory, "backbone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := Make(m, tt.b, []Worker{tt.w}).Forecast
			if f.Bound != tt.bound || f.Who != tt.who {
				t.Errorf("bound by %s of %s, want %s of %s: %+v", f.Bound, f.Who, tt.bound, tt.who, f)
			}
		})
	}
}
