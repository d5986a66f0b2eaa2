package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/alecthomas/kong"

	"kvasir/engine"
	"kvasir/engine/chat"
)

type chatCmd struct {
	Tokens count `help:"How many tokens an answer has at most (default ${default})." placeholder:"N" default:"4096"`
	turnFlags
	samplingFlags
	generatorFlags
	jsonFlag
}

// Help is printed by kvasir chat --help.
func (chatCmd) Help() string {
	return `Every line is a turn; one that ends with a backslash goes on in the next. The model remembers the conversation until /clear. /help lists what else there is. Ctrl-C stops an answer, which is kept as far as it came; at the prompt, twice, it ends the chat, and so does Ctrl-D.

Where standard input is no terminal, its lines are the turns, and the answers alone go to standard output. With --json each answer is one object on a line of its own.

As in kvasir run the likeliest token is taken, unless --temperature says otherwise.

Examples:

    kvasir chat
    kvasir chat -m model.gguf --temperature 0.7 --system "You are brief."`
}

// conversation is a chat as it goes on.
type conversation struct {
	c       *chatCmd
	a       *app
	b       *engine.Backbone
	e       *engine.Engine
	lines   *lines
	person  bool // somebody types
	verbose bool
	request engine.Request // what all answers share

	system string
	turns  []engine.Message // without the system's
	tries  uint64           // how often the last turn was answered anew
	cut    bool             // the last answer was stopped
	used   int              // tokens of the context that the last answer has ended at
	total  tally
	ctrlC  bool // it was what came last
}

// tally counts over all answers.
type tally struct {
	answers, tokens, decoded int
	decode                   time.Duration
}

// Run talks until the user ends it.
func (c *chatCmd) Run(ctx context.Context, a *app, all *cli, parsed *kong.Context) error {
	if err := c.check(parsed); err != nil {
		return err
	}
	t := conversation{c: c, a: a, system: string(c.System), verbose: all.Verbose}
	t.lines = newLines(a)
	t.person = t.lines.editor != nil
	var err error
	t.request = engine.Request{Tokens: int(c.Tokens), Stop: c.Stop, Template: chat.Options{Thinking: c.Thinking, Now: time.Now}}
	if t.request.Sampling, err = c.params(); err != nil {
		return err
	}
	if t.request.Format, err = c.format(); err != nil {
		return err
	}
	if t.b, err = c.open(ctx, a); err != nil {
		return err
	}
	defer t.b.Close()
	t.e = t.b.Engine()
	if t.person {
		a.interrupts.give(t.lines.press)
		defer a.interrupts.give(nil)
		t.remark(joinWords(t.e.Name(), "context "+decimal(uint64(t.e.Context()))+" tokens", c.lossy(),
			"/help lists commands, Ctrl-D ends"))
	}
	return t.run(ctx)
}

// remark says something that is no part of an answer.
func (t *conversation) remark(text string) {
	t.a.stderr.printf("%s\n", t.a.stderr.styled(faint, clean(text)))
}

// run takes turns.
func (t *conversation) run(ctx context.Context) error {
	for t.a.stdout.failed() == nil {
		text, err := t.lines.turn(ctx, t.prompt("> "), t.prompt(". "))
		switch {
		case errors.Is(err, errCtrlC) && !t.ctrlC:
			t.ctrlC = true
			t.remark("Ctrl-C once more, Ctrl-D or /quit ends the chat.")
			continue
		case errors.Is(err, errCtrlC), errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		t.ctrlC = false
		if strings.TrimSpace(text) == "" {
			continue
		}
		if end, err := t.take(ctx, text); end || err != nil {
			return err
		}
	}
	return nil // app.finish tells of the screen
}

func (t *conversation) prompt(text string) string {
	return t.a.stdout.styled(bold, text)
}

// take does what a turn asks for. What goes wrong is told; it ends a chat only where nobody types.
func (t *conversation) take(ctx context.Context, text string) (end bool, err error) {
	if name, rest, ok := asCommand(text); ok {
		end, err = t.command(ctx, name, rest)
	} else {
		err = t.say(ctx, text)
	}
	if err != nil && t.person && ctx.Err() == nil {
		t.a.stderr.printf("%s\n", oneLine(err.Error()))
		err = nil
	}
	return end, err
}

// say is a user's turn.
func (t *conversation) say(ctx context.Context, text string) error {
	t.tries = 0
	return t.answer(ctx, slices.Concat(t.turns, []engine.Message{{Role: "user", Content: text}}))
}

// answer has the model take its turn after others. The conversation is as it was before, if nothing came.
func (t *conversation) answer(ctx context.Context, turns []engine.Message) error {
	r := t.request
	r.Messages = turns
	if t.system != "" {
		r.Messages = append([]engine.Message{{Role: "system", Content: t.system}}, turns...)
	}
	sampling := *r.Sampling
	sampling.Seed += t.tries
	r.Sampling = &sampling
	reply, err := t.e.Reply(r)
	if err != nil {
		return t.c.explain(err)
	}
	p := answerPrinter{reply: reply, out: streamer{screen: t.a.stdout}, silent: t.c.JSON, person: t.person}
	res, stopped, err := t.generate(ctx, r, p.piece)
	p.end(err == nil)
	if err != nil && !stopped {
		return t.explain(err)
	}
	if stopped && len(res.First().Tokens) == 0 {
		t.remark("Stopped before a word was said. Your turn was taken back.")
		return nil
	}
	t.turns, t.cut = slices.Concat(turns, []engine.Message{p.message()}), stopped
	t.count(res)
	if t.c.JSON {
		return t.printJSON(p.message(), res, stopped)
	}
	if t.person || t.verbose {
		t.remark(t.statistics(res, stopped))
	}
	return nil
}

// generate lets a Ctrl-C stop the answer, and not the program; a second one does.
func (t *conversation) generate(ctx context.Context, r engine.Request, emit func(engine.Piece) error) (res engine.Result, stopped bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var pressed atomic.Bool
	if t.person {
		t.a.interrupts.give(func() bool {
			cancel()
			return pressed.CompareAndSwap(false, true)
		})
		defer t.a.interrupts.give(t.lines.press)
	}
	res, err = t.e.Generate(ctx, r, emit)
	stopped = pressed.Load() && errors.Is(err, context.Canceled)
	t.ctrlC = stopped
	return res, stopped, err
}

// explain says what to do where the conversation is what is wrong.
func (t *conversation) explain(err error) error {
	var long *engine.LengthError
	if errors.As(err, &long) {
		return fmt.Errorf("the conversation has %s tokens, and there is room for %d with the answer; shorten your turn, or begin a new one with /clear",
			long.Count(), long.Limit)
	}
	return t.c.explain(err)
}

func (t *conversation) count(res engine.Result) {
	n := len(res.First().Tokens)
	t.used = len(res.PromptTokens) + n
	t.total.answers++
	t.total.tokens += n
	t.total.decoded += max(decoded(res), 0)
	t.total.decode += res.Decode
}

// statistics is the line below an answer.
func (t *conversation) statistics(res engine.Result, stopped bool) string {
	first := res.First()
	text := plural(len(first.Tokens), "token")
	if steps := decoded(res); steps > 0 && res.Decode > 0 {
		text += fmt.Sprintf(" at %.1f tokens/s", perSecond(steps, res.Decode))
	}
	ending := ""
	switch {
	case stopped:
		ending = "stopped"
	case first.Stop == engine.StopLength && t.used >= t.e.Context():
		ending = "the context is full: /clear begins a new conversation"
	case first.Stop == engine.StopLength:
		ending = "cut off by --tokens"
	}
	return joinWords(text, t.room(), helped(t.b), ending)
}

func (t *conversation) room() string {
	return fmt.Sprintf("%s of %s tokens of context", decimal(uint64(t.used)), decimal(uint64(t.e.Context())))
}

// chatAnswer is what kvasir chat --json prints for an answer.
type chatAnswer struct {
	Text         string  `json:"text"`
	Reasoning    string  `json:"reasoning,omitempty"`
	Tokens       int     `json:"tokens"`
	PromptTokens int     `json:"prompt_tokens"`
	Stop         string  `json:"stop"`
	PromptMS     float64 `json:"prompt_ms,omitempty"`
	DecodeMS     float64 `json:"decode_ms,omitempty"`
	TokensPerS   float64 `json:"tokens_per_s,omitempty"`
	Lossy        string  `json:"lossy,omitempty"`
}

func (t *conversation) printJSON(m engine.Message, res engine.Result, stopped bool) error {
	first := res.First()
	r := chatAnswer{
		Text: m.Content, Reasoning: m.Reasoning, Tokens: len(first.Tokens), PromptTokens: len(res.PromptTokens),
		Stop: first.Stop, PromptMS: milliseconds(res.Prefill), Lossy: t.c.lossy(),
	}
	if stopped {
		r.Stop = "interrupted"
	}
	if steps := decoded(res); steps > 0 && res.Decode > 0 {
		r.DecodeMS, r.TokensPerS = milliseconds(res.Decode), perSecond(steps, res.Decode)
	}
	e := json.NewEncoder(t.a.stdout)
	e.SetEscapeHTML(false)
	return e.Encode(r)
}
