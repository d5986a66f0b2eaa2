package sample

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"kvasir/kernels/vector"
)

// TestNextIsTheTwins compares with a sampler that sorts everything, for logits of all shapes.
func TestNextIsTheTwins(t *testing.T) {
	eachOps(t, func(t *testing.T, ops *vector.Ops) {
		ways := map[string]int{}
		each := []string{"wide false, 1 piles", "wide false, 2 piles", "wide true, 3 piles"}
		seen := func() bool {
			return !slices.ContainsFunc(each, func(way string) bool { return ways[way] == 0 })
		}
		// Some ways are rare: cases are drawn until each has been gone.
		for round := 0; round < 40 && !t.Failed() && (round == 0 || !seen()); round++ {
			rapid.Check(t, func(rt *rapid.T) { nextIsTheTwins(rt, ops, ways) })
		}
		if !t.Failed() && !seen() {
			t.Errorf("no case was of one of %v: %v", each, ways)
		}
	})
}

// nextIsTheTwins compares one choice, and counts the way that it went.
func nextIsTheTwins(rt *rapid.T, ops *vector.Ops, ways map[string]int) {
	n := rapid.OneOf(rapid.IntRange(1, 40), rapid.IntRange(250, 1100), rapid.IntRange(17000, 23000)).Draw(rt, "tokens")
	p := Defaults()
	p.Temperature = rapid.OneOf(rapid.Float32Range(0, 3), rapid.SampledFrom([]float32{0, 1, 1e-9, 1e-4, 0.05, 100})).Draw(rt, "temperature")
	p.TopK = rapid.OneOf(rapid.Just(0), rapid.IntRange(1, 100), rapid.IntRange(1, n+1)).Draw(rt, "top-k")
	p.TopP = rapid.OneOf(rapid.Just[float32](1), rapid.Float32Range(0, 1), rapid.SampledFrom([]float32{1e-30, 0.99999})).Draw(rt, "top-p")
	p.MinP = rapid.OneOf(rapid.Just[float32](0), rapid.Float32Range(0, 1), rapid.SampledFrom([]float32{1e-12, 1e-6, 0.01})).Draw(rt, "min-p")
	p.Seed = rapid.Uint64().Draw(rt, "seed")
	x := make([]float32, n)
	fill(x, rapid.IntRange(0, shapes-1).Draw(rt, "shape"), rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "logits"), 0)))
	choice, pos := rapid.IntRange(0, 3).Draw(rt, "choice"), rapid.IntRange(0, 1<<40).Draw(rt, "position")

	s, err := New(p, Options{Choice: choice, Vocab: n, Ops: ops})
	if err != nil {
		rt.Fatal(err)
	}
	want := twinOf(x, p, choice, pos)
	got, err := s.Next(x, pos) // the sampler may spoil x; the twin has seen it
	if err != nil || got.ID != want {
		rt.Fatalf("token %d, %v; want %d", got.ID, err, want)
	}
	if s.order != nil {
		ways[fmt.Sprintf("wide %v, %d piles", s.order.wide, min(3, len(s.order.piles)))]++
	}
}

// drawAt draws with the random number u.
func drawAt(t *testing.T, x []float32, p Params, u uint64) int32 {
	s := scan{ops: vector.Active()}
	if err := s.read(x); err != nil {
		t.Fatal(err)
	}
	return newOrder(&p, &s).draw(u)
}

// TestDrawEndsWhereASumDoes has random numbers at the borders between equal tokens.
func TestDrawEndsWhereASumDoes(t *testing.T) {
	x := []float32{3, 3, 3, 3}
	p := Params{Temperature: 1, TopP: 1, Repetition: 1}
	for i := range uint64(4) {
		for u, want := range map[uint64]int32{i << 62: int32(i), i<<62 + 1<<62 - 1: int32(i)} {
			if got := drawAt(t, x, p, u); got != want {
				t.Errorf("%#x draws token %d, want %d", u, got, want)
			}
		}
	}
}

// TestMinPKeepsItsBorder: tokens as likely as the likeliest stay at 1, whether or not top-p comes first.
func TestMinPKeepsItsBorder(t *testing.T) {
	for _, topP := range []float32{1, 0.9999} {
		p := Params{Temperature: 1, TopP: topP, MinP: 1, Repetition: 1}
		if got := drawAt(t, []float32{0, 3, 3, 2}, p, math.MaxUint64); got != 2 {
			t.Errorf("top-p %g: token %d, want 2", topP, got)
		}
	}
}

// TestTruncationLooksBeyondTheHead has logits whose largest are spread over all chunks, so that the head
// is short and what is cut off begins far behind it.
func TestTruncationLooksBeyondTheHead(t *testing.T) {
	const chunks = 70
	x := make([]float32, chunks*chunk)
	for i := range x {
		x[i] = -float32(i%chunk*chunks+i/chunk) * 1e-4
	}
	for _, p := range []Params{
		{Temperature: 1, TopP: 0.99, MinP: 0.9},
		{Temperature: 1, TopP: 0.99, MinP: 0.9999},
		{Temperature: 1, TopP: 1, MinP: 0.9},
		{Temperature: 1, TopP: 0.3},
		{Temperature: 1, TopP: 0.001},
		{Temperature: 1, TopP: 1, TopK: 70},
		{Temperature: 1, TopP: 1, TopK: 71},
		{Temperature: 1, TopP: 0.5, TopK: 3000, MinP: 0.85},
	} {
		for _, u := range []uint64{0, 1 << 50, 1 << 60, 1 << 63, math.MaxUint64} {
			if got, want := drawAt(t, x, p, u), twinAt(x, p, u); got != want {
				t.Errorf("%+v: %#x draws token %d, want %d", p, u, got, want)
			}
		}
	}
}

// TestPartIsRoundedUp, against quotients in full.
func TestPartIsRoundedUp(t *testing.T) {
	r := newRand(t)
	for range 100_000 {
		share, sum := r.Uint64N(1<<53+1), r.Int64N(1<<57)>>r.IntN(50)
		o := order{share: share}
		hi, lo := bits.Mul64(share, uint64(sum))
		want, rest := bits.Div64(hi, lo, 1<<53)
		if rest > 0 {
			want++
		}
		if got := o.part(sum); got != max(1, int64(want)) {
			t.Fatalf("%d/2^53 of %d is %d, want %d", share, sum, got, want)
		}
	}
}

// TestWeightsAreOneArithmetic compares the scalar weight with the vectorised ones, and their sum.
func TestWeightsAreOneArithmetic(t *testing.T) {
	r := newRand(t)
	eachOps(t, func(t *testing.T, ops *vector.Ops) {
		for shape := range shapes {
			for _, temperature := range []float32{1, 0.3, 7, 1e-5} {
				x := make([]float32, 1000)
				fill(x, shape, r)
				p := Defaults()
				p.Temperature = temperature
				s := scan{ops: ops}
				if err := s.read(x); err != nil {
					t.Fatal(err)
				}
				o := newOrder(&p, &s)
				o.draw(0) // sets what depends on the logits
				sum := int64(0)
				for c := range s.maxima {
					part, _ := s.part(c)
					for i, e := range o.weights(part) {
						want := int64(math.RoundToEven(math.Ldexp(float64(e), weightBits)))
						if got := o.weight(part[i]); got != want || whole(e) != want {
							t.Fatalf("shape %d, temperature %g: %g weighs %d, want %d", shape, temperature, part[i], got, want)
						}
						if want > 0 && part[i] < o.floor {
							t.Fatalf("shape %d, temperature %g: %g weighs %d and is below the floor", shape, temperature, part[i], want)
						}
						sum += want
					}
				}
				if got := o.all(); got != sum {
					t.Errorf("shape %d, temperature %g: the sum is %d, want %d", shape, temperature, got, sum)
				}
			}
		}
	})
}

// TestKeysAreInOrder sorts keys of all kinds of logits as numbers.
func TestKeysAreInOrder(t *testing.T) {
	values := []float32{math.MaxFloat32, 3, 1, 1e-40, 0, -1e-40, -1, -3, -math.MaxFloat32}
	for i, v := range values {
		if got := logitOf(keyOf(v, i)); got != v || idOf(keyOf(v, i)) != int32(i) {
			t.Errorf("%g at %d comes back as %g at %d", v, i, got, idOf(keyOf(v, i)))
		}
		for j, w := range values {
			if (keyOf(v, 7) < keyOf(w, 7)) != (i < j) {
				t.Errorf("keys of %g and %g are in the wrong order", v, w)
			}
		}
		if keyOf(v, 4) >= keyOf(v, 5) {
			t.Errorf("equal logits %g are not in the order of their ids", v)
		}
	}
	if keyOf(float32(math.Copysign(0, -1)), 1) != keyOf(0, 1) {
		t.Error("the two zeros differ")
	}
}

// TestLargestIsTheTwins, for lists of all lengths.
func TestLargestIsTheTwins(t *testing.T) {
	r := newRand(t)
	for n := 1; n < 6000; n = n*2 + r.IntN(5) {
		for shape := range shapes {
			x := make([]float32, n)
			fill(x, shape, r)
			s := scan{ops: vector.Active()}
			if err := s.read(x); err != nil {
				t.Fatal(err)
			}
			for _, k := range []int{1, 2, 5, 20} {
				got := s.largest(nil, k)
				for i, key := range got {
					if x[idOf(key)] != logitOf(key) {
						t.Fatalf("a key of token %d has the logit %g", idOf(key), logitOf(key))
					}
					better := 0
					for id, v := range x {
						if keyOf(v, id) < key {
							better++
						}
					}
					if better != i {
						t.Fatalf("%d tokens, shape %d: number %d of the likeliest has %d better ones", n, shape, i, better)
					}
				}
				possible := 0
				for _, v := range x {
					if !math.IsInf(float64(v), -1) {
						possible++
					}
				}
				if len(got) != min(k, possible) {
					t.Fatalf("%d tokens of %d possible ones, want %d", len(got), possible, k)
				}
			}
		}
	}
}
