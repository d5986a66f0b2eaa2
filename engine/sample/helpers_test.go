package sample

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"kvasir/kernels/ref"
	"kvasir/kernels/variant"
	"kvasir/kernels/vector"
)

// eachOps runs f for the operations of every variant that this machine has, once for each that differs.
func eachOps(t *testing.T, f func(t *testing.T, ops *vector.Ops)) {
	ran := map[*vector.Ops]bool{}
	for _, v := range variant.Available() {
		if ops := vector.For(v); !ran[ops] {
			ran[ops] = true
			t.Run(v.String(), func(t *testing.T) { f(t, ops) })
		}
	}
}

func newRand(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %#x", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// Shapes of logits.
const (
	peaked = iota // as of a model that knows what comes
	flat          // as of one that does not
	coarse        // of few different values: ties everywhere
	level         // all the same
	holed         // most are impossible
	wild          // any numbers
	shapes
)

func fill(x []float32, shape int, r *rand.Rand) {
	for i := range x {
		v := float32(r.NormFloat64())
		switch {
		case shape == peaked && r.IntN(400) == 0:
			v = v*3 + 12
		case shape == peaked:
			v *= 3
		case shape == coarse:
			v = float32(math.Round(float64(v))) * float32(r.IntN(2))
			if v == 0 && r.IntN(2) == 0 {
				v = float32(math.Copysign(0, -1))
			}
		case shape == level:
			v = -2.5
		case shape == holed && r.IntN(50) != 0:
			v = float32(math.Inf(-1))
		case shape == wild:
			v = math.Float32frombits(r.Uint32())
			if v != v || v > math.MaxFloat32 {
				v = 0
			}
		}
		x[i] = v
	}
	if shape == holed {
		x[r.IntN(len(x))] = 1 // not all of them
	}
}

// twinOf is what the package comment says, done by sorting everything, with numbers that have no limits.
// It returns -1 if there is no token.
func twinOf(x []float32, p Params, choice, pos int) int32 {
	return twinAt(x, p, uniform(p.Seed, choice, pos))
}

// twinAt is twinOf with the random number u.
func twinAt(x []float32, p Params, u uint64) int32 {
	ids := make([]int32, len(x))
	for i := range ids {
		ids[i] = int32(i)
	}
	slices.SortStableFunc(ids, func(a, b int32) int {
		switch {
		case x[a] > x[b]:
			return -1
		case x[a] < x[b]:
			return 1
		}
		return 0
	})
	top := x[ids[0]]
	switch {
	case math.IsInf(float64(top), -1):
		return -1
	case p.Temperature == 0:
		return ids[0]
	}
	var weights []*big.Int
	for _, id := range ids {
		e := ref.Exp((x[id] - top) * (1 / max(p.Temperature, temperatureMin)))
		w := math.RoundToEven(math.Ldexp(float64(e), 39))
		if w == 0 || p.TopK > 0 && len(weights) == p.TopK {
			break
		}
		weights = append(weights, big.NewInt(int64(w)))
	}
	if p.TopP < 1 {
		part := new(big.Rat).SetInt(sumOf(weights))
		part.Mul(part, new(big.Rat).SetFloat64(float64(p.TopP)))
		n, sum := 1, new(big.Int).Set(weights[0])
		for ; new(big.Rat).SetInt(sum).Cmp(part) < 0; n++ {
			sum.Add(sum, weights[n])
		}
		weights = weights[:n]
	}
	least := new(big.Rat).SetInt(weights[0])
	least.Mul(least, new(big.Rat).SetFloat64(float64(p.MinP)))
	for new(big.Rat).SetInt(weights[len(weights)-1]).Cmp(least) < 0 {
		weights = weights[:len(weights)-1]
	}
	t := new(big.Int).SetUint64(u)
	t.Mul(t, sumOf(weights))
	t.Rsh(t, 64)
	for i := range weights {
		if t.Sub(t, weights[i]).Sign() < 0 {
			return ids[i]
		}
	}
	panic("the sum was passed")
}

func sumOf(list []*big.Int) *big.Int {
	sum := new(big.Int)
	for _, v := range list {
		sum.Add(sum, v)
	}
	return sum
}

func mustNew(t testing.TB, p Params, o Options) *Sampler {
	t.Helper()
	s, err := New(p, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustNext(t testing.TB, s *Sampler, x []float32, pos int) Token {
	t.Helper()
	token, err := s.Next(slices.Clone(x), pos)
	if err != nil {
		t.Fatal(err)
	}
	return token
}
