// Package sample chooses tokens from logits, and finds where a text stops.
//
// A choice goes through these steps, in this order; those that are off change nothing:
//
//  1. Log probabilities are those of the model: the log softmax of the logits as they come, before all
//     that follows. So they do not depend on how a token was chosen.
//  2. Bias is added.
//  3. Penalties: repetition, then frequency and presence.
//  4. The constraint's mask: what it does not allow is as impossible as a logit of minus infinity.
//  5. Temperature 0 takes the largest logit. Any other gives each token a weight,
//     rne(exp((logit - largest) / temperature) * 2^39): a whole number, so that sums of weights are
//     exact and depend on no order. A token of weight 0 is never drawn.
//  6. Top-k, top-p, min-p. Tokens stand in the order of their logits, the largest first, of equal ones
//     that of the lower id. Top-k keeps the first k; top-p the fewest of these whose sum is at least
//     TopP of theirs, and one at least; min-p those that weigh at least MinP times the first.
//  7. Draw: u is a number of 64 random bits, S the sum of the weights that are left, t = floor(u*S /
//     2^64). Weights are added up in order, and the first token whose sum exceeds t is drawn.
//
// u is Philox4x32-10 of seed, choice and position (see uniform), so a choice depends on nothing else:
// not on the draws before it, nor on what shares a batch with it. Kernel variants give the same bits,
// and there is no library function whose bits differ between machines: choices are the same everywhere.
package sample

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"kvasir/kernels/vector"
)

// Errors of a choice; test with errors.Is.
var (
	// ErrLogits: there is a NaN or plus infinity among the logits.
	ErrLogits = errors.New("sample: the logits are not numbers")
	// ErrForbidden: no token is left to choose from.
	ErrForbidden = errors.New("sample: every token is forbidden")
)

// Constraint holds a text to a form. It belongs to one sampler.
type Constraint interface {
	// Mask sets bit i%64 of allowed[i/64] for each token i that may come next. Allowed has a bit for
	// each token of the model, and all are 0 before.
	Mask(allowed []uint64)
	// Accept is told each token that was chosen.
	Accept(id int32) error
	// Done reports whether the text is complete, so that only an end token may follow.
	Done() bool
}

// Options are what a sampler needs to know beside parameters.
type Options struct {
	Choice     int     // which of the n choices of a request this is, from 0
	Prompt     []int32 // for the repetition penalty; not kept
	Vocab      int     // how many logits there are
	Ops        *vector.Ops
	Constraint Constraint // nil: none
}

// Candidate is a token with its log probability.
type Candidate struct {
	ID      int32
	Logprob float32
}

// Token is a choice.
type Token struct {
	ID      int32
	Stop    bool        // it is one of Params.Stop
	Logprob float32     // if Params.Logprobs; a number, however unlikely the token
	Top     []Candidate // the likeliest tokens, in order; impossible ones are left out. Valid until the next call
}

// Sampler makes the choices of one text, one after the other. It is not safe for concurrent use.
// It keeps up to 300 KB, mostly far less, a bit a token for a constraint, and what penalties have to
// remember: some 50 bytes for each token that is not the same as another.
type Sampler struct {
	p      Params
	o      Options
	bias   []touched // of Params.Bias, ids ascending
	past   *history  // nil without penalties
	scan   scan
	order  *order   // nil at temperature 0
	allow  []uint64 // of the constraint
	best   []uint64 // keys of the likeliest tokens
	top    []Candidate
	lnSum  float64 // of the model's distribution, with its largest logit
	rawTop float32
}

// touched is a token whose logit is changed, by how much, and what it was before.
type touched struct {
	id       int32
	add, raw float32
}

// New returns a sampler, or the error of Params.Check. Bytes are taken for what was given, never for
// what a parameter claims.
func New(p Params, o Options) (*Sampler, error) {
	if o.Vocab <= 0 || o.Vocab > math.MaxInt32 || o.Choice < 0 || o.Ops == nil {
		panic(fmt.Sprintf("BUG: a sampler for choice %d of %d tokens", o.Choice, o.Vocab))
	}
	if err := p.Check(o.Vocab); err != nil {
		return nil, err
	}
	s := &Sampler{p: p, o: o}
	for id, b := range p.Bias {
		s.bias = append(s.bias, touched{id: id, add: b})
	}
	slices.SortFunc(s.bias, func(a, b touched) int { return int(a.id) - int(b.id) })
	s.p.Stop, s.p.Bias = slices.Clone(p.Stop), nil // the caller's
	s.o.Prompt = nil
	if p.Repetition != 1 || p.Presence != 0 || p.Frequency != 0 {
		s.past = newHistory(&s.p)
		for i, id := range o.Prompt {
			if !within(id, o.Vocab) {
				return nil, refused("prompt", "token %d at %d, want 0 to %d", id, i, o.Vocab-1)
			}
		}
		s.past.prompt(o.Prompt)
	}
	if o.Constraint != nil {
		s.allow = make([]uint64, (o.Vocab+63)/64)
	}
	s.scan.ops = o.Ops
	if p.Temperature > 0 {
		s.order = newOrder(&s.p, &s.scan)
	}
	s.best = make([]uint64, 0, p.Top+1)
	s.top = make([]Candidate, 0, p.Top)
	return s, nil
}

// Done reports whether the constraint is: only an end token may follow.
func (s *Sampler) Done() bool { return s.o.Constraint != nil && s.o.Constraint.Done() }

// Next chooses the token that stands at pos. It may change the logits. After an error the sampler is as
// it was before, unless the error is the constraint's.
func (s *Sampler) Next(logits []float32, pos int) (Token, error) {
	if len(logits) != s.o.Vocab || pos < 0 {
		panic(fmt.Sprintf("BUG: %d logits of %d tokens at position %d", len(logits), s.o.Vocab, pos))
	}
	// Nothing but a mask hides a NaN, so there is no need to look before and after the other steps.
	if s.p.Logprobs || s.o.Constraint != nil {
		if err := s.scan.read(logits); err != nil {
			return Token{}, err
		}
		s.measure()
	}
	changed := s.adjust(logits)
	if changed || s.scan.x == nil {
		if err := s.scan.read(logits); err != nil {
			return Token{}, err
		}
	}
	top := s.scan.top
	if math.IsInf(float64(top), -1) {
		s.scan.x = nil
		return Token{}, fmt.Errorf("%w at position %d: loosen the bias or the constraint", ErrForbidden, pos)
	}
	var id int32
	if s.order == nil {
		id = s.scan.argmax()
	} else {
		id = s.order.draw(uniform(s.p.Seed, s.o.Choice, pos))
	}
	s.scan.x = nil // they are the caller's

	t := Token{ID: id, Stop: slices.Contains(s.p.Stop, id)}
	if s.p.Logprobs {
		t.Logprob, t.Top = s.logprob(s.raw(id, logits[id])), s.top
	}
	if s.o.Constraint != nil {
		if err := s.o.Constraint.Accept(id); err != nil {
			return Token{}, fmt.Errorf("accept token %d: %w", id, err)
		}
	}
	if s.past != nil {
		s.past.generated(id)
	}
	return t, nil
}

// adjust does steps 2 to 4, and reports whether a logit may have changed.
func (s *Sampler) adjust(x []float32) bool {
	for i := range s.bias {
		b := &s.bias[i]
		b.raw = x[b.id]
		x[b.id] = within32(b.raw, b.raw+b.add)
	}
	if s.past != nil {
		s.past.penalise(x)
	}
	if s.o.Constraint != nil {
		clear(s.allow)
		s.o.Constraint.Mask(s.allow)
		forbid(x, s.allow)
	}
	return len(s.bias) > 0 || s.past != nil || s.o.Constraint != nil
}

// raw returns the logit of id as it came; x is what it has become.
func (s *Sampler) raw(id int32, x float32) float32 {
	if i, found := slices.BinarySearchFunc(s.bias, id, func(b touched, id int32) int { return int(b.id) - int(id) }); found {
		return s.bias[i].raw
	}
	if s.past != nil {
		if i, found := s.past.index[id]; found {
			return s.past.seen[i].raw
		}
	}
	return x
}

// within32 returns y, made of the number x, or the largest number on its side: a penalty makes no
// infinity. What x has of infinity or NaN it keeps.
func within32(x, y float32) float32 {
	if x-x != 0 {
		return x
	}
	return max(-math.MaxFloat32, min(math.MaxFloat32, y))
}
