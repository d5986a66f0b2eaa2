package sample

import (
	"errors"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"kvasir/kernels/vector"
)

var (
	ops  = vector.Active()
	none = float32(math.Inf(-1))
)

func TestGreedyTakesTheLargest(t *testing.T) {
	eachOps(t, func(t *testing.T, ops *vector.Ops) {
		r := newRand(t)
		for n := 1; n < 3000; n = n*3/2 + 1 {
			for shape := range shapes {
				x := make([]float32, n)
				fill(x, shape, r)
				s := mustNew(t, Defaults(), Options{Vocab: n, Ops: ops})
				want := int32(0)
				for id, v := range x {
					if v > x[want] {
						want = int32(id)
					}
				}
				if got := mustNext(t, s, x, 3).ID; got != want {
					t.Fatalf("%d tokens, shape %d: token %d, want %d", n, shape, got, want)
				}
			}
		}
	})
}

func TestBadLogitsAreAnError(t *testing.T) {
	for _, c := range []struct {
		name string
		p    func(p *Params)
		held Constraint
	}{
		{"greedy", func(*Params) {}, nil},
		{"drawn", func(p *Params) { p.Temperature, p.TopK = 1, 5 }, nil},
		{"penalties", func(p *Params) { p.Temperature, p.Repetition, p.Frequency = 1, 2, 2 }, nil},
		{"bias", func(p *Params) { p.Bias = map[int32]float32{600: -100} }, nil},
		{"logprobs", func(p *Params) { p.Logprobs, p.Top = true, 20 }, nil},
		{"masked", func(*Params) {}, &only{ids: []int32{3}}},
	} {
		p := Defaults()
		c.p(&p)
		s := mustNew(t, p, Options{Vocab: 1000, Ops: ops, Constraint: c.held, Prompt: []int32{600}})
		x := make([]float32, 1000)
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
			x[600] = bad
			if token, err := s.Next(slices.Clone(x), 1); !errors.Is(err, ErrLogits) || !strings.Contains(err.Error(), "at token 600") {
				t.Errorf("%s: token %d, %v with %g among the logits", c.name, token.ID, err, bad)
			}
		}
		x[600] = none
		if _, err := s.Next(x, 1); err != nil {
			t.Errorf("%s: %v after good logits", c.name, err)
		}
	}
}

func TestNothingLeftIsAnError(t *testing.T) {
	x := []float32{none, none, none}
	for _, temperature := range []float32{0, 1} {
		for _, logprobs := range []bool{false, true} {
			p := Defaults()
			p.Temperature, p.Logprobs, p.Repetition, p.Bias = temperature, logprobs, 2, map[int32]float32{1: 100}
			s := mustNew(t, p, Options{Vocab: 3, Ops: ops, Prompt: []int32{0}})
			if _, err := s.Next(slices.Clone(x), 9); !errors.Is(err, ErrForbidden) || !strings.Contains(err.Error(), "position 9") {
				t.Errorf("temperature %g: %v where all tokens are impossible", temperature, err)
			}
			s = mustNew(t, p, Options{Vocab: 3, Ops: ops, Constraint: &only{}})
			if _, err := s.Next([]float32{1, 2, 3}, 9); !errors.Is(err, ErrForbidden) {
				t.Errorf("temperature %g: %v where the constraint allows none", temperature, err)
			}
		}
	}
}

// TestStepsAreInOrder has logits for which another order of two steps chooses otherwise.
func TestStepsAreInOrder(t *testing.T) {
	for _, c := range []struct {
		name string
		x    []float32
		p    func(p *Params)
		held []int32
		ids  []int32 // those that are drawn
	}{
		// Bias makes the logit positive, so it is halved: 1.5 < 1.6. Penalties first: -2*2 + 5 = 1.
		{"bias before penalties", []float32{-2, 1.4}, func(p *Params) { p.Bias, p.Repetition = map[int32]float32{0: 5}, 2 }, nil, []int32{0}},
		// Halved 6 is 3, less 1 is 2. The other way round it would be (6-1)/2 = 2.5.
		{"repetition before presence", []float32{6, 2.2}, func(p *Params) { p.Repetition, p.Presence = 2, 1 }, nil, []int32{1}},
		{"mask before top-k", []float32{9, 8, 7, 6, 5}, func(p *Params) { p.Temperature, p.TopK = 100, 2 }, []int32{2, 3, 4}, []int32{2, 3}},
		{"mask before top-p", []float32{9, 1, 1}, func(p *Params) { p.Temperature, p.TopP = 1, 0.6 }, []int32{1, 2}, []int32{1, 2}},
		// At temperature 1 the first has 0.67 of the mass, at 10 only 0.37.
		{"temperature before top-p", []float32{2, 1, 0}, func(p *Params) { p.Temperature, p.TopP = 10, 0.65 }, nil, []int32{0, 1}},
		{"temperature before min-p", []float32{2, 1, 0}, func(p *Params) { p.Temperature, p.MinP = 10, 0.85 }, nil, []int32{0, 1}},
		// Of three equal ones top-k leaves two; 0.5 of these is one. Of all three it would be two.
		{"top-k before top-p", []float32{1, 1, 1}, func(p *Params) { p.Temperature, p.TopK, p.TopP = 1, 2, 0.5 }, nil, []int32{0}},
		// 0.6 of all mass takes the first two; were min-p first, one token would have all of it.
		{"top-p before min-p", []float32{1, 0.9, 0, 0}, func(p *Params) { p.Temperature, p.TopP, p.MinP = 1, 0.6, 0.89 }, nil, []int32{0, 1}},
	} {
		p := Defaults()
		c.p(&p)
		var held Constraint
		if c.held != nil {
			held = &only{ids: c.held}
		}
		seen := map[int32]bool{}
		for pos := range 300 {
			s := mustNew(t, p, Options{Vocab: len(c.x), Ops: ops, Prompt: []int32{0}, Constraint: held})
			if c.name == "repetition before presence" {
				s.past.generated(0)
			}
			seen[mustNext(t, s, c.x, pos).ID] = true
		}
		for id := range c.x {
			if want := slices.Contains(c.ids, int32(id)); seen[int32(id)] != want {
				t.Errorf("%s: token %d is drawn: %v, want %v", c.name, id, seen[int32(id)], want)
			}
		}
	}
}

// TestPenaltiesAreTheTwins counts in the whole text each time.
func TestPenaltiesAreTheTwins(t *testing.T) {
	r := newRand(t)
	for range 200 {
		const vocab = 30
		p := Defaults()
		p.RepeatWindow = r.IntN(3) * r.IntN(12)
		p.Repetition = []float32{1, 1.3, 0.7, 5}[r.IntN(4)]
		p.Presence, p.Frequency = float32(r.IntN(5))/2-1, float32(r.IntN(5))/4-0.5
		p.Bias = map[int32]float32{int32(r.IntN(vocab)): r.Float32()*4 - 2, int32(r.IntN(vocab)): 1}
		p.Logprobs = r.IntN(2) == 0
		text := make([]int32, r.IntN(20))
		for i := range text {
			text[i] = int32(r.IntN(vocab))
		}
		prompt := len(text)
		s := mustNew(t, p, Options{Vocab: vocab, Ops: ops, Prompt: slices.Clone(text)})
		for range 30 {
			x := make([]float32, vocab)
			fill(x, r.IntN(2), r)
			y := slices.Clone(x)
			window := text
			if p.RepeatWindow > 0 {
				window = text[max(0, len(text)-p.RepeatWindow):]
			}
			for i := range y {
				y[i] += p.Bias[int32(i)]
				if slices.Contains(window, int32(i)) {
					if y[i] > 0 {
						y[i] /= p.Repetition
					} else {
						y[i] *= p.Repetition
					}
				}
				count := 0
				for _, id := range text[prompt:] {
					if int(id) == i {
						count++
					}
				}
				if count > 0 {
					off := float32(p.Frequency*float32(count)) + p.Presence
					y[i] -= off
				}
			}
			want := int32(slices.Index(y, slices.Max(y)))
			got := mustNext(t, s, x, len(text))
			if got.ID != want {
				t.Fatalf("%+v after %v: token %d, want %d", p, text, got.ID, want)
			}
			if exact := logSoftmax(x)[want]; p.Logprobs && math.Abs(float64(got.Logprob)-exact) > 1e-5 {
				t.Fatalf("%+v: log probability %g of token %d, want %g", p, got.Logprob, want, exact)
			}
			text = append(text, got.ID)
		}
	}
}

// TestPenaltiesMakeNoInfinity: extreme logits stay numbers, and impossible ones impossible.
func TestPenaltiesMakeNoInfinity(t *testing.T) {
	p := Defaults()
	p.Repetition, p.Presence, p.Frequency, p.Temperature = 0.01, -2, -2, 1
	p.Bias = map[int32]float32{0: 100}
	s := mustNew(t, p, Options{Vocab: 3, Ops: ops, Prompt: []int32{0, 1, 2}})
	for pos := range 10 {
		if got := mustNext(t, s, []float32{math.MaxFloat32, -math.MaxFloat32, none}, pos); got.ID != 0 {
			t.Errorf("token %d, want 0", got.ID)
		}
	}
	p.Repetition = 100
	s = mustNew(t, p, Options{Vocab: 3, Ops: ops, Prompt: []int32{0, 1, 2}})
	if got := mustNext(t, s, []float32{-math.MaxFloat32, none, none}, 0); got.ID != 0 {
		t.Errorf("token %d, want 0", got.ID)
	}
}

func logSoftmax(x []float32) []float64 {
	top, sum := float64(slices.Max(x)), 0.0
	for _, v := range x {
		sum += math.Exp(float64(v) - top)
	}
	list := make([]float64, len(x))
	for i, v := range x {
		list[i] = float64(v) - top - math.Log(sum)
	}
	return list
}

func TestLogprobsAreOfTheModel(t *testing.T) {
	eachOps(t, func(t *testing.T, ops *vector.Ops) {
		r := newRand(t)
		for _, n := range []int{1, 7, 300, 20_000} {
			for _, shape := range []int{peaked, flat, coarse, level, holed} {
				x := make([]float32, n)
				fill(x, shape, r)
				want := logSoftmax(x)
				p := Params{Temperature: 2, TopK: 9, TopP: 0.9, Repetition: 2, Logprobs: true, Top: 20, Bias: map[int32]float32{0: 30}}
				s := mustNew(t, p, Options{Vocab: n, Ops: ops, Prompt: []int32{0}, Constraint: &only{ids: []int32{0, int32(slices.Index(x, slices.Max(x)))}}})
				got := mustNext(t, s, x, 5)
				check := func(id int32, logprob float32) {
					if math.Abs(float64(logprob)-want[id]) > 2e-5*max(1, math.Abs(want[id])) {
						t.Errorf("%d tokens, shape %d: log probability %g of token %d, want %g", n, shape, logprob, id, want[id])
					}
				}
				if x[got.ID] > none {
					check(got.ID, got.Logprob)
				}
				for i, c := range got.Top {
					check(c.ID, c.Logprob)
					if i > 0 && c.Logprob > got.Top[i-1].Logprob {
						t.Errorf("%d tokens, shape %d: candidates are not in order", n, shape)
					}
				}
				if shape != holed && len(got.Top) != min(20, n) {
					t.Errorf("%d tokens, shape %d: %d candidates", n, shape, len(got.Top))
				}
			}
		}
	})
}

// TestLogprobsAreNumbers, for the unlikeliest token that there can be.
func TestLogprobsAreNumbers(t *testing.T) {
	p := Defaults()
	p.Logprobs, p.Top = true, 3
	s := mustNew(t, p, Options{Vocab: 3, Ops: ops, Constraint: &only{ids: []int32{1}}})
	got := mustNext(t, s, []float32{math.MaxFloat32, -math.MaxFloat32, none}, 0)
	if got.ID != 1 || got.Logprob != -math.MaxFloat32 || len(got.Top) != 2 || got.Top[0] != (Candidate{0, 0}) {
		t.Errorf("%+v", got)
	}
}

func TestLnIsTheLogarithm(t *testing.T) {
	r := newRand(t)
	for i := range 100_000 {
		x := math.Exp(r.Float64()*60 - 30)
		if i%2 == 0 {
			x = 1 + r.Float64()*1e-3*float64(i%5)
		}
		if got, want := ln(x), math.Log(x); math.Abs(got-want) > 4e-16*max(1, math.Abs(want)) {
			t.Fatalf("ln %v is %v, want %v", x, got, want)
		}
	}
}

// only is a constraint that allows a list of tokens.
type only struct {
	ids      []int32
	accepted []int32
	refuse   error
	dirty    bool
}

func (o *only) Mask(allowed []uint64) {
	for _, w := range allowed {
		o.dirty = o.dirty || w != 0
	}
	for _, id := range o.ids {
		allowed[id/64] |= 1 << (id % 64)
	}
}

func (o *only) Accept(id int32) error {
	if o.refuse != nil {
		return o.refuse
	}
	o.accepted = append(o.accepted, id)
	return nil
}

func (o *only) Done() bool { return len(o.accepted) > 3 }

func TestConstraintIsKept(t *testing.T) {
	r := newRand(t)
	for _, vocab := range []int{1, 63, 64, 65, 1000} {
		for _, share := range []int{2, 30, 98, 100} {
			held := &only{ids: []int32{int32(vocab - 1)}}
			for id := range vocab - 1 {
				if r.IntN(100) < share {
					held.ids = append(held.ids, int32(id))
				}
			}
			p := Defaults()
			p.Temperature = 50
			s := mustNew(t, p, Options{Vocab: vocab, Ops: ops, Constraint: held})
			x := make([]float32, vocab)
			var chosen []int32
			for pos := range 200 {
				if got, want := s.Done(), pos > 3; got != want {
					t.Fatalf("done at %d: %v", pos, got)
				}
				fill(x, pos%2, r)
				y := slices.Clone(x)
				for id := range y {
					if !slices.Contains(held.ids, int32(id)) {
						y[id] = none
					}
				}
				got := mustNext(t, s, x, pos)
				if want := twinOf(y, p, 0, pos); got.ID != want {
					t.Fatalf("token %d of %d, want %d", got.ID, vocab, want)
				}
				chosen = append(chosen, got.ID)
			}
			if !slices.Equal(chosen, held.accepted) || held.dirty {
				t.Fatalf("%d tokens: the constraint was not told what was chosen, or was given a mask with bits", vocab)
			}
		}
	}
}

func TestRefusalOfTheConstraintIsTold(t *testing.T) {
	held := &only{ids: []int32{2}, refuse: errors.New("no")}
	p := Defaults()
	p.Presence = 1
	s := mustNew(t, p, Options{Vocab: 3, Ops: ops, Constraint: held})
	if _, err := s.Next([]float32{1, 2, 3}, 0); !errors.Is(err, held.refuse) || !strings.Contains(err.Error(), "token 2") {
		t.Errorf("%v, want that of the constraint", err)
	}
	if len(s.past.seen) != 0 {
		t.Error("a refused token was counted")
	}
}

func TestStopTokensAreMarked(t *testing.T) {
	p := Defaults()
	p.Stop = []int32{1}
	s := mustNew(t, p, Options{Vocab: 3, Ops: ops})
	if mustNext(t, s, []float32{0, 1, 2}, 0).Stop || !mustNext(t, s, []float32{0, 3, 2}, 1).Stop {
		t.Error("the stop token is not told from others")
	}
}

// TestChoiceDependsOnNothingElse draws at the same places in another order, with other neighbours.
func TestChoiceDependsOnNothingElse(t *testing.T) {
	r := newRand(t)
	x := make([]float32, 5000)
	fill(x, flat, r)
	p := Defaults()
	p.Temperature, p.Seed = 1, r.Uint64()
	differ := map[string]bool{}
	for choice := range 3 {
		a := mustNew(t, p, Options{Choice: choice, Vocab: len(x), Ops: ops})
		b := mustNew(t, p, Options{Choice: choice, Vocab: len(x), Ops: ops})
		var forward, backward []int32
		for pos := range 40 {
			forward = append(forward, mustNext(t, a, x, pos).ID)
			backward = append(backward, mustNext(t, b, x, 39-pos).ID)
		}
		slices.Reverse(backward)
		if !slices.Equal(forward, backward) {
			t.Fatalf("%v one way, %v the other", forward, backward)
		}
		differ[string(appendInts(nil, forward))] = true
	}
	if len(differ) != 3 {
		t.Error("choices are alike")
	}
}

func appendInts(b []byte, ids []int32) []byte {
	for _, id := range ids {
		b = append(b, byte(id), byte(id>>8), byte(id>>16), byte(id>>24))
	}
	return b
}

// TestChoicesAreGolden holds choices and log probabilities to bits that other machines have, too.
func TestChoicesAreGolden(t *testing.T) {
	eachOps(t, func(t *testing.T, ops *vector.Ops) {
		r := rand.New(rand.NewPCG(1, 2))
		var all []byte
		for i := range 60 {
			// Whole numbers and quotients are the same everywhere; NormFloat64 need not be.
			x := make([]float32, 3000+r.IntN(20000))
			for j := range x {
				x[j] = float32(r.IntN(1<<20)+r.IntN(1<<20)-1<<20) / (1 << 17)
			}
			p := Params{
				Temperature: []float32{0.7, 1, 1.3}[i%3], TopK: []int{0, 40, 2000}[i/3%3], TopP: []float32{1, 0.9}[i%2],
				MinP: []float32{0, 0.05}[i/2%2], Repetition: 1.1, Presence: 0.5, Seed: uint64(i), Logprobs: true, Top: 3,
			}
			s := mustNew(t, p, Options{Choice: i, Vocab: len(x), Ops: ops, Prompt: []int32{1, 2, 3}})
			for pos := range 3 {
				got := mustNext(t, s, x, pos)
				all = appendInts(all, []int32{got.ID, int32(math.Float32bits(got.Logprob)), got.Top[2].ID, int32(math.Float32bits(got.Top[2].Logprob))})
			}
		}
		if got, want := crc32.ChecksumIEEE(all), uint32(golden); got != want {
			t.Errorf("the choices have CRC %#08x, want %#08x", got, want)
		}
	})
}

const golden = 0xe117a3a9

func TestNextDoesNotAllocate(t *testing.T) {
	r := newRand(t)
	x := make([]float32, 20_000)
	y := make([]float32, len(x))
	for _, c := range []struct {
		name string
		p    Params
		held Constraint
	}{
		{"greedy", Defaults(), nil},
		{"plain", Params{Temperature: 1, TopP: 1, Repetition: 1}, nil},
		{"top-k", Params{Temperature: 1, TopK: 40, TopP: 0.9, MinP: 0.1, Repetition: 1}, nil},
		{"large top-k", Params{Temperature: 1, TopK: 4000, TopP: 0.9, MinP: 0.1, Repetition: 1}, nil},
		{"all", Params{Temperature: 1, TopK: 40, TopP: 0.9, Repetition: 1.1, RepeatWindow: 64, Presence: 1, Bias: map[int32]float32{3: 5},
			Logprobs: true, Top: 20, Stop: []int32{1}}, &fixed{}},
	} {
		for shape := range shapes {
			fill(x, shape, r)
			s := mustNew(t, c.p, Options{Vocab: len(x), Ops: ops, Constraint: c.held})
			pos := 0
			next := func() {
				copy(y, x)
				if _, err := s.Next(y, pos%7); err != nil { // few positions, so that penalties come to know all tokens
					t.Fatal(err)
				}
				pos++
			}
			for range 60 {
				next()
			}
			if n := testing.AllocsPerRun(10, next); n != 0 && shape != level && shape != coarse {
				t.Errorf("%s, shape %d: %g allocations", c.name, shape, n)
			}
		}
	}
}

// fixed is a constraint that allocates nothing.
type fixed struct{}

func (*fixed) Mask(allowed []uint64) {
	for i := range allowed {
		allowed[i] = math.MaxUint64
	}
}
func (*fixed) Accept(int32) error { return nil }
func (*fixed) Done() bool         { return false }
