package sample

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestCheckRefuses(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	many := map[int32]float32{}
	for i := range int32(MaxBiases + 1) {
		many[i] = 1
	}
	for _, c := range []struct {
		spoil  func(p *Params)
		param  string
		reason string
	}{
		{func(p *Params) { p.Temperature = -0.1 }, "temperature", "-0.1, want 0 to 100"},
		{func(p *Params) { p.Temperature = nan }, "temperature", "NaN"},
		{func(p *Params) { p.Temperature = inf }, "temperature", "+Inf"},
		{func(p *Params) { p.Temperature = 100.5 }, "temperature", "100.5"},
		{func(p *Params) { p.TopP = 1.01 }, "top_p", "1.01, want 0 to 1"},
		{func(p *Params) { p.TopP = -1 }, "top_p", "-1"},
		{func(p *Params) { p.TopP = nan }, "top_p", "NaN"},
		{func(p *Params) { p.MinP = 2 }, "min_p", "2, want 0 to 1"},
		{func(p *Params) { p.MinP = -0.5 }, "min_p", "-0.5"},
		{func(p *Params) { p.MinP = nan }, "min_p", "NaN"},
		{func(p *Params) { p.Repetition = 0 }, "repetition_penalty", "0, want 0.01 to 100"},
		{func(p *Params) { p.Repetition = -1 }, "repetition_penalty", "-1"},
		{func(p *Params) { p.Repetition = inf }, "repetition_penalty", "+Inf"},
		{func(p *Params) { p.Repetition = nan }, "repetition_penalty", "NaN"},
		{func(p *Params) { p.Presence = 2.5 }, "presence_penalty", "2.5, want -2 to 2"},
		{func(p *Params) { p.Presence = nan }, "presence_penalty", "NaN"},
		{func(p *Params) { p.Frequency = -2.5 }, "frequency_penalty", "-2.5"},
		{func(p *Params) { p.Frequency = -inf }, "frequency_penalty", "-Inf"},
		{func(p *Params) { p.TopK = -1 }, "top_k", "-1, want 0"},
		{func(p *Params) { p.RepeatWindow = -1 }, "repeat_window", "-1, want 0"},
		{func(p *Params) { p.Logprobs, p.Top = true, 21 }, "top_logprobs", "21, want 0 to 20"},
		{func(p *Params) { p.Logprobs, p.Top = true, -1 }, "top_logprobs", "-1"},
		{func(p *Params) { p.Top = 3 }, "top_logprobs", "3 without logprobs"},
		{func(p *Params) { p.Bias = many }, "logit_bias", "1025 tokens, want at most 1024"},
		{func(p *Params) { p.Bias = map[int32]float32{5: 101, 7: nan, 3: 1} }, "logit_bias", "101 for token 5, want -100 to 100"},
		{func(p *Params) { p.Bias = map[int32]float32{7: nan} }, "logit_bias", "NaN for token 7"},
		{func(p *Params) { p.Bias = map[int32]float32{-1: 1} }, "logit_bias", "token -1, want 0 to 1999"},
		{func(p *Params) { p.Bias = map[int32]float32{2000: 1} }, "logit_bias", "token 2000"},
		{func(p *Params) { p.Stop = make([]int32, 129) }, "stop_token_ids", "129 tokens, want at most 128"},
		{func(p *Params) { p.Stop = []int32{1, 2000} }, "stop_token_ids", "token 2000, want 0 to 1999"},
		{func(p *Params) { p.Stop = []int32{-2} }, "stop_token_ids", "token -2"},
	} {
		p := Defaults()
		c.spoil(&p)
		err := p.Check(2000)
		var bad *ParamError
		if !errors.As(err, &bad) || !errors.Is(err, ErrParam) || bad.Param != c.param || !strings.Contains(bad.Reason, c.reason) {
			t.Errorf("%v, want %s: %s", err, c.param, c.reason)
			continue
		}
		if text := err.Error(); !strings.HasPrefix(text, c.param+": ") || strings.Contains(text, "\n") {
			t.Errorf("not one clear line: %q", text)
		}
		if _, err := New(p, Options{Vocab: 2000, Ops: ops}); !errors.Is(err, ErrParam) {
			t.Errorf("%s: New returns %v", c.param, err)
		}
	}
}

func TestCheckTakes(t *testing.T) {
	for _, p := range []Params{
		Defaults(),
		{Temperature: 100, TopK: 1 << 40, TopP: 0, MinP: 1, Repetition: 0.01, RepeatWindow: 1 << 40, Presence: -2, Frequency: 2},
		{Temperature: 1e-30, TopP: 1, Repetition: 100, Logprobs: true, Top: 20, Stop: []int32{0, 1999}, Seed: math.MaxUint64,
			Bias: map[int32]float32{0: -100, 1999: 100}},
	} {
		if err := p.Check(2000); err != nil {
			t.Error(err)
		}
		if _, err := New(p, Options{Vocab: 2000, Ops: ops}); err != nil {
			t.Error(err)
		}
	}
}

func TestNewRefusesAPromptOfOtherTokens(t *testing.T) {
	p := Defaults()
	p.Repetition = 1.1
	for _, id := range []int32{-1, 5} {
		_, err := New(p, Options{Vocab: 5, Ops: ops, Prompt: []int32{1, id}})
		if !errors.Is(err, ErrParam) || !strings.Contains(err.Error(), "at 1, want 0 to 4") {
			t.Errorf("prompt with token %d: %v", id, err)
		}
	}
}
