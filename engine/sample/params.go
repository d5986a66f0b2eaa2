package sample

import (
	"errors"
	"fmt"
)

// Limits of parameters.
const (
	MaxTemperature = 100
	MaxRepetition  = 100  // and at least its inverse
	MaxPenalty     = 2    // of presence and frequency, and -2 at least
	MaxBias        = 100  // and -100 at least
	MaxBiases      = 1024 // tokens with a bias
	MaxTop         = 20   // likeliest tokens told beside the chosen one
	MaxStopTokens  = 128
)

// temperatureMin is what lower temperatures count as, 0 apart. Only tokens whose logits are equal, or
// one unit in the last place apart, are then still drawn.
const temperatureMin = 1e-6

// ErrParam: a parameter is out of range. The error is a *ParamError, which names it.
var ErrParam = errors.New("sample: bad parameter")

// ParamError names a parameter, as requests do, and says what is wrong with it.
type ParamError struct{ Param, Reason string }

// Error returns one line.
func (e *ParamError) Error() string { return e.Param + ": " + e.Reason }

// Unwrap returns ErrParam.
func (e *ParamError) Unwrap() error { return ErrParam }

// Params say how tokens are chosen. Defaults is where to begin.
type Params struct {
	Temperature float32 // divides the logits; 0: always the likeliest token, and the next three say nothing
	TopK        int     // how many of the likeliest tokens are drawn from; 0: all
	TopP        float32 // what share of the probability is drawn from, of what TopK left; 1: all
	MinP        float32 // least probability, as a share of the likeliest token's; 0: none

	// Repetition divides positive logits, and multiplies negative ones, of tokens that the prompt or
	// the text has; 1: none. RepeatWindow is how many tokens back that is looked for; 0: all.
	Repetition   float32
	RepeatWindow int
	Presence     float32           // taken off the logit of each token that was generated before
	Frequency    float32           // the same, times how often it was
	Bias         map[int32]float32 // added to logits

	Seed uint64

	Logprobs bool // tell the log probability of the chosen token
	Top      int  // and so many of the likeliest with theirs

	Stop []int32 // tokens that end the text; the sampler only marks them
}

// Defaults returns parameters that change nothing: the likeliest token, always.
func Defaults() Params { return Params{TopP: 1, Repetition: 1} }

// Check returns a *ParamError unless all parameters are in range, for so many tokens.
func (p *Params) Check(vocab int) error {
	for _, c := range []struct {
		name            string
		value, min, max float32
	}{
		{"temperature", p.Temperature, 0, MaxTemperature},
		{"top_p", p.TopP, 0, 1},
		{"min_p", p.MinP, 0, 1},
		{"repetition_penalty", p.Repetition, 1. / MaxRepetition, MaxRepetition},
		{"presence_penalty", p.Presence, -MaxPenalty, MaxPenalty},
		{"frequency_penalty", p.Frequency, -MaxPenalty, MaxPenalty},
	} {
		if !(c.value >= c.min && c.value <= c.max) { // so that NaN is refused
			return refused(c.name, "%g, want %g to %g", c.value, c.min, c.max)
		}
	}
	switch {
	case p.TopK < 0:
		return refused("top_k", "%d, want 0 (all tokens) or more", p.TopK)
	case p.RepeatWindow < 0:
		return refused("repeat_window", "%d, want 0 (all tokens) or more", p.RepeatWindow)
	case p.Top < 0 || p.Top > MaxTop:
		return refused("top_logprobs", "%d, want 0 to %d", p.Top, MaxTop)
	case p.Top > 0 && !p.Logprobs:
		return refused("top_logprobs", "%d without logprobs: ask for these too", p.Top)
	}
	if err := p.checkBias(vocab); err != nil {
		return err
	}
	if len(p.Stop) > MaxStopTokens {
		return refused("stop_token_ids", "%d tokens, want at most %d", len(p.Stop), MaxStopTokens)
	}
	for _, id := range p.Stop {
		if !within(id, vocab) {
			return refused("stop_token_ids", "token %d, want 0 to %d", id, vocab-1)
		}
	}
	return nil
}

func (p *Params) checkBias(vocab int) error {
	if len(p.Bias) > MaxBiases {
		return refused("logit_bias", "%d tokens, want at most %d", len(p.Bias), MaxBiases)
	}
	// Of several mistakes the one of the lowest token is told, whatever the order of the map.
	worst := int32(-1)
	found := false
	for id, b := range p.Bias {
		good := within(id, vocab) && b >= -MaxBias && b <= MaxBias
		if !good && (!found || id < worst) {
			worst, found = id, true
		}
	}
	switch {
	case !found:
		return nil
	case !within(worst, vocab):
		return refused("logit_bias", "token %d, want 0 to %d", worst, vocab-1)
	}
	return refused("logit_bias", "%g for token %d, want %d to %d", p.Bias[worst], worst, -MaxBias, MaxBias)
}

func within(id int32, vocab int) bool { return id >= 0 && int(id) < vocab }

func refused(param, format string, args ...any) error {
	return &ParamError{param, fmt.Sprintf(format, args...)}
}
