package sample

import (
	"math"
	"testing"
)

// TestDrawsHaveTheirShares counts draws and compares the counts with the probabilities by chi-square,
// far out in the tail: seeds are fixed, so the test passes always or never.
func TestDrawsHaveTheirShares(t *testing.T) {
	const draws = 40_000
	base := []float32{2, 1.5, 1.5, 1, 0.3, 0, -0.5, -1, -2, -3}
	for _, c := range []struct {
		name  string
		p     func(p *Params)
		share func(i int, z float64) float64 // not yet of 1
	}{
		{"plain", func(*Params) {}, func(_ int, z float64) float64 { return math.Exp(z) }},
		{"hot", func(p *Params) { p.Temperature = 2.5 }, func(_ int, z float64) float64 { return math.Exp(z / 2.5) }},
		{"cold", func(p *Params) { p.Temperature = 0.4 }, func(_ int, z float64) float64 { return math.Exp(z / 0.4) }},
		{"top-k", func(p *Params) { p.TopK = 3 }, func(i int, z float64) float64 {
			if i > 2 {
				return 0
			}
			return math.Exp(z)
		}},
		{"top-p", func(p *Params) { p.TopP = 0.75 }, func(i int, z float64) float64 {
			if i > 3 { // the first three have 0.67, four 0.79
				return 0
			}
			return math.Exp(z)
		}},
		{"min-p", func(p *Params) { p.MinP = 0.15 }, func(_ int, z float64) float64 {
			if z < 2+math.Log(0.15) {
				return 0
			}
			return math.Exp(z)
		}},
		{"bias", func(p *Params) { p.Bias = map[int32]float32{9: 4} }, func(i int, z float64) float64 {
			if i == 9 {
				z += 4
			}
			return math.Exp(z)
		}},
	} {
		for _, way := range []string{"positions", "choices", "seeds"} {
			p := Defaults()
			p.Temperature, p.Seed = 1, 77
			c.p(&p)
			var counts, shares [10]float64
			sum := 0.0
			for i, z := range base {
				shares[i] = c.share(i, float64(z))
				sum += shares[i]
			}
			s := mustNew(t, p, Options{Vocab: len(base), Ops: ops})
			for i := range draws {
				pos := 0
				switch way {
				case "positions":
					pos = i
				case "choices":
					s.o.Choice = i
				case "seeds":
					s.p.Seed = uint64(i)
				}
				counts[mustNext(t, s, base, pos).ID]++
			}
			chi, freedom := 0.0, -1.0
			for i, n := range counts {
				want := draws * shares[i] / sum
				if want == 0 {
					if n > 0 {
						t.Errorf("%s, %s: token %d was drawn %g times", c.name, way, i, n)
					}
					continue
				}
				chi += (n - want) * (n - want) / want
				freedom++
			}
			// 6 standard deviations above its mean, and more than a trickle below it.
			if chi > freedom+6*math.Sqrt(2*freedom) {
				t.Errorf("%s, %s: chi-square %g of %g degrees of freedom: %v", c.name, way, chi, freedom, counts)
			}
		}
	}
}
