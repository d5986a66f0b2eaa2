package place

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const mib = 1 << 20

func drawModel(t *rapid.T) Model {
	m := Model{
		Layers: rapid.IntRange(1, 12).Draw(t, "layers"), Experts: rapid.IntRange(1, 80).Draw(t, "experts"),
		TopK: rapid.IntRange(1, 8).Draw(t, "topk"), RowBytes: 3120, PartialBytes: 5000,
	}
	for range m.Layers {
		m.ExpertBytes = append(m.ExpertBytes, int64(rapid.IntRange(1, 9).Draw(t, "bytes"))*mib)
	}
	if rapid.Bool().Draw(t, "loads") {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "load"), 0))
		for range m.Layers {
			row := make([]float64, m.Experts)
			for e := range row {
				row[e] = rng.ExpFloat64() * rng.ExpFloat64()
			}
			m.Load = append(m.Load, row)
		}
	}
	return m
}

func drawWorker(t *rapid.T, name string, m Model) Worker {
	all := total(m)
	return Worker{
		Name:   name,
		Memory: rapid.Int64Range(0, 2*all).Draw(t, "memory"),
		Rows:   float64(rapid.SampledFrom([]int{0, 500, 5000, 40000}).Draw(t, "rows")),
		RTT:    time.Duration(rapid.IntRange(0, 80).Draw(t, "rtt")) * time.Millisecond,
		Up:     float64(rapid.SampledFrom([]int{0, 1e6, 12.5e6, 125e6}).Draw(t, "up")),
		Down:   float64(rapid.SampledFrom([]int{0, 1e6, 12.5e6, 125e6}).Draw(t, "down")),
	}
}

func drawWorkers(t *rapid.T, m Model) []Worker {
	var ws []Worker
	for i := range rapid.IntRange(0, 6).Draw(t, "workers") {
		w := drawWorker(t, fmt.Sprint("w", i), m)
		w.Held, w.Cached = drawRanges(t, m), drawRanges(t, m)
		ws = append(ws, w)
	}
	return ws
}

// drawRanges may draw ranges that the model does not have.
func drawRanges(t *rapid.T, m Model) []Range {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Range {
		lo := rapid.IntRange(-1, m.Experts).Draw(t, "lo")
		return Range{rapid.IntRange(-1, m.Layers).Draw(t, "layer"), lo, lo + rapid.IntRange(-1, m.Experts).Draw(t, "n")}
	}), 0, 4).Draw(t, "ranges")
}

func drawBackbone(t *rapid.T, m Model) Backbone {
	return Backbone{
		Layer:  time.Duration(rapid.IntRange(0, 20).Draw(t, "attention")) * time.Millisecond,
		Memory: rapid.Int64Range(0, total(m)/2).Draw(t, "home memory"), Rows: 3000,
		Home: rapid.IntRange(0, 2).Draw(t, "home"), Up: 125e6, Down: 125e6,
		Sequences: rapid.SampledFrom([]int{0, 64, 2048}).Draw(t, "sequences"),
		Copies:    rapid.IntRange(0, 3).Draw(t, "copies"),
	}
}

func total(m Model) int64 {
	sum := int64(0)
	for l := range m.Layers {
		sum += m.ExpertBytes[l] * int64(m.Experts)
	}
	return sum
}

func gridOf(m Model, list []Range) grid {
	g := newGrid(&m)
	g.addRanges(&m, list)
	return g
}

func bytesOf(m Model, list []Range) int64 {
	sum := int64(0)
	for _, r := range list {
		sum += int64(r.Hi-r.Lo) * m.ExpertBytes[r.Layer]
	}
	return sum
}

// check holds what is true of every plan.
func check(t *rapid.T, m Model, b Backbone, ws []Worker, p Plan) {
	t.Helper()
	count := make([]int, m.Layers*m.Experts)
	note := func(list []Range) {
		for i, r := range list {
			if i > 0 && compareRanges(list[i-1], r) >= 0 || r.Lo >= r.Hi || r.Lo < 0 || r.Hi > m.Experts || r.Layer < 0 || r.Layer >= m.Layers {
				t.Fatalf("ranges %v", list)
			}
			for e := r.Lo; e < r.Hi; e++ {
				count[r.Layer*m.Experts+e]++
			}
		}
	}
	room := int64(0)
	most := slices.Max(m.ExpertBytes)
	for i, w := range p.Workers {
		note(w.Ranges)
		got := bytesOf(m, w.Ranges)
		if got > ws[i].Memory*4/5 || got != w.Bytes {
			t.Errorf("%s gets %d bytes, says %d, and may have %d", w.Name, got, w.Bytes, ws[i].Memory*4/5)
		}
		if w.Name != ws[i].Name || w.Used != (len(w.Ranges) > 0) || w.Why == "" {
			t.Errorf("worker %+v", w)
		}
		room += max(0, ws[i].Memory/5*4-most)
	}
	note(p.Backbone)
	if got := bytesOf(m, p.Backbone); got > b.Memory {
		t.Errorf("the backbone gets %d bytes of %d", got, b.Memory)
	}
	gone := gridOf(m, p.Missing)
	for i, n := range count {
		if missing := gone.has(i/m.Experts, i%m.Experts); missing != (n == 0) {
			t.Fatalf("layer %d, expert %d has %d holders, missing %v", i/m.Experts, i%m.Experts, n, missing)
		}
	}
	if room >= total(m) && len(p.Missing) > 0 {
		t.Errorf("there is room for all, and %v is missing", p.Missing)
	}
	if (p.Forecast.Tokens > 0) != (len(p.Missing) == 0) && p.Forecast.Step > 0 {
		t.Errorf("missing %v, and %v tokens a second", p.Missing, p.Forecast.Tokens)
	}
}

func TestPlanFitsAndCovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		b, ws := drawBackbone(t, m), drawWorkers(t, m)
		check(t, m, b, ws, Make(m, b, ws))
	})
}

func TestPlanDoesNotDependOnTheOrderOfWorkers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		b, ws := drawBackbone(t, m), drawWorkers(t, m)
		p := Make(m, b, ws)
		if again := Make(m, b, ws); !reflect.DeepEqual(again, p) {
			t.Fatalf("the same arguments give\n%+v\nand\n%+v", p, again)
		}
		order := rapid.Permutation(seq(len(ws))).Draw(t, "order")
		turned := make([]Worker, len(ws))
		for i, at := range order {
			turned[i] = ws[at]
		}
		q := Make(m, b, turned)
		if q.Forecast != p.Forecast || !reflect.DeepEqual(q.Backbone, p.Backbone) || !reflect.DeepEqual(q.Missing, p.Missing) {
			t.Fatalf("turned, %+v became %+v", p, q)
		}
		for i, at := range order {
			if !reflect.DeepEqual(q.Workers[i], p.Workers[at]) {
				t.Errorf("turned, %+v became %+v", p.Workers[at], q.Workers[i])
			}
		}
	})
}

func seq(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// hold takes a plan as what is in force.
func hold(ws []Worker, p Plan) []Worker {
	ws = slices.Clone(ws)
	for i := range ws {
		ws[i].Held = p.Workers[i].Ranges
	}
	return ws
}

func fetched(p Plan, skip string) int64 {
	sum := int64(0)
	for _, w := range p.Workers {
		if w.Name != skip {
			sum += w.Fetch
		}
	}
	return sum
}

func TestPlanStaysWhereNothingChanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		b, ws := drawBackbone(t, m), drawWorkers(t, m)
		p := Make(m, b, ws)
		for n := 0; ; n++ {
			ws = hold(ws, p)
			q := Make(m, b, ws)
			if fetched(q, "") == 0 {
				return
			}
			if n == 4 {
				t.Fatalf("%d bytes still move after %d plans: %+v, %+v", fetched(q, ""), n, p.Workers, q.Workers)
			}
			p = q
		}
	})
}

// equalWorkers have room for twice the model together.
func equalWorkers(m Model, n int) []Worker {
	var ws []Worker
	for i := range n {
		ws = append(ws, Worker{
			Name: fmt.Sprint("w", i), Memory: total(m)/int64(n)*5/2 + 5*slices.Max(m.ExpertBytes)*int64(m.Experts),
			Rows: 20000, RTT: 13 * time.Millisecond, Up: 12.5e6, Down: 12.5e6,
		})
	}
	return ws
}

func TestPlanMovesLittleWhenAWorkerJoinsOrLeaves(t *testing.T) {
	for _, copies := range []int{1, 2} {
		rapid.Check(t, func(t *rapid.T) {
			m := drawModel(t)
			n := rapid.IntRange(2, 6).Draw(t, "workers")
			b := Backbone{Layer: 4 * time.Millisecond, Copies: copies}
			ws := equalWorkers(m, n)
			for range 4 {
				ws = hold(ws, Make(m, b, ws))
			}
			layer := slices.Max(m.ExpertBytes) * int64(m.Experts)

			newcomer := ws[0]
			newcomer.Name, newcomer.Held = "new", nil
			joined := append(slices.Clone(ws), newcomer)
			p := Make(m, b, joined)
			if moved := fetched(p, "new"); moved > layer+int64(copies-1)*(total(m)/int64(n+1)+layer*int64(n)) {
				t.Errorf("when one joined %d workers, they fetch %d of %d bytes, a layer being %d", n, moved, total(m), layer)
			}
			gone := rapid.IntRange(0, n-1).Draw(t, "leaver")
			had := bytesOf(m, ws[gone].Held)
			p = Make(m, b, slices.Delete(slices.Clone(ws), gone, gone+1))
			if moved := fetched(p, ""); moved > had+layer*int64(n) {
				t.Errorf("when one of %d who had %d left, the others fetch %d of %d bytes, a layer being %d", n, had, moved, total(m), layer)
			}
		})
	}
}
