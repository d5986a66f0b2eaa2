package audit

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"kvasir/internal/moe"
)

// expert is one with weights of four bits, computed in two ways that have nothing in common but those.
type expert struct {
	hidden, ffn    int
	gate, up, down []float64
}

func newExpert(rng *rand.Rand, hidden, ffn int) *expert {
	e := &expert{hidden: hidden, ffn: ffn}
	for _, w := range []*[]float64{&e.gate, &e.up, &e.down} {
		*w = make([]float64, hidden*ffn)
		for i := range *w {
			(*w)[i] = rng.NormFloat64() / math.Sqrt(float64(hidden))
		}
		coarse(*w, 7)
	}
	return e
}

// coarse leaves 2*steps+1 values of each 32 weights.
func coarse(w []float64, steps float64) {
	for at := 0; at < len(w); at += 32 {
		block, most := w[at:at+32], 0.0
		for _, v := range block {
			most = max(most, math.Abs(v))
		}
		for i, v := range block {
			block[i] = math.RoundToEven(v/most*steps) / steps * most
		}
	}
}

func half(x float64) float64 {
	m, e := math.Frexp(x)
	return math.Ldexp(math.RoundToEven(m*(1<<11)), e-11)
}

// int8s is what the exact arithmetic makes of a row.
func int8s(x []float64) []float64 {
	out, most := make([]float64, len(x)), 0.0
	for _, v := range x {
		most = max(most, math.Abs(v))
	}
	for i, v := range x {
		out[i] = math.RoundToEven(v/most*127) / 127 * most
	}
	return out
}

func halves(x []float64) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = half(v)
	}
	return out
}

func times(w, x []float64, rows int) []float64 {
	out := make([]float64, rows)
	for r := range out {
		for i, v := range x {
			out[r] += w[r*len(x)+i] * v
		}
	}
	return out
}

// answer is an expert's output for a row in units of a grid on which it is large or small.
func (e *expert) answer(x []float64, grid float64, round func([]float64) []float64) Answer {
	x = round(x)
	g, u := times(e.gate, x, e.ffn), times(e.up, x, e.ffn)
	h := make([]float64, e.ffn)
	for i := range h {
		h[i] = g[i] / (1 + math.Exp(-g[i])) * u[i]
	}
	a := Answer{Sum: make([]int64, e.hidden)}
	for i, y := range times(e.down, round(h), e.hidden) {
		a.Sum[i] = int64(math.RoundToEven(y * grid))
	}
	return a
}

// TestHonestCloseWorkersAreNeverAccused compares half precision with the exact arithmetic, on fine grids and on one
// on which an answer is a few units; and cheats with both.
func TestHonestCloseWorkersAreNeverAccused(t *testing.T) {
	const seed = 6
	rng := rand.New(rand.NewPCG(seed, 6))
	n := 150
	if os.Getenv("KVASIR_SOAK") != "" {
		n = 10_000
	}
	for _, shape := range [][2]int{{64, 32}, {128, 64}, {32, 64}, {256, 32}} {
		e, other := newExpert(rng, shape[0], shape[1]), newExpert(rng, shape[0], shape[1])
		cheap := &expert{hidden: e.hidden, ffn: e.ffn}
		for _, w := range [][2]*[]float64{{&cheap.gate, &e.gate}, {&cheap.up, &e.up}, {&cheap.down, &e.down}} {
			*w[0] = append([]float64(nil), *w[1]...)
			coarse(*w[0], 3)
		}
		for _, grid := range []float64{1 << 20, 1 << 12, 1 << 8, 16} {
			caught := map[string]int{}
			var before Answer
			far, sum := 0.0, 0.0
			for range n {
				x := make([]float64, e.hidden)
				for i := range x {
					x[i] = rng.NormFloat64()
				}
				right, honest := e.answer(x, grid, int8s), e.answer(x, grid, halves)
				far, sum = max(far, distance(honest, right)), sum+distance(honest, right)
				if !Close.agrees(honest, right, 1) {
					t.Fatalf("seed %d: an honest answer is %.4f away on a grid of %v", seed, distance(honest, right), grid)
				}
				if Exact.agrees(honest, right, 1) && grid > 256 {
					t.Fatal("half precision is exact")
				}
				for name, a := range map[string]Answer{
					"zeros": {Sum: make([]int64, e.hidden)}, "another expert's": other.answer(x, grid, halves),
					"three bits": cheap.answer(x, grid, halves), "replayed": before, "a fault": {Status: moe.Range, Sum: make([]int64, e.hidden)},
				} {
					if a.Sum != nil && !Close.agrees(a, right, 1) {
						caught[name]++
					}
				}
				before = honest
			}
			t.Logf("hidden %d, grid %v: honest ones %.4f away on average, %.4f at most; caught of %d: %v", e.hidden, grid, sum/float64(n), far, n, caught)
			for _, name := range []string{"zeros", "another expert's", "three bits", "replayed", "a fault"} {
				if grid >= 256 && caught[name] < n*99/100-1 {
					t.Errorf("%s: %d of %d were caught on a grid of %v", name, caught[name], n, grid)
				}
			}
		}
	}
}

func distance(a, b Answer) float64 {
	var off, length float64
	for i, v := range b.Sum {
		off += float64(a.Sum[i]-v) * float64(a.Sum[i]-v)
		length += float64(v) * float64(v)
	}
	return math.Sqrt(off / max(1, length))
}

// TestACloseWorkerIsJudgedByTolerance has a worker of either class answer a little off, and far off.
func TestACloseWorkerIsJudgedByTolerance(t *testing.T) {
	for _, c := range []struct {
		class  Class
		off    int64
		caught bool
	}{{Exact, 0, false}, {Exact, 1, true}, {Close, 1, false}, {Close, 1 << 20, true}} {
		var found []Finding
		a := New(Options{Judge: own(&executor{}), Every: 1, Found: func(f Finding) { found = append(found, f) }})
		w := a.Worker(key(1), NewRecord(0, 0))
		w.Compare(c.class)
		b := batch(t, rand.New(rand.NewPCG(8, 8)), 0, 4)
		var out moe.Partials
		truth(b, &out)
		for r := range out.Rows {
			out.Row(r)[0] += c.off
		}
		w.Answer(b, &out)
		drive(a)
		if (len(found) > 0) != c.caught || w.Counts().Checked != 4 {
			t.Errorf("%v, off by %d: found %d; %+v", c.class, c.off, len(found), w.Counts())
		}
		for _, f := range found {
			text, err := json.Marshal(f)
			var back Finding
			if err == nil {
				err = json.Unmarshal(text, &back)
			}
			if err != nil || back.Class != c.class {
				t.Errorf("the evidence says %v, want %v; error %v", back.Class, c.class, err)
			}
		}
	}
}
