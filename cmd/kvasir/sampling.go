package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"kvasir/engine"
	"kvasir/engine/grammar"
	"kvasir/engine/sample"
)

// samplingFlags say how tokens are chosen. They are embedded by commands that generate.
type samplingFlags struct {
	Temperature  number   `help:"Draw tokens by chance, from probabilities evened out by so much: 0.7 for instance. With 0 the likeliest token is taken, always (default ${default})." placeholder:"T" default:"0" group:"sampling"`
	TopK         whole    `name:"top-k" help:"Draw from so many of the likeliest tokens; 0: all (default ${default})." placeholder:"N" default:"0" group:"sampling"`
	TopP         number   `name:"top-p" help:"Draw from the likeliest tokens that together have this probability; 1: all (default ${default})." placeholder:"P" default:"1" group:"sampling"`
	MinP         number   `name:"min-p" help:"Draw from tokens with at least this share of the likeliest one's probability (default ${default})." placeholder:"P" default:"0" group:"sampling"`
	Seed         seed     `help:"Of chance: the same seed draws the same tokens, everywhere (default ${default})." placeholder:"N" default:"0" group:"sampling"`
	Repetition   number   `name:"repetition-penalty" help:"Divide logits of tokens that were there before; 1: do not (default ${default})." placeholder:"X" default:"1" group:"sampling"`
	RepeatWindow whole    `name:"repetition-window" help:"Look so many tokens back for them; 0: to the beginning (default ${default})." placeholder:"N" default:"0" group:"sampling"`
	Presence     number   `name:"presence-penalty" help:"Take off the logit of each token that was made before, -2 to 2 (default ${default})." placeholder:"X" default:"0" group:"sampling"`
	Frequency    number   `name:"frequency-penalty" help:"The same, times how often it was made (default ${default})." placeholder:"X" default:"0" group:"sampling"`
	Bias         biases   `help:"Add to the logit of a token, -100 to 100, as in 198=-5. May be given again." placeholder:"TOKEN=VALUE" sep:"none" group:"sampling"`
	Stop         texts    `help:"End before this text. May be given again." placeholder:"TEXT" sep:"none" group:"sampling"`
	StopToken    tokenIDs `name:"stop-token" help:"End before this token, given by its number. May be given again." placeholder:"ID" sep:"none" group:"sampling"`
	Grammar      filePath `help:"Hold the text to a grammar, in GBNF notation." placeholder:"FILE" group:"sampling"`
	Schema       filePath `help:"Hold the text to a JSON schema." placeholder:"FILE" group:"sampling"`
	JSONText     bool     `name:"json-text" help:"Hold the text to JSON, of any form." group:"sampling"`
}

// params returns the parameters, checked as far as they can be without a model.
func (f *samplingFlags) params() (*sample.Params, error) {
	p := sample.Params{
		Temperature: float32(f.Temperature), TopK: int(f.TopK), TopP: float32(f.TopP), MinP: float32(f.MinP),
		Repetition: float32(f.Repetition), RepeatWindow: int(f.RepeatWindow),
		Presence: float32(f.Presence), Frequency: float32(f.Frequency),
		Bias: f.Bias.table(), Seed: uint64(f.Seed), Stop: f.StopToken.list(),
	}
	err := p.Check(math.MaxInt32)
	if err == nil {
		_, err = sample.NewStops(f.Stop)
	}
	return &p, f.explain(err)
}

// format reads what the text is held to.
func (f *samplingFlags) format() (form engine.Format, err error) {
	names := []string{}
	for name, on := range map[string]bool{"grammar": f.Grammar != "", "schema": f.Schema != "", "json-text": f.JSONText} {
		if on {
			names = append(names, name)
		}
	}
	if len(names) > 1 {
		return form, usagef("a text has one format: give one of --grammar, --schema and --json-text")
	}
	form.JSON = f.JSONText
	switch {
	case f.Grammar != "":
		var text []byte
		text, err = readFlagFile("grammar", f.Grammar)
		form.Grammar = string(text)
		if err == nil {
			_, err = grammar.Parse(form.Grammar)
			err = f.explain(err)
		}
	case f.Schema != "":
		form.Schema, err = readFlagFile("schema", f.Schema)
	}
	return form, err
}

// flagOfParam has the flags of parameters whose names differ by more than a hyphen.
var flagOfParam = map[string]string{
	"repeat_window": "repetition-window", "stop_token_ids": "stop-token", "logit_bias": "bias", "top_logprobs": "logprobs",
}

// explain names the flag that an error is about, if it is about one.
func (f *samplingFlags) explain(err error) error {
	var p *sample.ParamError
	switch {
	case errors.As(err, &p):
		flag := flagOfParam[p.Param]
		if flag == "" {
			flag = strings.ReplaceAll(p.Param, "_", "-")
		}
		if got, want, ok := strings.Cut(p.Reason, ", want "); ok {
			return usagef("--%s: want %s, got %s", flag, want, got)
		}
		return usagef("--%s: %s", flag, p.Reason)
	case errors.Is(err, sample.ErrStop):
		return usagef("--stop: %s", strings.TrimPrefix(err.Error(), sample.ErrStop.Error()+": "))
	case errors.Is(err, engine.ErrChoices):
		return usagef("--choices: want 1 to 128")
	case errors.Is(err, grammar.ErrSyntax), errors.Is(err, grammar.ErrSchema), errors.Is(err, grammar.ErrLimit):
		switch {
		case f.Grammar != "":
			return fmt.Errorf("--grammar %s: %w", f.Grammar, err)
		case f.Schema != "":
			return fmt.Errorf("--schema %s: %w", f.Schema, err)
		}
	}
	return err
}

// chance reports whether a different seed can give a different text.
func (f *samplingFlags) chance() bool { return f.Temperature > 0 }

// turnFlags are for answers in the model's chat template.
type turnFlags struct {
	System   freeText `help:"What the model is told before the conversation." placeholder:"TEXT" group:"chat"`
	Thinking *bool    `negatable:"" help:"Have the model reason before it answers, or not. Default: as the model's template has it." group:"chat"`
}

// begin returns what stands before a user's first turn.
func (f *turnFlags) begin() []engine.Message {
	if f.System == "" {
		return nil
	}
	return []engine.Message{{Role: "system", Content: string(f.System)}}
}

// readTools reads a JSON list of what a model may call.
func readTools(path filePath) (tools []json.RawMessage, err error) {
	if path == "" {
		return nil, nil
	}
	text, err := readFlagFile("tools", path)
	if err != nil {
		return nil, err
	}
	good := json.Unmarshal(text, &tools) == nil && len(tools) > 0
	for _, tool := range tools {
		good = good && bytes.HasPrefix(tool, []byte("{"))
	}
	if !good {
		return nil, fmt.Errorf("--tools %s: want a JSON list of functions, as OpenAI's interface has them", path)
	}
	return tools, nil
}
